/* qp/: the responder. Each check is one rule of the RC responder; the chain of them is in core/psc_request.c.
 * The checks change nothing: state changes where a PSN is placed and in the outcomes at the end. */
#include "psc_responder.h"

#include "psc_psn.h"

void psc_responder_init(struct psc_responder *responder, uint32_t mtu_bytes, uint32_t expected_psn)
{
    *responder = (struct psc_responder){.mtu_bytes = mtu_bytes, .expected_psn = expected_psn};
}

static void owe(struct psc_responder *responder, enum psc_reply reply)
{
    if (reply > responder->owed)
        responder->owed = reply;
}

enum psc_place psc_responder_place(struct psc_responder *responder, uint32_t psn)
{
    int32_t distance = psc_psn_distance(psn, responder->expected_psn);

    if (distance < 0) {
        /* The peer missed our ACK. Executing it again would add twice. */
        owe(responder, PSC_REPLY_ACK);
        return PSC_PLACE_PAST;
    }
    if (distance > 0) {
        if (!responder->nak_sent)
            owe(responder, PSC_REPLY_NAK_SEQUENCE);
        return PSC_PLACE_FUTURE;
    }
    return PSC_PLACE_IN_ORDER;
}

bool psc_responder_sequence_ok(const struct psc_responder *responder, const struct psc_packet *packet,
                               struct psc_refusal *refusal)
{
    bool begins = packet->row->flags & PSC_OPF_FIRST;

    if (begins == !responder->in_message)
        return true;
    return psc_refuse(refusal, PSC_FAULT_INVALID_REQUEST,
                      responder->in_message ? PSC_RC_WRITE_MIDDLE : PSC_RC_WRITE_FIRST, packet->opcode);
}

bool psc_responder_operation_ok(const struct psc_packet *packet, struct psc_refusal *refusal)
{
    if (packet->row->flags & PSC_OPF_WRITE)
        return true;
    return psc_refuse(refusal, PSC_FAULT_INVALID_REQUEST, PSC_RC_WRITE_FIRST, packet->opcode);
}

/* A FIRST leaves at least one byte for its LAST; an ONLY is whole. */
static bool first_lengths_ok(const struct psc_responder *responder, const struct psc_packet *packet,
                             struct psc_refusal *refusal)
{
    bool only = packet->row->flags & PSC_OPF_LAST;

    if (only ? packet->dma_len > responder->mtu_bytes : packet->dma_len <= responder->mtu_bytes)
        return psc_refuse(refusal, PSC_FAULT_INVALID_REQUEST, responder->mtu_bytes, packet->dma_len);
    uint32_t due_bytes = only ? packet->dma_len : responder->mtu_bytes;
    if (packet->payload_bytes != due_bytes)
        return psc_refuse(refusal, PSC_FAULT_INVALID_REQUEST, due_bytes, packet->payload_bytes);
    return true;
}

/* LAST carries exactly the residual. rxe accepts an early full-MTU LAST; a sum must not: its tail would be
 * missing. */
static bool later_lengths_ok(const struct psc_responder *responder, const struct psc_packet *packet,
                             struct psc_refusal *refusal)
{
    bool last = packet->row->flags & PSC_OPF_LAST;
    bool last_due = responder->residual_bytes <= responder->mtu_bytes;
    uint32_t due_bytes = last_due ? responder->residual_bytes : responder->mtu_bytes;

    if (last != last_due || packet->payload_bytes != due_bytes)
        return psc_refuse(refusal, PSC_FAULT_INVALID_REQUEST, due_bytes, packet->payload_bytes);
    return true;
}

bool psc_responder_lengths_ok(const struct psc_responder *responder, const struct psc_packet *packet,
                              struct psc_refusal *refusal)
{
    return (packet->row->flags & PSC_OPF_FIRST) ? first_lengths_ok(responder, packet, refusal)
                                                : later_lengths_ok(responder, packet, refusal);
}

uint32_t psc_responder_offset_bytes(const struct psc_responder *responder, const struct psc_packet *packet)
{
    if (packet->row->flags & PSC_OPF_FIRST)
        return 0;
    return responder->length_bytes - responder->residual_bytes;
}

void psc_responder_executed(struct psc_responder *responder, const struct psc_packet *packet)
{
    uint16_t flags = packet->row->flags;

    if (flags & PSC_OPF_FIRST)
        responder->length_bytes = responder->residual_bytes = packet->dma_len;
    responder->residual_bytes -= packet->payload_bytes;
    responder->in_message = !(flags & PSC_OPF_LAST);
    if (flags & PSC_OPF_LAST)
        responder->msn = psc_psn_add(responder->msn, 1);
    responder->expected_psn = psc_psn_add(responder->expected_psn, 1);
    responder->nak_sent = false;
    if (responder->owed == PSC_REPLY_NAK_SEQUENCE) /* the gap closed before the NAK could leave */
        responder->owed = PSC_REPLY_ACK;
    if (packet->ack_req)
        owe(responder, PSC_REPLY_ACK);
}

void psc_responder_refused(struct psc_responder *responder, enum psc_fault fault)
{
    responder->fatal_syndrome =
        fault == PSC_FAULT_REMOTE_ACCESS ? PSC_SYNDROME_NAK_ACCESS : PSC_SYNDROME_NAK_INVALID;
    owe(responder, PSC_REPLY_NAK_FATAL);
}

void psc_responder_postponed(struct psc_responder *responder)
{
    /* A NAK 60 for the packets behind it would make the peer come back at once, again and again, and spend
     * its few retries within a millisecond on something that is our doing. */
    responder->nak_sent = true;
    if (responder->owed == PSC_REPLY_NAK_SEQUENCE)
        responder->owed = PSC_REPLY_ACK;
}

enum psc_reply psc_responder_take_reply(struct psc_responder *responder, struct psc_header *header)
{
    enum psc_reply reply = responder->owed;
    uint32_t expected_psn = responder->expected_psn;

    *header = (struct psc_header){.opcode = PSC_RC_ACK, .psn = expected_psn, .msn = responder->msn};
    switch (reply) {
    case PSC_REPLY_NONE:
        break;
    case PSC_REPLY_ACK:
        header->psn = psc_psn_add(expected_psn, PSC_PSN_MASK); /* expected - 1 */
        header->syndrome = PSC_SYNDROME_ACK;
        break;
    case PSC_REPLY_NAK_SEQUENCE:
        header->syndrome = PSC_SYNDROME_NAK_SEQUENCE;
        responder->nak_sent = true;
        break;
    case PSC_REPLY_NAK_FATAL: /* the refused packet was the expected one */
        header->syndrome = responder->fatal_syndrome;
        break;
    }
    responder->owed = PSC_REPLY_NONE;
    return reply;
}
