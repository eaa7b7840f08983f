/* sim/: one run, from its seed to its verdict. */
#include <stdlib.h>

#include "sim.h"

#define START_NS   (5 * SIM_SECOND)
#define TICK_NS    (20 * SIM_MS)
#define LIMIT_NS   (300 * SIM_SECOND)
#define MAX_EVENTS 20000000u

/* What sim_alloc puts before a block. */
struct sim_block {
    struct sim_block *next, **link;
};

void *sim_alloc(struct sim *sim, size_t bytes)
{
    struct sim_block *block = malloc(sizeof *block + bytes);

    if (!block)
        abort();
    *block = (struct sim_block){.next = sim->blocks, .link = &sim->blocks};
    if (block->next)
        block->next->link = &block->next;
    sim->blocks = block;
    return block + 1;
}

void sim_free(struct sim *sim, void *memory)
{
    struct sim_block *block = (struct sim_block *)memory - 1;

    (void)sim;
    *block->link = block->next;
    if (block->next)
        block->next->link = block->link;
    free(block);
}

void sim_after(struct sim *sim, uint64_t delay_ns, sim_happening *happen, void *subject, uint64_t number)
{
    sim_agenda_add(&sim->agenda, sim->now_ns + delay_ns, happen, subject, number);
}

uint64_t sim_up_to(struct sim *sim, uint64_t most)
{
    return most == 0 ? 0 : sim_below(&sim->random, most + 1);
}

static bool settled(const struct sim_job *job)
{
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        if (sim_worker_lives(&job->workers[rank]))
            return false;
    return job->state == SIM_LIFE_GONE;
}

static void begin_again(struct sim *sim, void *subject, uint64_t number)
{
    (void)number;
    sim_control_begin_life(sim, subject);
}

/* A life is over: judged, and followed by another if the plan says so and it ended by a fault. */
static void settle(struct sim *sim, struct sim_job *job)
{
    sim_verdict_of_life(sim, job);
    sim_life_free(job);
    job->state = SIM_LIFE_NONE;
    if (job->fault == PSC_FAULT_NONE || job->life == job->plan->lives)
        return;
    sim->tally.happened[SIM_RESTART]++;
    job->state = SIM_LIFE_AWAITED;
    sim_after(sim, sim_up_to(sim, 100 * SIM_MS), begin_again, job, 0);
}

static void tick(struct sim *sim, void *subject, uint64_t number)
{
    bool more = false;

    for (uint32_t j = 0; j < sim->plan.jobs; j++) {
        struct sim_job *job = &sim->jobs[j];
        if (job->state != SIM_LIFE_NONE && job->state != SIM_LIFE_AWAITED) {
            sim_control_judge(sim, job);
            for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
                sim_wire_judge(sim, &job->workers[rank]);
            if (settled(job))
                settle(sim, job);
        }
        more |= job->state != SIM_LIFE_NONE;
    }
    if (!more)
        sim->over = true;
    else
        sim_after(sim, TICK_NS, tick, subject, number);
}

static void make_rack(struct sim *sim)
{
    for (uint32_t j = 0; j < sim->plan.jobs; j++) {
        struct sim_job *job = &sim->jobs[j];
        job->sim = sim;
        job->plan = &sim->plan.job[j];
        job->index = j;
        for (uint32_t rank = 0; rank < job->plan->ranks; rank++) {
            struct sim_worker *worker = &job->workers[rank];
            uint8_t host = (uint8_t)(10 + rank);
            *worker = (struct sim_worker){.job = job,
                                          .rank = rank,
                                          .mac = {2, 0, 0, 0, (uint8_t)(j + 1), host},
                                          .ip = {10, 0, (uint8_t)(j + 1), host}};
            sim->tally.workers++;
            sim->tally.model_workers += job->plan->model[rank];
        }
    }
    sim_appliance_start(sim);
    for (uint32_t j = 0; j < sim->plan.jobs; j++)
        sim_control_begin_life(sim, &sim->jobs[j]);
}

static void clear_away(struct sim *sim)
{
    for (uint32_t j = 0; j < sim->plan.jobs; j++)
        if (sim->jobs[j].rounds[0])
            sim_life_free(&sim->jobs[j]);
    if (sim->appliance.lane)
        sim_appliance_kill(sim);
    if (sim->appliance.blocks > 0)
        sim_violation(sim, SIM_RULE_MEMORY, &sim->jobs[0].workers[0], SIM_NOBODY,
                      "%u pieces of the appliance's memory are left", sim->appliance.blocks);
    while (sim->blocks)
        sim_free(sim, sim->blocks + 1);
    free(sim->appliance.rx);
    free(sim->appliance.port);
    sim_agenda_free(&sim->agenda);
}

void sim_run(uint64_t seed, bool print, struct sim_tally *tally)
{
    struct sim *sim = calloc(1, sizeof *sim);
    struct sim_entry entry;
    uint32_t events = 0;

    if (!sim)
        abort();
    sim->seed = sim->tally.seed = seed;
    sim->now_ns = START_NS;
    sim->trace.print = print;
    sim_plan_draw(&sim->plan, seed);
    sim->random.state = sim_mix(seed);
    sim->tally.mild = sim->plan.mild;
    make_rack(sim);
    sim_after(sim, TICK_NS, tick, NULL, 0);
    while (!sim->over && sim_agenda_next(&sim->agenda, &entry)) {
        sim->now_ns = entry.at_ns;
        if (++events == MAX_EVENTS || sim->now_ns > START_NS + LIMIT_NS)
            sim_violation(sim, SIM_RULE_HANG, &sim->jobs[0].workers[0], SIM_NOBODY, "the run does not end");
        else
            entry.happen(sim, entry.subject, entry.number);
    }
    sim->over = sim->tally.rule != SIM_RULE_NONE;
    clear_away(sim);
    sim->tally.hash = sim->trace.hash;
    sim->tally.frames = sim->frames;
    sim->tally.virtual_ns = sim->now_ns - START_NS;
    *tally = sim->tally;
    free(sim);
}
