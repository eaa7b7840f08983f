/* core/: what is due. Two clocks (progress: a fault; waiting: an event), the ACK timers, neighbours, and jobs
 * that wait for the last borrowed payload. QPs that wait for something stand in a coarse wheel, so that a
 * turn costs nothing for those that do not; the rest is looked at a few times per time-out, not in every
 * turn. */
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

static uint64_t earlier(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
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
    if (lane->now_ns - since_ns < lane->config.waiting_event_ns)
        return;
    uint64_t missing = psc_pool_missing(&pool->pool, round);
    if (!missing)
        return;
    struct psc_event event = psc_event_of(PSC_EVENT_WAITING, pool->job);
    event.pool = pool->index;
    event.round = round;
    event.ranks = missing;
    psc_event_push(lane, &event);
    result->told_ns = lane->now_ns;
}

static bool timed_as_requester(const struct psc_qp *qp)
{
    return qp->state == PSC_QP_RTS &&
           (qp->job->state == PSC_JOB_RUNNING || qp->job->state == PSC_JOB_ENDING) &&
           qp->requester.unacked_psn != qp->requester.ready_psn;
}

static bool timed_as_responder(const struct psc_qp *qp)
{
    return qp->state == PSC_QP_RTS && qp->job->state == PSC_JOB_RUNNING && qp->responder.in_message;
}

/* ---- The wheel ---- */

void psc_untime_qp(struct psc_qp *qp)
{
    if (!qp->timer_link)
        return;
    *qp->timer_link = qp->timer_next;
    if (qp->timer_next)
        qp->timer_next->timer_link = qp->timer_link;
    qp->timer_link = NULL;
}

/* In the first tick that begins at `due_ns` or later, and has not been looked at. */
static void put_in_wheel(struct psc_wheel *wheel, struct psc_qp *qp, uint64_t due_ns)
{
    uint64_t tick = later((due_ns + wheel->tick_ns - 1) / wheel->tick_ns, wheel->tick);
    struct psc_qp **link = &wheel->ticks[tick % PSC_LANE_TICKS];

    qp->timer_next = *link;
    qp->timer_link = link;
    if (*link)
        (*link)->timer_link = &qp->timer_next;
    *link = qp;
}

void psc_time_qp(struct psc_lane *lane, struct psc_qp *qp)
{
    uint64_t due_ns = lane->now_ns + lane->config.retransmit_ns;

    psc_untime_qp(qp);
    if (!timed_as_requester(qp) && !timed_as_responder(qp))
        return;
    if (timed_as_requester(qp))
        due_ns = earlier(due_ns, psc_requester_due_ns(&qp->requester));
    if (timed_as_responder(qp))
        due_ns = earlier(due_ns, qp->request_ns + lane->config.progress_ns);
    put_in_wheel(&lane->wheel, qp, due_ns);
}

static void judge_qp(struct psc_lane *lane, struct psc_qp *qp)
{
    if (timed_as_requester(qp))
        judge_requester(lane, qp);
    if (timed_as_responder(qp))
        judge_responder(lane, qp);
    psc_time_qp(lane, qp);
}

/* A lane that was paused looks at each place of the ring once, whatever has passed. */
static void judge_qps(struct psc_lane *lane)
{
    struct psc_wheel *wheel = &lane->wheel;
    uint64_t now = lane->now_ns / wheel->tick_ns;

    if (now < wheel->tick)
        return;
    uint64_t first = now - wheel->tick < PSC_LANE_TICKS ? wheel->tick : now - PSC_LANE_TICKS + 1;
    wheel->tick = now + 1; /* whoever is put back goes behind what is looked at now */
    for (uint64_t tick = first; tick <= now; tick++) {
        struct psc_qp *qp = wheel->ticks[tick % PSC_LANE_TICKS], *next;
        for (; qp; qp = next) {
            next = qp->timer_next;
            judge_qp(lane, qp);
        }
    }
}

/* ---- What is not of one QP ---- */

static void judge_pools(struct psc_lane *lane)
{
    for (struct psc_job *job = lane->jobs; job; job = job->next)
        for (uint32_t i = 0; job->state == PSC_JOB_RUNNING && i < job->spec.pool_count; i++)
            judge_waiting(lane, &job->pools[i]);
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
    judge_qps(lane);
    if (lane->now_ns < lane->sweep_ns)
        return;
    lane->sweep_ns = lane->now_ns + lane->config.retransmit_ns / 4;
    psc_neighbours_ask(lane, out);
    judge_pools(lane);
    psc_detach_when_unheld(lane);
}
