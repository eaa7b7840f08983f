/* sim/: the appliance's control plane, in miniature: a job's life from offer to the last left or ended, as
 * pascaline_appliance's registry has it.
 *
 * Epochs belong here: a life that ends by a fault is followed by a new one that starts again from round 0.
 * Redelivery of complete rounds and replay of void ones would begin in sim_control_begin_life, and the
 * verdict on a life (sim_verdict.c) would then allow no round that only some ranks have. */
#include "sim.h"

#define JOIN_TIMEOUT_NS (5 * SIM_SECOND)

static void note_event(struct sim *sim, const struct sim_job *job, uint32_t rank, uint64_t kind,
                       uint64_t value)
{
    sim_trace_note(&sim->trace, sim->now_ns, job->index, rank, SIM_NOBODY, SIM_STEP_EVENT, kind, value);
}

static bool runs(const struct sim_job *job)
{
    return job->state == SIM_LIFE_FORMING || job->state == SIM_LIFE_READY;
}

void sim_control_begin_life(struct sim *sim, struct sim_job *job)
{
    struct psc_job_spec spec;

    if (!sim->appliance.lane)
        sim_appliance_start(sim);
    job->life++;
    job->state = SIM_LIFE_FORMING;
    job->begun_ns = sim->now_ns;
    job->fault = PSC_FAULT_NONE;
    job->tampered = job->mismatched = job->left_early = job->told_complete = false;
    job->waiting_ns = 0;
    job->leaving = 0;
    job->present = (1u << job->plan->ranks) - 1;
    sim_life_make(sim, job);
    sim_life_spec(job, &spec);
    job->stats = (struct psc_job_stats){0};
    spec.stats = &job->stats;
    job->handle = sim_appliance_new_job(sim, &spec, &job->handle_bytes);
    sim_appliance_command(sim, &(struct psc_command){.kind = PSC_CMD_ATTACH, .job = job->handle});
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++) {
        struct sim_worker *worker = &job->workers[rank];
        job->connected[rank] = job->probed[rank] = 0;
        worker->standing = SIM_JOINING;
        worker->wants_to_leave = worker->abrupt = worker->blocked = false;
        worker->cut_off = worker->to_appliance.hole_to_ns > sim->now_ns ||
                          worker->from_appliance.hole_to_ns > sim->now_ns ||
                          worker->frozen_until_ns > sim->now_ns;
        worker->failed_ns = worker->step_ns = worker->timer_ns = 0;
        worker->progress_ns = sim->now_ns;
        sim_wire_tell(sim, worker, SIM_TELL_OFFER, 0);
    }
    sim->tally.lives++;
}

static void close_life(struct sim *sim, struct sim_job *job)
{
    job->state = SIM_LIFE_ENDING;
    sim_appliance_command(sim, &(struct psc_command){.kind = PSC_CMD_DETACH, .job = job->handle});
}

/* The epoch is over: every rank that is there is told, then the lane lets go of it. */
static void end_life(struct sim *sim, struct sim_job *job, uint32_t fault)
{
    job->fault = fault;
    sim->tally.faults[fault]++;
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        if (job->present >> rank & 1)
            sim_wire_tell(sim, &job->workers[rank], SIM_TELL_ENDED, fault);
    close_life(sim, job);
}

static void connect_rank(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    for (uint32_t p = 0; p < SIM_POOLS && job->state == SIM_LIFE_FORMING; p++) {
        struct psc_command command = {.kind = PSC_CMD_CONNECT, .job = job->handle};
        sim_life_qp(&job->workers[rank].queues[p], &command.qp);
        if (!sim_appliance_command(sim, &command) && job->state == SIM_LIFE_FORMING)
            sim_violation(sim, SIM_RULE_HONEST, &job->workers[rank], SIM_NOBODY,
                          "the lane refuses to connect");
    }
}

static void leave(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    struct psc_command command = {.kind = PSC_CMD_LEAVE, .job = job->handle, .rank = rank};

    for (uint32_t p = 0; p < SIM_POOLS; p++)
        command.received[p] = job->workers[rank].left_received[p];
    job->leaving |= 1u << rank;
    if (!sim_appliance_command(sim, &command) && job->state == SIM_LIFE_READY)
        sim_violation(sim, SIM_RULE_HONEST, &job->workers[rank], SIM_NOBODY,
                      "the lane refuses to let it leave");
}

void sim_control_heard(struct sim *sim, struct sim_worker *worker, enum sim_asking message)
{
    struct sim_job *job = worker->job;

    if (!(job->present >> worker->rank & 1) || !runs(job))
        return;
    switch (message) {
    case SIM_ASK_CONNECT:
        connect_rank(sim, job, worker->rank);
        break;
    case SIM_ASK_LEAVE:
        leave(sim, job, worker->rank);
        break;
    case SIM_ASK_CLOSED:
        job->present &= ~(1u << worker->rank);
        if (!(job->leaving >> worker->rank & 1))
            end_life(sim, job, PSC_FAULT_CONNECTION_LOST);
        else if (job->present == 0)
            close_life(sim, job);
        break;
    }
}

static void probed(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    job->probed[rank]++;
    for (uint32_t i = 0; i < job->plan->ranks; i++)
        if (job->probed[i] < SIM_POOLS)
            return;
    job->state = SIM_LIFE_READY;
    for (uint32_t i = 0; i < job->plan->ranks; i++)
        sim_wire_tell(sim, &job->workers[i], SIM_TELL_READY, 0);
}

static void left(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    job->present &= ~(1u << rank);
    sim_wire_tell(sim, &job->workers[rank], SIM_TELL_LEFT, 0);
    if (job->present == 0)
        close_life(sim, job);
}

static void detached(struct sim *sim, struct sim_job *job)
{
    uint32_t lent = sim_port_borrows(sim, job->handle, job->handle_bytes);

    if (lent > 0)
        sim_violation(sim, SIM_RULE_MEMORY, &job->workers[0], SIM_NOBODY,
                      "the job may be freed, says the lane, while the port holds %u of its frames", lent);
    psc_job_free(job->handle);
    job->handle = NULL;
    job->state = SIM_LIFE_GONE;
}

void sim_control_event(struct sim *sim, const struct psc_event *event)
{
    struct sim_job *job = &sim->jobs[event->tag];
    bool named = event->kind != PSC_EVENT_DETACHED && event->kind != PSC_EVENT_WAITING;

    note_event(sim, job, named ? event->rank : SIM_NOBODY, event->kind,
               event->kind == PSC_EVENT_FAULT ? event->fault : event->round);
    if (event->kind == PSC_EVENT_DETACHED)
        detached(sim, job);
    if (!runs(job))
        return;
    switch (event->kind) {
    case PSC_EVENT_CONNECTED:
        if (++job->connected[event->rank] == SIM_POOLS)
            sim_wire_tell(sim, &job->workers[event->rank], SIM_TELL_CONNECTED, 0);
        break;
    case PSC_EVENT_PROBED:
        probed(sim, job, event->rank);
        break;
    case PSC_EVENT_WAITING:
        if (job->waiting_ns == 0 || job->rounds_then != job->stats.rounds_completed) /* not told again */
            job->waiting_ns = sim->now_ns;
        job->rounds_then = job->stats.rounds_completed;
        break;
    case PSC_EVENT_LEFT:
        sim_oracle_left(sim, job, event);
        left(sim, job, event->rank);
        break;
    case PSC_EVENT_FAULT:
        job->told_complete = true;
        for (uint32_t p = 0; p < SIM_POOLS; p++)
            job->complete[p] = event->complete[p];
        end_life(sim, job, event->fault);
        break;
    case PSC_EVENT_ENDED: /* answers END, which is not used yet */
    case PSC_EVENT_DETACHED:
        break;
    }
}

void sim_control_judge(struct sim *sim, struct sim_job *job)
{
    if (!sim->appliance.lane || sim->now_ns < sim->appliance.paused_until_ns)
        return;
    if (job->state == SIM_LIFE_FORMING && sim->now_ns - job->begun_ns > JOIN_TIMEOUT_NS) {
        end_life(sim, job, SIM_FAULT_JOIN_TIMEOUT);
    } else if (job->state == SIM_LIFE_READY && job->waiting_ns != 0) {
        if (job->rounds_then != job->stats.rounds_completed)
            job->waiting_ns = 0;
        else if (sim->now_ns - job->waiting_ns > sim->plan.straggler_ns)
            end_life(sim, job, SIM_FAULT_STRAGGLER);
    }
}
