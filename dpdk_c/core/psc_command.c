/* core/: commands of the control core: a job comes, its QPs are connected, ranks leave, the job goes. */
#include "psc_lane_state.h"

static bool attach(struct psc_lane *lane, struct psc_job *job)
{
    if (job->state != PSC_JOB_NEW)
        return false;
    job->state = PSC_JOB_RUNNING;
    job->next = lane->jobs;
    lane->jobs = job;
    for (uint32_t i = 0; i < job->spec.pool_count; i++)
        lane->stats->slots += 2 * job->spec.pools[i].window;
    return true;
}

/* RESET -> INIT: both state machines as the two ends have agreed them. */
static void init_qp(const struct psc_lane *lane, struct psc_qp *qp, const struct psc_qp_spec *spec)
{
    const struct psc_job_spec *job = &qp->job->spec;

    qp->state = PSC_QP_INIT;
    qp->spec = *spec;
    qp->given_rounds = spec->received;
    qp->probe_received = qp->cnp_owed = false;
    qp->flow = (struct psc_flow){.src_mac = lane->config.local.mac,
                                 .src = lane->config.local.ip,
                                 .dst = spec->peer,
                                 .vlan = lane->config.local.vlan,
                                 .udp_port = spec->udp_port,
                                 .dscp = lane->config.dscp,
                                 .dest_qpn = spec->peer_qpn};
    qp->middle.header_bytes = 0;
    qp->foresight = (struct psc_foresight){.next_psn = spec->peer_start_psn};
    psc_responder_init(&qp->responder, job->mtu, spec->peer_start_psn);
    psc_requester_init(&qp->requester, &lane->requester_config, qp->requester.ring, qp->requester.ring_size,
                       spec->start_psn);
}

static bool connect_qp(struct psc_lane *lane, struct psc_job *job, const struct psc_qp_spec *spec)
{
    uint32_t index = (spec->qpn >> PSC_LANE_BITS) & (PSC_LANE_QPS - 1);
    bool ours = (spec->qpn & ((1u << PSC_LANE_BITS) - 1)) == lane->config.lane && spec->qpn <= PSC_QPN_MASK;
    bool one_family = psc_ip_is_v4(&spec->peer) == psc_ip_is_v4(&lane->config.local.ip);

    if ((job->state != PSC_JOB_RUNNING && job->state != PSC_JOB_ENDING) || !one_family || !ours ||
        lane->qps[index] || spec->pool >= job->spec.pool_count || spec->rank >= job->spec.world_size ||
        (job->left_ranks >> spec->rank & 1))
        return false;
    struct psc_job_pool *pool = &job->pools[spec->pool];
    struct psc_qp *qp = &pool->qps[spec->rank];
    if (qp->state != PSC_QP_RESET || !psc_pool_received_ok(&pool->pool, spec->rank, spec->received))
        return false;
    init_qp(lane, qp, spec);
    lane->qps[index] = qp;
    lane->stats->qps++;
    psc_neighbour_connect(lane, qp);
    psc_pool_acknowledge(&pool->pool, spec->rank, spec->received);
    psc_answer_leavers(lane, job);
    psc_answer_end(lane, job);
    return true;
}

/* A round that the leaving rank is in the middle of, or that another rank has begun and it has not, can never
 * be complete. */
static void fault_if_waited_for(struct psc_lane *lane, struct psc_job *job, uint32_t rank)
{
    for (uint32_t i = 0; i < job->spec.pool_count; i++) {
        struct psc_qp *qp = &job->pools[i].qps[rank];
        bool in_message = qp->state == PSC_QP_RTS && qp->responder.in_message;
        uint32_t round = qp->pool->pool.ledger[rank].begun_rounds - in_message;
        if (!psc_pool_find(&qp->pool->pool, round))
            continue;
        const struct psc_refusal why = {.fault = PSC_FAULT_RANK_LEFT, .expected = round, .got = round};
        psc_fault_job(lane, qp, round, &why);
    }
}

/* What the leaving rank has. Where its QP is not connected in this epoch, or has not been probed, nothing can
 * be delivered to it any more: it has drained what it wanted. */
static void settle_leaver(struct psc_lane *lane, struct psc_qp *qp, uint32_t received)
{
    struct psc_pool *pool = &qp->pool->pool;

    if (qp->state == PSC_QP_RTS && !psc_lacks_results(qp)) {
        psc_requester_acked_through(&qp->requester, received - 1, lane->now_ns);
        psc_settle_acknowledged(lane, qp);
    } else {
        psc_pool_acknowledge(pool, qp->spec.rank, pool->completed_rounds);
    }
}

/* The rank's QPs execute nothing new, but repeat ACKs and results until everybody has every result (rule 7).
 */
static bool leave(struct psc_lane *lane, struct psc_job *job, uint32_t rank, const uint32_t *received)
{
    if (!psc_job_attached(job) || rank >= job->spec.world_size || job->left_ranks >> rank & 1)
        return false;
    uint64_t rank_bit = UINT64_C(1) << rank;
    job->left_ranks |= rank_bit;
    job->leaving_ranks |= rank_bit;
    fault_if_waited_for(lane, job, rank); /* first: what cannot be completed is no good leave */
    for (uint32_t i = 0; i < job->spec.pool_count; i++)
        settle_leaver(lane, &job->pools[i].qps[rank], received[i]);
    psc_answer_leavers(lane, job);
    psc_answer_end(lane, job);
    return true;
}

void psc_answer_leavers(struct psc_lane *lane, struct psc_job *job)
{
    if (!job->leaving_ranks || job->state != PSC_JOB_RUNNING)
        return;
    for (uint32_t i = 0; i < job->spec.pool_count; i++)
        if (!psc_pool_delivered(&job->pools[i].pool))
            return;
    for (uint32_t rank = 0; rank < job->spec.world_size; rank++) {
        if (!(job->leaving_ranks >> rank & 1))
            continue;
        struct psc_event event = psc_event_of(PSC_EVENT_LEFT, job);
        event.rank = rank;
        psc_event_push(lane, &event);
    }
    job->leaving_ranks = 0;
}

static void remove_from_set(struct psc_qp_set *set, const struct psc_job *job)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < set->count; i++)
        if (set->qps[i]->job != job)
            set->qps[kept++] = set->qps[i];
    set->count = kept;
}

/* From here on they are in quarantine with the control core. */
void psc_forget_qps(struct psc_lane *lane, struct psc_job *job, enum psc_qp_state state)
{
    for (uint32_t i = 0; i < PSC_LANE_QPS; i++) {
        struct psc_qp *qp = lane->qps[i];
        if (!qp || qp->job != job)
            continue;
        psc_neighbour_release(qp);
        lane->qps[i] = NULL;
        lane->stats->qps--;
    }
    remove_from_set(&lane->repliers, job);
    remove_from_set(&lane->senders, job);
    for (uint32_t i = 0; i < job->spec.pool_count; i++) {
        for (uint32_t rank = 0; rank < job->spec.world_size; rank++) {
            struct psc_qp *qp = &job->pools[i].qps[rank];
            psc_untime_qp(qp);
            qp->state = state;
            qp->replying = qp->sending = false;
        }
    }
}

static bool detach(struct psc_lane *lane, struct psc_job *job)
{
    if (!psc_job_attached(job))
        return false;
    /* Not everyone has left, so the control core ends it: a lost connection, a straggler, a stop. */
    if (job->state == PSC_JOB_RUNNING && __builtin_popcountll(job->left_ranks) < (int)job->spec.world_size)
        psc_count_fault(job);
    job->state = PSC_JOB_DETACHING;
    psc_forget_qps(lane, job, PSC_QP_ERR);
    lane->sweep_ns = 0;
    return true;
}

static bool held(const struct psc_job *job)
{
    for (uint32_t i = 0; i < job->spec.pool_count; i++)
        for (uint32_t slot = 0; slot < 2 * job->spec.pools[i].window; slot++)
            if (job->pools[i].results[slot].hold.count > 0)
                return true;
    return false;
}

void psc_detach_when_unheld(struct psc_lane *lane)
{
    for (struct psc_job **link = &lane->jobs; *link;) {
        struct psc_job *job = *link;
        if (job->state != PSC_JOB_DETACHING || held(job)) {
            link = &job->next;
            continue;
        }
        *link = job->next;
        for (uint32_t i = 0; i < job->spec.pool_count; i++)
            lane->stats->slots -= 2 * job->spec.pools[i].window;
        struct psc_event event = psc_event_of(PSC_EVENT_DETACHED, job);
        psc_event_push(lane, &event);
    }
}

/* The command has crossed FAULT or ENDED on its way: no mistake of the control core. */
static bool answered_already(const struct psc_job *job)
{
    return job->state == PSC_JOB_HALTED || job->state == PSC_JOB_ENDED;
}

bool psc_lane_apply(struct psc_lane *lane, const struct psc_command *command, uint64_t now_ns)
{
    lane->now_ns = now_ns;
    switch (command->kind) {
    case PSC_CMD_ATTACH:
        return attach(lane, command->job);
    case PSC_CMD_CONNECT:
        return answered_already(command->job) || connect_qp(lane, command->job, &command->qp);
    case PSC_CMD_HALT:
        return psc_job_halt(lane, command->job, command->rank, command->fault);
    case PSC_CMD_RESUME:
        return psc_job_resume(lane, command->job);
    case PSC_CMD_END:
        return psc_job_end(lane, command->job, command->ranks);
    case PSC_CMD_LEAVE:
        return leave(lane, command->job, command->rank, command->received);
    case PSC_CMD_DETACH:
        return detach(lane, command->job);
    case PSC_CMD_FREEZE:
        return psc_job_freeze(lane, command->job);
    }
    return false;
}
