/* core/: what is due. Two clocks (progress: a fault; waiting: an event), the ACK timers, neighbours, and jobs
 * that wait for the last borrowed payload. Judged a few times per retransmission time-out, not in every turn.
 */
#include "psc_lane_state.h"

/* More than an RX ring holds: after a pause so many frames may have waited, with the ACKs among them. */
#define CATCH_UP_FRAMES 16384u

void psc_start_turn(struct psc_lane *lane, uint64_t now_ns)
{
    if (now_ns - lane->turn_ns > lane->config.retransmit_ns) { /* not run: every timer looks expired */
        if (lane->catching_up_frames == 0)
            lane->catch_up_end_ns = now_ns + lane->config.progress_ns / 4;
        lane->catching_up_frames = CATCH_UP_FRAMES;
    }
    lane->turn_ns = lane->now_ns = now_ns;
}

static void judge_requester(struct psc_lane *lane, struct psc_qp *qp)
{
    switch (psc_requester_expire(&qp->requester, lane->now_ns)) {
    case PSC_EXPIRY_NONE:
        break;
    case PSC_EXPIRY_TIMEOUT:
        PSC_COUNT(lane->stats->timeouts, 1);
        psc_want_to_send(lane, qp);
        break;
    case PSC_EXPIRY_RESUME:
        psc_want_to_send(lane, qp);
        break;
    case PSC_EXPIRY_EXHAUSTED: {
        const struct psc_refusal why = {.fault = PSC_FAULT_RETRY_EXCEEDED,
                                        .expected = lane->config.retries,
                                        .got = qp->requester.timeouts};
        psc_fault_job(lane, qp, qp->pool->pool.ledger[qp->spec.rank].acknowledged_rounds, &why);
        break;
    }
    }
}

static void judge_responder(struct psc_lane *lane, const struct psc_qp *qp)
{
    const struct psc_responder *responder = &qp->responder;

    if (!responder->in_message || lane->now_ns - qp->request_ns < lane->config.progress_ns)
        return;
    const struct psc_refusal why = {.fault = PSC_FAULT_STALLED_MESSAGE,
                                    .expected = responder->length_bytes,
                                    .got = responder->length_bytes - responder->residual_bytes};
    psc_fault_job(lane, qp, qp->pool->pool.ledger[qp->spec.rank].begun_rounds - 1, &why);
}

static uint64_t later(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

/* A live rank that has not begun a round is named, again and again while the round waits for it: whoever must
 * decide when that is too long hears that it goes on, and an event that was lost is made up for. It is not a
 * fault. */
static void judge_waiting(struct psc_lane *lane, struct psc_job_pool *pool)
{
    uint32_t round = pool->pool.completed_rounds;
    struct psc_result *result = &pool->results[psc_pool_slot_index(&pool->pool, round)];

    if (!psc_pool_find(&pool->pool, round))
        return;
    uint64_t since_ns = later(result->told_ns, later(result->begun_ns, pool->completed_ns));
    uint64_t missing = psc_pool_missing(&pool->pool, round);
    if (!missing || lane->now_ns - since_ns < lane->config.waiting_event_ns)
        return;
    struct psc_event event = psc_event_of(PSC_EVENT_WAITING, pool->job);
    event.pool = pool->index;
    event.round = round;
    event.ranks = missing;
    psc_event_push(lane, &event);
    result->told_ns = lane->now_ns;
}

static void judge_job(struct psc_lane *lane, struct psc_job *job)
{
    for (uint32_t i = 0; i < job->spec.pool_count; i++) {
        for (uint32_t rank = 0; rank < job->spec.world_size; rank++) {
            struct psc_qp *qp = &job->pools[i].qps[rank];
            if (qp->state == PSC_QP_RTS)
                judge_requester(lane, qp);
            if (qp->state == PSC_QP_RTS && job->state == PSC_JOB_RUNNING)
                judge_responder(lane, qp);
        }
        if (job->state == PSC_JOB_RUNNING)
            judge_waiting(lane, &job->pools[i]);
    }
}

void psc_judge_clocks(struct psc_lane *lane, uint32_t received, struct psc_outbox *out)
{
    /* After a pause the answers that a timer waits for may stand in the RX ring: read it empty first. Where
     * pause follows pause, the clocks are judged all the same, if late. */
    if (received > 0 && lane->catching_up_frames > received && lane->now_ns < lane->catch_up_end_ns) {
        lane->catching_up_frames -= received;
        return;
    }
    lane->catching_up_frames = 0;
    if (lane->now_ns < lane->sweep_ns)
        return;
    lane->sweep_ns = lane->now_ns + lane->config.retransmit_ns / 4;
    psc_neighbours_ask(lane, out);
    for (struct psc_job *job = lane->jobs; job; job = job->next)
        if (job->state == PSC_JOB_RUNNING || job->state == PSC_JOB_ENDING)
            judge_job(lane, job);
    psc_detach_when_unheld(lane);
}
