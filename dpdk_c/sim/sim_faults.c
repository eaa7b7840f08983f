/* sim/: the faults that strike once. Each is a few lines: what it does to whom, and what may be expected of
 * them afterwards. */
#include "sim.h"

#define CONNECTION_DEAD_NS (2 * SIM_SECOND) /* heartbeats missing so long end a control connection */

static void cut_if_dead(struct sim *sim, void *subject, uint64_t life)
{
    struct sim_worker *worker = subject;

    if (life != worker->job->life)
        return;
    bool dead = sim_network_hole(sim, &worker->to_appliance) ||
                sim_network_hole(sim, &worker->from_appliance) || sim->now_ns < worker->frozen_until_ns ||
                sim->now_ns < sim->appliance.paused_until_ns || !sim->appliance.lane;
    if (dead)
        sim_wire_cut(sim, worker, true, true);
}

static void disturb(uint64_t *until_ns, uint64_t end_ns)
{
    if (*until_ns < end_ns)
        *until_ns = end_ns;
}

static void expect_cut(struct sim *sim, struct sim_worker *worker, uint64_t duration_ns)
{
    worker->cut_off = true;
    if (duration_ns >= CONNECTION_DEAD_NS)
        sim_after(sim, CONNECTION_DEAD_NS, cut_if_dead, worker, worker->job->life);
}

static void expect_all_cut(struct sim *sim, uint64_t duration_ns)
{
    for (uint32_t j = 0; j < sim->plan.jobs; j++)
        for (uint32_t rank = 0; rank < sim->plan.job[j].ranks; rank++)
            expect_cut(sim, &sim->jobs[j].workers[rank], duration_ns);
}

static uint64_t until(const struct sim *sim, uint64_t duration_ns)
{
    return duration_ns == SIM_FOREVER ? SIM_FOREVER : sim->now_ns + duration_ns;
}

/* A new process of the rank, started before the appliance has noticed that the old one is gone. */
static void join_again(struct sim *sim, void *subject, uint64_t life)
{
    struct sim_worker *worker = subject;

    if (life == worker->job->life)
        sim_wire_ask(sim, worker, SIM_ASK_AGAIN);
}

static bool strike_worker(struct sim *sim, struct sim_worker *worker, const struct sim_strike *strike)
{
    struct sim_link *link = sim_network_link(worker, strike->choice & 1);

    switch (strike->trouble) {
    case SIM_HOLE:
        link->hole_from_ns = sim->now_ns;
        link->hole_to_ns = until(sim, strike->duration_ns);
        disturb(&worker->disturbed_until_ns, link->hole_to_ns);
        expect_cut(sim, worker, strike->duration_ns);
        return true;
    case SIM_KILL:
        if (!sim_worker_lives(worker))
            return false;
        sim_worker_end(sim, worker, SIM_ABSENT, 0);
        if (strike->choice & 1)
            sim_wire_cut(sim, worker, true, false); /* its kernel closes the connection */
        else
            sim_after(sim, sim_up_to(sim, 100 * SIM_MS), join_again, worker, worker->job->life);
        return true;
    case SIM_PAUSE:
        worker->paused_until_ns = until(sim, strike->duration_ns);
        disturb(&worker->disturbed_until_ns, worker->paused_until_ns);
        return true;
    case SIM_BREAK: /* one in five is not noticed at once: the lane finds out, or the process in the end */
        return sim_nic_break(sim, worker, strike->choice & 1,
                             strike->choice >= 8 ? strike->duration_ns % (700 * SIM_MS) : 0);
    default: /* SIM_FREEZE */
        worker->frozen_until_ns = until(sim, strike->duration_ns);
        disturb(&worker->disturbed_until_ns, worker->frozen_until_ns);
        expect_cut(sim, worker, strike->duration_ns);
        return true;
    }
}

/* What a process does of its own will, so only while it runs. */
static bool strike_process(struct sim *sim, struct sim_worker *worker, const struct sim_strike *strike)
{
    struct sim_job *job = worker->job;
    uint32_t pool = strike->choice & 1, round = worker->queues[pool].posted;

    if (worker->standing != SIM_RUNNING || job->mismatched || worker->wants_to_leave)
        return false;
    if (strike->trouble == SIM_LEAVE) {
        worker->wants_to_leave = job->left_early = true;
        worker->abrupt = strike->choice & 1;
        sim_worker_step_soon(sim, worker, 0);
        return true;
    }
    if (job->plan->ranks < 2 || round == job->plan->pools[pool].rounds)
        return false;
    job->mismatched = true;
    job->mismatch_rank = worker->rank;
    job->mismatch_pool = pool;
    job->mismatch_round = round;
    job->mismatch_kind = strike->choice / 2;
    return true;
}

static bool strike_appliance(struct sim *sim, const struct sim_strike *strike)
{
    struct sim_appliance *appliance = &sim->appliance;
    uint64_t end_ns = until(sim, strike->duration_ns);

    if (!appliance->lane)
        return false;
    disturb(&appliance->disturbed_until_ns, end_ns);
    switch (strike->trouble) {
    case SIM_APPLIANCE_KILL:
        sim_appliance_kill(sim);
        expect_all_cut(sim, SIM_FOREVER);
        for (uint32_t j = 0; j < sim->plan.jobs && (strike->choice & 1); j++) /* its kernel closes them */
            for (uint32_t rank = 0; rank < sim->plan.job[j].ranks; rank++)
                sim_wire_cut(sim, &sim->jobs[j].workers[rank], false, true);
        break;
    case SIM_APPLIANCE_PAUSE:
        appliance->paused_until_ns = end_ns;
        appliance->poll_ns = 0;
        sim_appliance_wake(sim, end_ns);
        expect_all_cut(sim, strike->duration_ns);
        break;
    case SIM_CLOCK_JUMP:
        appliance->skew_ns += strike->duration_ns;
        break;
    case SIM_STALL:
        appliance->stalled_until_ns = end_ns;
        break;
    case SIM_LAG:
        appliance->lagging_until_ns = end_ns;
        break;
    default: /* SIM_OVERFLOW */
        appliance->short_until_ns = end_ns;
        break;
    }
    return true;
}

static void strike(struct sim *sim, void *subject, uint64_t number)
{
    const struct sim_strike *planned = subject;
    struct sim_worker *worker = &sim->jobs[planned->job].workers[planned->rank];
    bool struck;

    (void)number;
    if (planned->trouble >= SIM_APPLIANCE_KILL)
        struck = strike_appliance(sim, planned);
    else if (planned->trouble >= SIM_LEAVE)
        struck = strike_process(sim, worker, planned);
    else
        struck = strike_worker(sim, worker, planned);
    if (!struck)
        return;
    sim->tally.happened[planned->trouble]++;
    sim_trace_note(&sim->trace, sim->now_ns, planned->job,
                   planned->trouble >= SIM_APPLIANCE_KILL ? SIM_NOBODY : planned->rank, SIM_NOBODY,
                   SIM_STEP_TROUBLE, planned->trouble, planned->choice & 1);
}

void sim_faults_strike(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->plan.strikes; i++) {
        if ((sim->struck >> i & 1) || sim->frames < sim->plan.strike[i].at_frame)
            continue;
        sim->struck |= 1u << i;
        sim_after(sim, 0, strike, &sim->plan.strike[i], 0);
    }
}
