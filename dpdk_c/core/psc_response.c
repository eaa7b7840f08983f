/* core/: an ACK or NAK of a worker, and what it settles. */
#include "psc_lane_state.h"

static void note_probe(struct psc_lane *lane, struct psc_qp *qp)
{
    struct psc_event event = psc_event_of(PSC_EVENT_PROBED, qp->job);

    event.pool = qp->spec.pool;
    event.rank = qp->spec.rank;
    psc_event_push(lane, &event);
}

void psc_settle_acknowledged(struct psc_lane *lane, struct psc_qp *qp)
{
    uint64_t tag;

    while (psc_requester_pop(&qp->requester, &tag)) {
        psc_want_to_send(lane, qp); /* the window may have opened */
        if (tag == PSC_TAG_PROBE)
            note_probe(lane, qp);
        else
            psc_pool_acknowledge(&qp->pool->pool, qp->spec.rank, (uint32_t)tag + 1);
    }
    psc_answer_leavers(lane, qp->job);
    psc_answer_end(lane, qp->job);
}

static void refused_by_worker(struct psc_lane *lane, struct psc_qp *qp, uint8_t syndrome)
{
    const struct psc_refusal why = {
        .fault = PSC_FAULT_NAK_RECEIVED, .expected = PSC_SYNDROME_ACK, .got = syndrome};

    psc_fault_job(lane, qp, qp->pool->pool.ledger[qp->spec.rank].acknowledged_rounds, &why);
}

/* Stale ones too; a reserved syndrome is neither. */
static void count_received(struct psc_lane *lane, uint8_t syndrome)
{
    if (syndrome <= PSC_SYNDROME_ACK)
        PSC_COUNT(lane->stats->acks_received, 1);
    else
        PSC_COUNT(lane->stats->naks_received, 1);
}

enum psc_drop psc_receive_response(struct psc_lane *lane, struct psc_qp *qp, const struct psc_packet *packet)
{
    if (packet->opcode != PSC_RC_ACK) /* an answer to a READ or an ATOMIC, which we never ask */
        return PSC_DROP_OPCODE;
    enum psc_response response =
        psc_requester_response(&qp->requester, packet->psn, packet->syndrome, lane->now_ns);
    if (response != PSC_RESPONSE_RESERVED)
        count_received(lane, packet->syndrome);
    switch (response) {
    case PSC_RESPONSE_TAKEN:
        break;
    case PSC_RESPONSE_STALE:
        return PSC_DROP_STALE_ACK;
    case PSC_RESPONSE_RESERVED:
        return PSC_DROP_RESERVED_SYNDROME;
    case PSC_RESPONSE_FATAL:
        refused_by_worker(lane, qp, packet->syndrome);
        return PSC_DROP_NONE;
    }
    psc_settle_acknowledged(lane, qp);
    if (qp->requester.rnr_until_ns != 0) /* may be sooner than what it waited for */
        psc_time_qp(lane, qp);
    psc_want_to_send(lane, qp); /* part of a message may be acknowledged, or the cursor gone back */
    return PSC_DROP_NONE;
}
