/* qp/: the requester of one RC queue pair: an ordered stream of WRITE messages, sent at least once and in
 * order until the peer has acknowledged them (go-back-N). Knows packets' numbers, not their bytes: core/
 * builds the frame. Time is a parameter. Step of the story: "one header per worker". */
#ifndef PSC_REQUESTER_H
#define PSC_REQUESTER_H

#include <stdbool.h>
#include <stdint.h>

#include "psc_roce.h"

/* One message of the stream. Written by psc_requester_post. */
struct psc_message {
    uint64_t tag; /* the owner's own: which payload this is */
    uint32_t first_psn;
    uint32_t packets;
};

struct psc_requester_config {
    uint32_t max_unacked_packets;
    uint32_t retries;       /* time-outs in a row that are answered by sending again */
    uint64_t retransmit_ns; /* from the last progress, while an AckReq packet is outstanding */
    uint64_t progress_ns;   /* without any progress this long: exhausted, whatever the retries */
    bool immediates;        /* every message ends with one */
};

/* PSNs in stream order: unacked <= cursor <= fresh <= ready <= posted. Written by the functions below alone.
 */
struct psc_requester {
    const struct psc_requester_config *config;
    struct psc_message *ring; /* messages that are not wholly acknowledged, oldest at head */
    uint32_t ring_size, ring_head, ring_count;
    uint32_t cursor_message; /* position after head of the message that the cursor is in */
    uint32_t unacked_psn;    /* oldest packet that the peer has not acknowledged */
    uint32_t cursor_psn;     /* next packet to send; goes back on loss */
    uint32_t fresh_psn;      /* first packet never sent */
    uint32_t
        ready_psn; /* first packet whose bytes do not exist yet: a message may leave before it is whole */
    uint32_t posted_psn;  /* first packet after the last message */
    uint32_t unrequested; /* packets sent since the last AckReq */
    uint32_t ack_req_psn; /* newest packet sent with AckReq, if ack_req_sent */
    bool ack_req_sent;
    bool rewound; /* a NAK 60 for rewound_psn was obeyed: its repetitions are not */
    uint32_t rewound_psn;
    uint32_t timeouts;     /* in a row */
    uint64_t timer_ns;     /* the ACK timer's start */
    uint64_t progress_ns;  /* last progress, or when there was first something to deliver */
    uint64_t rnr_until_ns; /* receiver not ready: nothing is sent before this time; 0: ready */
};

/* `ring` holds at least as many messages as can be unacknowledged at a time. */
void psc_requester_init(struct psc_requester *requester, const struct psc_requester_config *config,
                        struct psc_message *ring, uint32_t ring_size, uint32_t start_psn);

/* Append a message; then declare packets ready, in stream order. False: the ring is full. */
bool psc_requester_post(struct psc_requester *requester, uint64_t tag, uint32_t packets);
void psc_requester_ready(struct psc_requester *requester, uint32_t packets, uint64_t now_ns);

/* The next packet to send. The same PSN always yields the same opcode and index; AckReq alone may differ. */
struct psc_sending {
    const struct psc_message *message;
    uint32_t index; /* of the packet in its message */
    uint32_t psn;
    uint8_t opcode;
    bool ack_req;
    bool again; /* sent before */
};
bool psc_requester_next(struct psc_requester *requester, uint64_t now_ns, struct psc_sending *sending);

/* An ACK or NAK came. */
enum psc_response {
    PSC_RESPONSE_TAKEN,
    PSC_RESPONSE_STALE,    /* outside [oldest unacknowledged, newest sent]: a ghost, dropped */
    PSC_RESPONSE_RESERVED, /* reserved syndrome: ignored */
    PSC_RESPONSE_FATAL,    /* NAK 61, 62 or 63: this QP is lost */
};
enum psc_response psc_requester_response(struct psc_requester *requester, uint32_t psn, uint8_t syndrome,
                                         uint64_t now_ns);

/* Every packet of the message with this tag has been sent at least once (or it is not in the ring: false). */
bool psc_requester_sent(const struct psc_requester *requester, uint64_t tag);
/* The peer has shown by other means that it holds this message: as good as an ACK of its last packet. What
 * was not sent it cannot hold: then nothing happens. */
void psc_requester_acked_through(struct psc_requester *requester, uint64_t tag, uint64_t now_ns);

/* Takes the oldest message off the ring if it is wholly acknowledged; call until false after any
 * acknowledgement. */
bool psc_requester_pop(struct psc_requester *requester, uint64_t *tag);

/* Judge the timers. */
enum psc_expiry {
    PSC_EXPIRY_NONE,
    PSC_EXPIRY_RESUME,    /* the receiver-not-ready wait is over: sending may go on */
    PSC_EXPIRY_TIMEOUT,   /* rewound to the oldest unacknowledged packet */
    PSC_EXPIRY_EXHAUSTED, /* the peer does not answer */
};
/* When to judge them next, by what stands now; something is unacknowledged. May be in the past. */
uint64_t psc_requester_due_ns(const struct psc_requester *requester);
enum psc_expiry psc_requester_expire(struct psc_requester *requester, uint64_t now_ns);

#endif
