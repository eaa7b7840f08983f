/* sim/: the verdict on a life that is over: what became of its rounds, whether all ranks say the same, and
 * whether the reason is one that something had been done to deserve. */
#include "sim.h"

/* A rank whose word counts: it lives to tell, and was not cut off. */
static bool counts(const struct sim_worker *worker)
{
    return worker->standing == SIM_LEFT || worker->standing == SIM_ENDED ||
           (worker->standing == SIM_FAILED && !worker->cut_off);
}

static uint32_t most_posted(const struct sim_job *job, uint32_t pool)
{
    uint32_t most = 0;

    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        if (job->workers[rank].queues[pool].stored > most)
            most = job->workers[rank].queues[pool].stored;
    return most;
}

/* How a round ended: who has it, and who ends without. */
struct outcome {
    const struct sim_worker *with, *without, *excused;
    bool alike; /* those who have it have the same bytes */
};

static struct outcome outcome_of(const struct sim_job *job, uint32_t pool, uint32_t number)
{
    struct outcome outcome = {.alike = true};

    for (uint32_t rank = 0; rank < job->plan->ranks; rank++) {
        const struct sim_worker *worker = &job->workers[rank];
        if (worker->queues[pool].completed > number) {
            if (outcome.with)
                outcome.alike &=
                    worker->queues[pool].arrived[number] == outcome.with->queues[pool].arrived[number];
            outcome.with = worker;
        } else if (counts(worker) && !worker->abrupt) {
            *(worker->excused ? &outcome.excused : &outcome.without) = worker;
        }
    }
    return outcome;
}

/* Whoever has it, dead by now or not, has returned it or may have: then it is void for nobody. */
static void judge_round(struct sim *sim, struct sim_job *job, uint32_t pool, uint32_t number)
{
    const struct outcome outcome = outcome_of(job, pool, number);

    sim->tally.rounds_begun++;
    sim->tally.rounds_summed += !outcome.without && !outcome.excused;
    sim->tally.rounds_void += outcome.without || outcome.excused;
    if (job->tampered)
        return;
    sim->tally.rounds_missed += outcome.with && outcome.excused;
    if (outcome.without && job->fault == PSC_FAULT_NONE)
        sim_violation(sim, SIM_RULE_ALIKE, outcome.without, SIM_NOBODY,
                      "round %u of pool %u is void, and nothing failed", number, pool);
    if (outcome.without && outcome.with)
        sim_violation(sim, SIM_RULE_SPLIT, outcome.without, SIM_NOBODY,
                      "it ends without round %u of pool %u, which rank %u has returned (fault %u)", number,
                      pool, outcome.with->rank, job->fault);
    if (!outcome.alike)
        sim_violation(sim, SIM_RULE_ALIKE, outcome.with, SIM_NOBODY,
                      "its bytes of round %u of pool %u are not another rank's", number, pool);
}

/* Whether what was done to this job explains such a fault. */
static bool deserved(const struct sim_job *job, uint32_t fault)
{
    switch (fault) {
    case PSC_FAULT_ROUND_MISMATCH:
    case PSC_FAULT_OP_MISMATCH:
    case PSC_FAULT_LENGTH_MISMATCH:
    case PSC_FAULT_IMM_MISMATCH:
    case PSC_FAULT_STREAM_LENGTH:
        return job->mismatched;
    case PSC_FAULT_RANK_LEFT:
        return job->left_early;
    case SIM_FAULT_JOINED_AGAIN:
        return job->joined_again;
    case PSC_FAULT_INVALID_REQUEST:
    case PSC_FAULT_REMOTE_ACCESS:
    case PSC_FAULT_NAK_RECEIVED:
    case PSC_FAULT_ELEMENTS_MISMATCH:
    case PSC_FAULT_ELEMENTS_RANGE:
    case PSC_FAULT_SUB_BLOCK:
        return false;
    default:
        return true;
    }
}

static void judge_ranks(struct sim *sim, struct sim_job *job)
{
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++) {
        const struct sim_worker *worker = &job->workers[rank];
        if (worker->standing == SIM_ENDED && worker->error != job->fault)
            sim_violation(sim, SIM_RULE_ALIKE, worker, SIM_NOBODY,
                          "it was told fault %u, the life ended by %u", worker->error, job->fault);
        if (sim->plan.mild && worker->standing != SIM_LEFT)
            sim_violation(sim, SIM_RULE_NEEDLESS, worker, SIM_NOBODY, "it ended with an error (fault %u)",
                          job->fault);
    }
    sim_verdict_of_fault(sim, job, job->fault);
}

void sim_verdict_of_fault(struct sim *sim, const struct sim_job *job, uint32_t fault)
{
    if (!job->tampered && !deserved(job, fault))
        sim_violation(sim, SIM_RULE_HONEST, &job->workers[0], SIM_NOBODY,
                      "an epoch ended by fault %u: nobody deserved it", fault);
    if (sim->plan.mild && fault != PSC_FAULT_NONE)
        sim_violation(sim, SIM_RULE_NEEDLESS, &job->workers[0], SIM_NOBODY, "an epoch ended by fault %u",
                      fault);
}

void sim_verdict_of_life(struct sim *sim, struct sim_job *job)
{
    bool reused = true;

    for (uint32_t pool = 0; pool < SIM_POOLS; pool++) {
        uint32_t rounds = most_posted(job, pool);
        for (uint32_t number = 0; number < rounds; number++)
            judge_round(sim, job, pool, number);
        reused &= rounds >= 4 * job->plan->pools[pool].window;
    }
    sim->tally.slots_reused |= reused;
    judge_ranks(sim, job);
}
