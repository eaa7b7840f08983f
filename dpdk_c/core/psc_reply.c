/* core/: what a lane says besides results: ACK, NAK and CNP, one of each per QP and burst; answers to ARP,
 * neighbour discovery and ping. */
#include "psc_lane_state.h"

void psc_want_to_reply(struct psc_lane *lane, struct psc_qp *qp)
{
    if (qp->replying || (qp->responder.owed == PSC_REPLY_NONE && !qp->cnp_owed))
        return;
    qp->replying = true;
    lane->repliers.qps[lane->repliers.count++] = qp;
}

static void emit_control(const struct psc_qp *qp, const struct psc_header *header, struct psc_outbox *out)
{
    struct psc_emit *emit = psc_outbox_take(out);
    uint32_t crc;

    emit->header_bytes = psc_build(&qp->flow, header, 0, emit->header, &crc);
    psc_icrc_finish(crc, emit->trailer);
    emit->trailer_bytes = sizeof(emit->trailer);
}

static void send_acknowledgement(struct psc_lane *lane, struct psc_qp *qp, struct psc_outbox *out)
{
    struct psc_header header;

    if (psc_responder_take_reply(&qp->responder, &header) == PSC_REPLY_ACK)
        PSC_COUNT(lane->stats->acks_sent, 1);
    else
        PSC_COUNT(lane->stats->naks_sent, 1);
    emit_control(qp, &header, out);
}

static void send_cnp(struct psc_lane *lane, struct psc_qp *qp, struct psc_outbox *out)
{
    const struct psc_header header = {.opcode = PSC_CNP};

    qp->cnp_owed = false;
    qp->cnp_ns = lane->now_ns;
    PSC_COUNT(lane->stats->cnps_sent, 1);
    emit_control(qp, &header, out);
}

/* After a fault nothing leaves but the one NAK that tells the offender. */
static void forget_unless_fatal(struct psc_qp *qp)
{
    qp->cnp_owed = false;
    if (qp->responder.owed != PSC_REPLY_NAK_FATAL)
        qp->responder.owed = PSC_REPLY_NONE;
}

void psc_send_replies(struct psc_lane *lane, struct psc_outbox *out)
{
    struct psc_qp_set *repliers = &lane->repliers;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < repliers->count; i++) {
        struct psc_qp *qp = repliers->qps[i];
        if (qp->state != PSC_QP_RTS)
            forget_unless_fatal(qp);
        if (qp->responder.owed != PSC_REPLY_NONE && !psc_outbox_full(out))
            send_acknowledgement(lane, qp, out);
        if (qp->cnp_owed && !psc_outbox_full(out))
            send_cnp(lane, qp, out);
        qp->replying = qp->responder.owed != PSC_REPLY_NONE || qp->cnp_owed;
        if (qp->replying) /* no room: the next turn */
            repliers->qps[kept++] = qp;
    }
    repliers->count = kept;
}

struct psc_answer *psc_answer_find(struct psc_lane *lane)
{
    for (uint32_t i = 0; i < PSC_LANE_ANSWERS; i++)
        if (lane->answers[i].hold.count == 0)
            return &lane->answers[i];
    return NULL;
}

void psc_answer_emit(struct psc_answer *answer, uint32_t bytes, struct psc_outbox *out)
{
    struct psc_emit *emit = psc_outbox_take(out);

    emit->payload = answer->data;
    emit->payload_bytes = bytes;
    emit->hold = &answer->hold;
    emit->hold->count++;
}

enum psc_drop psc_answer_host(struct psc_lane *lane, const struct psc_frame *frame, struct psc_outbox *out)
{
    struct psc_answer *answer = psc_answer_find(lane);

    if (frame->bytes > PSC_ANSWER_BYTES)
        return PSC_DROP_NO_BUFFER;
    uint32_t bytes = psc_host_answer(frame->data, frame->bytes, &lane->config.local,
                                     answer ? answer->data : lane->unsent_answer);
    if (bytes == 0) /* for somebody else, say: nothing is lost */
        return PSC_DROP_NONE;
    if (!answer || psc_outbox_full(out))
        return PSC_DROP_NO_BUFFER;
    psc_answer_emit(answer, bytes, out);
    return PSC_DROP_NONE;
}
