/* sim/: the appliance's control plane, in miniature: how a life's epochs begin and end, step by step as in
 * pascaline_appliance's epochs.py. A halted epoch is resumed with new queue pairs once all ranks have
 * drained; a job that cannot go on ends only when whoever can be reached has every complete result. */
#include "sim.h"

#define DEADLINE_NS (5 * SIM_SECOND)
#define TELL_NS     (SIM_SECOND / 2)
#define MOMENT_NS   (100 * SIM_MS)

static uint64_t resume_ns(const struct sim *sim)
{
    return DEADLINE_NS - sim->plan.progress_ns - TELL_NS;
}

static uint32_t all_ranks(const struct sim_job *job)
{
    return (1u << job->plan->ranks) - 1;
}

/* Bit per rank that an epoch is made of. */
static uint32_t taking_part(const struct sim_job *job)
{
    uint32_t ranks = 0;

    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        ranks |= (uint32_t)(job->member[rank] < SIM_MEMBER_LATE) << rank;
    return ranks;
}

/* Of them: those that have said that they lack a complete result. */
static uint32_t lacking(const struct sim_job *job)
{
    uint32_t ranks = 0;

    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        for (uint32_t p = 0; p < SIM_POOLS; p++)
            ranks |= (uint32_t)(job->received[rank][p] != job->complete[p]) << rank;
    return ranks & taking_part(job);
}

bool sim_epochs_present(const struct sim_job *job)
{
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        if (job->member[rank] != SIM_MEMBER_GONE)
            return true;
    return false;
}

/* ---- An epoch begins ---- */

void sim_epochs_offer(struct sim *sim, struct sim_job *job, uint32_t ranks)
{
    job->epoch++;
    job->queue_pairs++;
    sim->tally.epochs++;
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++) {
        if (!(ranks >> rank & 1))
            continue;
        job->member[rank] = SIM_MEMBER_OFFERED;
        job->connected[rank] = job->probed[rank] = 0;
        sim_life_renew(sim, &job->workers[rank]);
        sim_wire_tell(sim, &job->workers[rank], SIM_TELL_OFFER, 0);
    }
}

void sim_epochs_ready_when_probed(struct sim *sim, struct sim_job *job)
{
    uint32_t ranks = taking_part(job);

    if (job->state != SIM_LIFE_FORMING)
        return;
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        if ((ranks >> rank & 1) && job->probed[rank] < SIM_POOLS)
            return;
    job->state = SIM_LIFE_READY;
    job->ready_ns = sim->now_ns;
    job->waiting_ns = 0;
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        if (ranks >> rank & 1)
            sim_wire_tell(sim, &job->workers[rank], SIM_TELL_READY, 0);
}

/* ---- A job ends ---- */

void sim_epochs_close(struct sim *sim, struct sim_job *job)
{
    job->state = SIM_LIFE_ENDING;
    job->silent = true;
    sim_appliance_command(sim, &(struct psc_command){.kind = PSC_CMD_DETACH, .job = job->handle});
}

static bool moment_ago(const struct sim *sim, uint64_t until_ns)
{
    return until_ns >= sim->now_ns || sim->now_ns - until_ns <= MOMENT_NS;
}

/* It, its path or our port stands still, or has until a moment ago. */
static bool disturbed(const struct sim *sim, const struct sim_worker *worker)
{
    return moment_ago(sim, worker->disturbed_until_ns) || moment_ago(sim, sim->appliance.disturbed_until_ns);
}

/* Nothing can be delivered to it. Facts of the simulation, not the lane's word for it: something stands
 * still, its queue pair of this epoch has failed, or the lane has tried as often as it may. */
static bool out_of_reach(const struct sim *sim, const struct sim_worker *worker)
{
    return worker->broken || disturbed(sim, worker) ||
           sim_peek_exhausted(sim, worker->job->handle, worker->rank);
}

/* The verdict, to every rank that is there; then the lane lets go. */
static void finish(struct sim *sim, struct sim_job *job, bool delivered)
{
    sim->tally.faults[job->fault]++;
    sim_oracle_stopped(sim, job);
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++) {
        struct sim_worker *worker = &job->workers[rank];
        worker->excused |= out_of_reach(sim, worker);
        if (job->member[rank] == SIM_MEMBER_LEAVING && delivered)
            sim_wire_tell(sim, worker, SIM_TELL_LEFT, 0);
        else if (job->member[rank] != SIM_MEMBER_GONE)
            sim_wire_tell(sim, worker, SIM_TELL_ENDED, job->fault);
    }
    sim_epochs_close(sim, job);
}

/* Nothing more is executed; whoever lacks a complete result is given it, which the event `ended` says. */
static void deliver(struct sim *sim, struct sim_job *job, uint32_t unreachable)
{
    job->state = SIM_LIFE_DELIVERING;
    job->dead |= unreachable;
    sim_oracle_stop(job);
    sim_appliance_command(
        sim, &(struct psc_command){.kind = PSC_CMD_END, .job = job->handle, .ranks = unreachable});
}

void sim_epochs_delivered(struct sim *sim, struct sim_job *job, const struct psc_event *event)
{
    for (uint32_t p = 0; p < SIM_POOLS; p++)
        job->complete[p] = event->complete[p];
    finish(sim, job, true);
}

/* Once everyone who takes part has drained: a new epoch, or what is owed and then the end. */
static void go_on(struct sim *sim, struct sim_job *job)
{
    uint32_t members = taking_part(job), owed = job->fault ? lacking(job) : members;

    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        if (job->member[rank] == SIM_MEMBER_HALTED)
            return;
    if (job->fault && !owed) {
        finish(sim, job, true);
        return;
    }
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        for (uint32_t p = 0; p < SIM_POOLS; p++)
            job->workers[rank].queues[p].qpn = 0;
    sim_oracle_stopped(sim, job);
    job->silent = false;
    job->dead = 0;
    if (!sim_appliance_command(sim, &(struct psc_command){.kind = PSC_CMD_RESUME, .job = job->handle}))
        sim_violation(sim, SIM_RULE_HONEST, &job->workers[0], SIM_NOBODY, "the lane refuses to resume");
    sim->tally.resumed++;
    job->state = SIM_LIFE_FORMING;
    sim_epochs_offer(sim, job, owed);
    if (job->fault)
        deliver(sim, job, all_ranks(job) & ~owed);
    else
        sim_epochs_ready_when_probed(sim, job);
}

/* The job cannot go on. Ranks that are gone have been marked so. */
void sim_epochs_end(struct sim *sim, struct sim_job *job, uint32_t fault)
{
    if (job->state >= SIM_LIFE_ENDING)
        return;
    if (!job->fault)
        job->fault = fault;
    if (job->ready_ns == 0 || !sim_epochs_present(job)) {
        finish(sim, job, false);
    } else if (job->state == SIM_LIFE_RESUMING) {
        go_on(sim, job);
    } else {
        uint32_t unreachable = all_ranks(job) & ~taking_part(job);
        if (job->state == SIM_LIFE_READY) {
            job->halted_ns = sim->now_ns;
            job->deadline_ns = sim->now_ns + resume_ns(sim);
        }
        if (job->state == SIM_LIFE_FORMING) /* who has everything need not be connected */
            unreachable |= all_ranks(job) & ~lacking(job);
        deliver(sim, job, unreachable);
    }
}

/* ---- An epoch ends ---- */

static bool resumable(uint32_t fault)
{
    return fault == PSC_FAULT_RETRY_EXCEEDED || fault == PSC_FAULT_STALLED_MESSAGE ||
           fault == PSC_FAULT_NAK_RECEIVED || fault == PSC_FAULT_UNREACHABLE;
}

/* A fault that comes before anything is complete after another one is the same to those who wait. */
static void set_deadline(struct sim *sim, struct sim_job *job, const struct psc_event *event)
{
    bool again = job->halted_ns > 0 && sim->now_ns - job->ready_ns < DEADLINE_NS;

    for (uint32_t p = 0; p < SIM_POOLS; p++)
        again &= event->complete[p] == job->complete[p];
    if (!again && job->state != SIM_LIFE_FORMING && job->state != SIM_LIFE_DELIVERING)
        job->halted_ns = sim->now_ns;
    job->deadline_ns = job->halted_ns + resume_ns(sim);
    job->drain_by_ns = sim->now_ns + (job->deadline_ns - sim->now_ns) / 2;
    if (job->deadline_ns < sim->now_ns)
        job->drain_by_ns = sim->now_ns;
}

/* The lane has halted the job: all ranks flush, drain and say what they have. */
void sim_epochs_halted(struct sim *sim, struct sim_job *job, const struct psc_event *event)
{
    sim_verdict_of_fault(sim, job, event->fault);
    job->halted_by = event->fault;
    if (job->ready_ns == 0 || !resumable(event->fault)) {
        if (!job->fault)
            job->fault = event->fault;
        if (job->ready_ns == 0) { /* no round has begun */
            finish(sim, job, false);
            return;
        }
    }
    set_deadline(sim, job, event);
    for (uint32_t p = 0; p < SIM_POOLS; p++)
        job->complete[p] = event->complete[p];
    job->state = SIM_LIFE_RESUMING;
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++) {
        if (job->member[rank] >= SIM_MEMBER_LATE)
            continue;
        job->member[rank] = SIM_MEMBER_HALTED;
        sim_wire_tell(sim, &job->workers[rank], SIM_TELL_HALTED, event->fault);
    }
    go_on(sim, job);
}

void sim_epochs_resume(struct sim *sim, struct sim_worker *worker)
{
    struct sim_job *job = worker->job;
    uint32_t rank = worker->rank;

    if (job->member[rank] != SIM_MEMBER_HALTED)
        return;
    job->member[rank] = SIM_MEMBER_RESUMED;
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        job->received[rank][p] = worker->queues[p].drained;
        if (job->complete[p] - job->received[rank][p] <= job->plan->pools[p].window)
            continue;
        if (!job->tampered)
            sim_violation(sim, SIM_RULE_SPLIT, worker, SIM_NOBODY,
                          "it has the results of %u rounds of pool %u, %u are complete",
                          job->received[rank][p], p, job->complete[p]);
        job->member[rank] = SIM_MEMBER_LATE;
        sim_epochs_end(sim, job, PSC_FAULT_CONNECTION_LOST);
        return;
    }
    go_on(sim, job);
}

/* A rank takes part in nothing more. */
void sim_epochs_left(struct sim *sim, struct sim_job *job)
{
    if (job->state == SIM_LIFE_RESUMING)
        go_on(sim, job);
    else
        sim_epochs_ready_when_probed(sim, job);
}

/* ---- Time ---- */

/* Whoever has not drained when half of the time is over is late; when all of it is, everybody is told. */
void sim_epochs_judge(struct sim *sim, struct sim_job *job)
{
    if (job->ready_ns == 0 || job->state == SIM_LIFE_READY || job->state >= SIM_LIFE_ENDING)
        return;
    if (sim->now_ns > job->deadline_ns) {
        if (!job->fault)
            job->fault = job->halted_by;
        finish(sim, job, false);
    } else if (job->state == SIM_LIFE_RESUMING && sim->now_ns > job->drain_by_ns) {
        if (!job->fault)
            job->fault = job->halted_by;
        for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
            if (job->member[rank] == SIM_MEMBER_HALTED) {
                job->member[rank] = SIM_MEMBER_LATE;
                job->workers[rank].excused = disturbed(sim, &job->workers[rank]);
            }
        go_on(sim, job);
    }
}
