/* qp/: the responder of one RC queue pair: which request may be executed, and what the peer is told.
 * Knows PSNs, opcodes and lengths. What a remote address means, whether an immediate must come and what a
 * message may carry are rules of whoever owns the memory: core/ puts those checks between these.
 * No clock, no I/O. Step of the story: "responder step". */
#ifndef PSC_RESPONDER_H
#define PSC_RESPONDER_H

#include <stdbool.h>
#include <stdint.h>

#include "psc_refusal.h"
#include "psc_roce.h"

/* What the peer is to be told next; a greater value replaces a smaller one, since every NAK also
 * acknowledges. */
enum psc_reply { PSC_REPLY_NONE = 0, PSC_REPLY_ACK, PSC_REPLY_NAK_SEQUENCE, PSC_REPLY_NAK_FATAL };

/* Written by the functions below alone. */
struct psc_responder {
    uint32_t mtu_bytes;
    uint32_t expected_psn;
    uint32_t msn;            /* messages executed, modulo 2^24 */
    bool in_message;         /* between FIRST and LAST */
    bool nak_sent;           /* this gap has had its NAK 60: silence until the expected packet comes */
    uint32_t length_bytes;   /* of the message in progress */
    uint32_t residual_bytes; /* of it, still to come */
    enum psc_reply owed;     /* coalesced over a burst */
    uint8_t fatal_syndrome;
};

enum psc_place { PSC_PLACE_PAST, PSC_PLACE_IN_ORDER, PSC_PLACE_FUTURE };

void psc_responder_init(struct psc_responder *responder, uint32_t mtu_bytes, uint32_t expected_psn);

/* Where a request's PSN stands. A past one owes an ACK, a future one a NAK 60 (once per gap); neither is
 * executed. */
enum psc_place psc_responder_place(struct psc_responder *responder, uint32_t psn);

/* The checks of a request in order, in the order in which the owner of the memory chains them. False:
 * *refusal says why. */
bool psc_responder_sequence_ok(const struct psc_responder *responder, const struct psc_packet *packet,
                               struct psc_refusal *refusal);
bool psc_responder_operation_ok(const struct psc_packet *packet, struct psc_refusal *refusal);
bool psc_responder_lengths_ok(const struct psc_responder *responder, const struct psc_packet *packet,
                              struct psc_refusal *refusal);

/* Byte of the message at which an accepted packet's payload stands. */
uint32_t psc_responder_offset_bytes(const struct psc_responder *responder, const struct psc_packet *packet);

/* The three outcomes of a request in order: executed; refused for ever; or not now, in which case nothing is
 * said and the peer's own timer brings the packet again. */
void psc_responder_executed(struct psc_responder *responder, const struct psc_packet *packet);
void psc_responder_refused(struct psc_responder *responder, enum psc_fault fault);
void psc_responder_postponed(struct psc_responder *responder);

/* Fill the reply that is owed and count it as sent: call it only when the packet can leave. */
enum psc_reply psc_responder_take_reply(struct psc_responder *responder, struct psc_header *header);

#endif
