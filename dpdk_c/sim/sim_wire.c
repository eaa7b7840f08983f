/* sim/: the control connections: reliable and in order, delivered late while a path is dead, and cut when it
 * is dead for too long. And the worker's end of them: what its process does with the appliance's words, and
 * how long it waits for one. */
#include "sim.h"

#define VERDICT_NS  SIM_SECOND       /* a queue pair that failed before the first ready */
#define DEADLINE_NS (5 * SIM_SECOND) /* after a fault, or the longest wait that is allowed: an outcome */

static uint64_t pack(const struct sim_job *job, uint32_t message, uint32_t value)
{
    return (uint64_t)job->life << 32 | message << 16 | value;
}

static bool of_this_life(const struct sim_worker *worker, uint64_t number)
{
    return number >> 32 == worker->job->life;
}

/* When a message that leaves now arrives; SIM_FOREVER: never. */
static uint64_t delivery_ns(struct sim *sim, struct sim_link *link)
{
    uint64_t at_ns = sim->now_ns + 20000 + sim_up_to(sim, 200000);

    if (sim_network_hole(sim, link)) {
        if (link->hole_to_ns == SIM_FOREVER)
            return SIM_FOREVER;
        at_ns = link->hole_to_ns + 20000;
    }
    if (at_ns <= link->control_ns)
        at_ns = link->control_ns + 1;
    return link->control_ns = at_ns;
}

/* ---- To the worker ---- */

static void hear(struct sim *sim, struct sim_worker *worker, enum sim_telling message, uint32_t value)
{
    worker->progress_ns = sim->now_ns;
    sim_trace_note(&sim->trace, sim->now_ns, worker->job->index, worker->rank, SIM_NOBODY, SIM_STEP_TELLS,
                   message, value);
    switch (message) {
    case SIM_TELL_OFFER:
        sim_worker_connect(worker);
        sim_wire_ask(sim, worker, SIM_ASK_CONNECT);
        break;
    case SIM_TELL_CONNECTED:
        sim_worker_probe(sim, worker);
        break;
    case SIM_TELL_READY:
        sim_worker_go(sim, worker);
        break;
    case SIM_TELL_HALTED:
        sim_worker_halt(sim, worker);
        break;
    case SIM_TELL_ENDED:
        sim_worker_end(sim, worker, SIM_ENDED, value);
        break;
    case SIM_TELL_LEFT:
        sim_worker_end(sim, worker, SIM_LEFT, 0);
        break;
    }
}

static void reach_worker(struct sim *sim, void *subject, uint64_t number)
{
    struct sim_worker *worker = subject;
    uint64_t stopped_ns = sim_worker_stopped_ns(worker);

    if (!of_this_life(worker, number) || !sim_worker_lives(worker))
        return;
    if (sim->now_ns < stopped_ns)
        sim_agenda_add(&sim->agenda, stopped_ns, reach_worker, worker, number);
    else
        hear(sim, worker, (enum sim_telling)(number >> 16 & 0xffff), number & 0xffff);
}

void sim_wire_tell(struct sim *sim, struct sim_worker *worker, enum sim_telling message, uint32_t value)
{
    uint64_t at_ns = delivery_ns(sim, &worker->from_appliance);

    if (at_ns != SIM_FOREVER)
        sim_agenda_add(&sim->agenda, at_ns, reach_worker, worker, pack(worker->job, message, value));
}

/* ---- To the appliance ---- */

static void reach_appliance(struct sim *sim, void *subject, uint64_t number)
{
    struct sim_worker *worker = subject;

    if (!of_this_life(worker, number) || !sim->appliance.lane)
        return;
    if (sim->now_ns < sim->appliance.paused_until_ns) {
        sim_agenda_add(&sim->agenda, sim->appliance.paused_until_ns, reach_appliance, worker, number);
        return;
    }
    sim_trace_note(&sim->trace, sim->now_ns, worker->job->index, worker->rank, SIM_NOBODY, SIM_STEP_ASKS,
                   number >> 16 & 0xffff, worker->job->life);
    sim_control_heard(sim, worker, (enum sim_asking)(number >> 16 & 0xffff));
}

void sim_wire_ask(struct sim *sim, struct sim_worker *worker, enum sim_asking message)
{
    uint64_t at_ns = delivery_ns(sim, &worker->to_appliance);

    if (at_ns != SIM_FOREVER)
        sim_agenda_add(&sim->agenda, at_ns, reach_appliance, worker, pack(worker->job, message, 0));
}

static void lose_appliance(struct sim *sim, void *subject, uint64_t number)
{
    struct sim_worker *worker = subject;

    if (!of_this_life(worker, number) || !sim_worker_lives(worker))
        return;
    sim->tally.own_errors++;
    sim_worker_end(sim, worker, SIM_FAILED, 0);
}

/* The connection is dead: each end finds out, or only one. */
void sim_wire_cut(struct sim *sim, struct sim_worker *worker, bool at_appliance, bool at_worker)
{
    if (at_appliance)
        sim_after(sim, sim_up_to(sim, SIM_MS), reach_appliance, worker, pack(worker->job, SIM_ASK_CLOSED, 0));
    if (!at_worker)
        return;
    worker->cut_off = true;
    sim_after(sim, sim_up_to(sim, SIM_MS), lose_appliance, worker, pack(worker->job, 0, 0));
}

/* ---- The worker's clocks ---- */

static void give_up(struct sim *sim, struct sim_worker *worker)
{
    sim->tally.own_errors++;
    sim_worker_end(sim, worker, SIM_FAILED, 0);
    sim_wire_ask(sim, worker, SIM_ASK_CLOSED);
}

void sim_wire_judge(struct sim *sim, struct sim_worker *worker)
{
    uint64_t limit_ns = sim->plan.straggler_ns + DEADLINE_NS;

    if (!sim_worker_lives(worker))
        return;
    if (sim->now_ns < sim_worker_stopped_ns(worker)) {
        worker->progress_ns = sim->now_ns;
        worker->fault_ns = worker->fault_ns ? sim->now_ns : 0;
        return;
    }
    uint64_t faulty_ns = worker->fault_ns ? sim->now_ns - worker->fault_ns : 0;
    if (!worker->been_ready && faulty_ns > VERDICT_NS) {
        give_up(sim, worker);
        return;
    }
    if (faulty_ns < DEADLINE_NS && sim->now_ns - worker->progress_ns < limit_ns)
        return;
    if (!worker->cut_off && !worker->job->tampered)
        sim_violation(sim, SIM_RULE_HANG, worker, SIM_NOBODY, "%s for %.1f s and nobody has ended the wait",
                      faulty_ns < DEADLINE_NS ? "nothing has happened" : "an epoch has been over",
                      (double)(faulty_ns < DEADLINE_NS ? sim->now_ns - worker->progress_ns : faulty_ns) /
                          1e9);
    give_up(sim, worker);
}
