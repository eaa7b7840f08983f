/* sim/: the appliance's control plane, in miniature: a job's life from offer to the last left or ended, as
 * pascaline_appliance's registry has it. What becomes of epochs is sim_epochs.c's. */
#include <string.h>

#include "sim.h"

#define JOIN_TIMEOUT_NS (5 * SIM_SECOND)

static void note_event(struct sim *sim, const struct sim_job *job, uint32_t rank, uint64_t kind,
                       uint64_t value)
{
    sim_trace_note(&sim->trace, sim->now_ns, job->index, rank, SIM_NOBODY, SIM_STEP_EVENT, kind, value);
}

/* Until the verdict is told. */
static bool runs(const struct sim_job *job)
{
    return job->state >= SIM_LIFE_FORMING && job->state < SIM_LIFE_ENDING;
}

static void welcome(struct sim *sim, struct sim_worker *worker)
{
    worker->standing = SIM_JOINING;
    worker->wants_to_leave = worker->abrupt = worker->blocked = false;
    worker->been_ready = worker->broken = worker->excused = false;
    worker->cut_off = worker->to_appliance.hole_to_ns > sim->now_ns ||
                      worker->from_appliance.hole_to_ns > sim->now_ns ||
                      worker->frozen_until_ns > sim->now_ns;
    worker->fault_ns = worker->step_ns = worker->timer_ns = 0;
    worker->progress_ns = sim->now_ns;
}

static void reset(struct sim_job *job, uint64_t now_ns)
{
    job->state = SIM_LIFE_FORMING;
    job->fault = job->halted_by = PSC_FAULT_NONE;
    job->silent = job->still = job->tampered = job->mismatched = job->left_early = job->joined_again = false;
    job->dead = 0;
    job->begun_ns = now_ns;
    job->ready_ns = job->halted_ns = job->waiting_ns = 0;
    memset(job->received, 0, sizeof job->received);
    memset(job->complete, 0, sizeof job->complete);
    job->stats = (struct psc_job_stats){0};
}

void sim_control_begin_life(struct sim *sim, struct sim_job *job)
{
    struct psc_job_spec spec;

    if (!sim->appliance.lane)
        sim_appliance_start(sim);
    job->life++;
    reset(job, sim->now_ns);
    sim_life_make(sim, job);
    sim_life_spec(job, &spec);
    spec.stats = &job->stats;
    job->handle = sim_appliance_new_job(sim, &spec, &job->handle_bytes);
    sim_appliance_command(sim, &(struct psc_command){.kind = PSC_CMD_ATTACH, .job = job->handle});
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        welcome(sim, &job->workers[rank]);
    sim_epochs_offer(sim, job, (1u << job->plan->ranks) - 1);
    sim->tally.lives++;
}

static void connect_rank(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    if (job->member[rank] != SIM_MEMBER_OFFERED)
        return; /* it answers the offer of an epoch that has ended meanwhile */
    job->member[rank] = SIM_MEMBER_CONNECTING;
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        struct psc_command command = {.kind = PSC_CMD_CONNECT, .job = job->handle};
        sim_life_qp(&job->workers[rank].queues[p], &command.qp);
        if (sim_appliance_command(sim, &command))
            continue;
        if (!job->tampered && !(job->dead >> rank & 1))
            sim_violation(sim, SIM_RULE_HONEST, &job->workers[rank], SIM_NOBODY,
                          "the lane refuses to connect");
        if (!(job->dead >> rank & 1))
            sim_epochs_end(sim, job, PSC_FAULT_INVALID_REQUEST);
        return;
    }
}

static void broken(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    if (job->member[rank] < SIM_MEMBER_HALTED)
        sim_appliance_command(sim, &(struct psc_command){.kind = PSC_CMD_HALT,
                                                         .job = job->handle,
                                                         .rank = rank,
                                                         .fault = PSC_FAULT_RETRY_EXCEEDED});
}

static void leave(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    struct psc_command command = {.kind = PSC_CMD_LEAVE, .job = job->handle, .rank = rank};

    if (job->member[rank] >= SIM_MEMBER_LEAVING)
        return;
    for (uint32_t p = 0; p < SIM_POOLS; p++)
        command.received[p] = job->workers[rank].left_received[p];
    job->member[rank] = SIM_MEMBER_LEAVING;
    if (!sim_appliance_command(sim, &command))
        sim_violation(sim, SIM_RULE_HONEST, &job->workers[rank], SIM_NOBODY,
                      "the lane refuses to let it leave");
    sim_epochs_left(sim, job);
}

/* Another process of this rank joins: nobody reads at the first one's end any more. */
static void replace(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    if (job->fault)
        return;
    job->joined_again = true;
    job->member[rank] = SIM_MEMBER_LATE;
    sim_epochs_end(sim, job, SIM_FAULT_JOINED_AGAIN);
}

static void lost(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    if (job->member[rank] >= SIM_MEMBER_LEAVING)
        return;
    job->member[rank] = SIM_MEMBER_GONE;
    sim_epochs_end(sim, job, PSC_FAULT_CONNECTION_LOST);
}

void sim_control_heard(struct sim *sim, struct sim_worker *worker, enum sim_asking message)
{
    struct sim_job *job = worker->job;

    if (!runs(job) || job->member[worker->rank] == SIM_MEMBER_GONE)
        return;
    switch (message) {
    case SIM_ASK_CONNECT:
        connect_rank(sim, job, worker->rank);
        break;
    case SIM_ASK_BROKEN:
        broken(sim, job, worker->rank);
        break;
    case SIM_ASK_RESUME:
        sim_epochs_resume(sim, worker);
        break;
    case SIM_ASK_LEAVE:
        leave(sim, job, worker->rank);
        break;
    case SIM_ASK_AGAIN:
        replace(sim, job, worker->rank);
        break;
    case SIM_ASK_CLOSED:
        lost(sim, job, worker->rank);
        break;
    }
}

static void connected(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    if (++job->connected[rank] < SIM_POOLS || job->member[rank] != SIM_MEMBER_CONNECTING)
        return;
    job->member[rank] = SIM_MEMBER_READY;
    sim_wire_tell(sim, &job->workers[rank], SIM_TELL_CONNECTED, 0);
}

static void left(struct sim *sim, struct sim_job *job, uint32_t rank)
{
    job->member[rank] = SIM_MEMBER_GONE;
    sim_wire_tell(sim, &job->workers[rank], SIM_TELL_LEFT, 0);
    if (!sim_epochs_present(job))
        sim_epochs_close(sim, job);
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
        connected(sim, job, event->rank);
        break;
    case PSC_EVENT_PROBED:
        job->probed[event->rank]++;
        sim_epochs_ready_when_probed(sim, job);
        break;
    case PSC_EVENT_WAITING:
        if (job->waiting_ns == 0 || job->rounds_then != job->stats.rounds_completed) /* not told again */
            job->waiting_ns = sim->now_ns;
        job->rounds_then = job->stats.rounds_completed;
        break;
    case PSC_EVENT_LEFT:
        left(sim, job, event->rank);
        break;
    case PSC_EVENT_FAULT:
        sim_epochs_halted(sim, job, event);
        break;
    case PSC_EVENT_ENDED:
        sim_epochs_delivered(sim, job, event);
        break;
    case PSC_EVENT_DETACHED:
        break;
    }
}

void sim_control_judge(struct sim *sim, struct sim_job *job)
{
    if (!sim->appliance.lane || sim->now_ns < sim->appliance.paused_until_ns || !runs(job))
        return;
    sim_epochs_judge(sim, job);
    if (job->state == SIM_LIFE_FORMING && job->ready_ns == 0 &&
        sim->now_ns - job->begun_ns > JOIN_TIMEOUT_NS) {
        sim_epochs_end(sim, job, SIM_FAULT_JOIN_TIMEOUT);
    } else if (job->state == SIM_LIFE_READY && job->waiting_ns != 0) {
        if (job->rounds_then != job->stats.rounds_completed)
            job->waiting_ns = 0;
        else if (sim->now_ns - job->waiting_ns > sim->plan.straggler_ns)
            sim_epochs_end(sim, job, SIM_FAULT_STRAGGLER);
    }
}
