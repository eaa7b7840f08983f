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
        if (job->workers[rank].queues[pool].posted > most)
            most = job->workers[rank].queues[pool].posted;
    return most;
}

/* A round that some ranks have and others have not is allowed only because no epoch takes up again where
 * another ended: with redelivery it becomes a violation. */
static void judge_round(struct sim *sim, struct sim_job *job, uint32_t pool, uint32_t number)
{
    uint32_t have = 0, miss = 0;
    const struct sim_worker *without = NULL;

    for (uint32_t rank = 0; rank < job->plan->ranks; rank++) {
        const struct sim_worker *worker = &job->workers[rank];
        if (worker->queues[pool].completed > number) {
            have++;
        } else if (counts(worker) && !worker->abrupt) {
            miss++;
            without = worker;
        }
    }
    sim->tally.rounds_begun++;
    sim->tally.rounds_summed += miss == 0;
    sim->tally.rounds_void += miss > 0;
    sim->tally.rounds_split += miss > 0 && have > 0;
    if (job->tampered)
        return;
    if (miss > 0 && job->fault == PSC_FAULT_NONE)
        sim_violation(sim, SIM_RULE_ALIKE, without, SIM_NOBODY,
                      "round %u of pool %u is void, and nothing failed", number, pool);
    if (have > 0 && job->told_complete && number >= job->complete[pool])
        sim_violation(sim, SIM_RULE_ALIKE, &job->workers[0], SIM_NOBODY,
                      "%u ranks have round %u of pool %u, and the appliance had only %u complete", have,
                      number, pool, job->complete[pool]);
}

/* Whether what was done to this job explains how it ended. */
static bool deserved(const struct sim_job *job)
{
    switch (job->fault) {
    case PSC_FAULT_ROUND_MISMATCH:
    case PSC_FAULT_OP_MISMATCH:
    case PSC_FAULT_LENGTH_MISMATCH:
    case PSC_FAULT_IMM_MISMATCH:
        return job->mismatched;
    case PSC_FAULT_RANK_LEFT:
        return job->left_early;
    case PSC_FAULT_INVALID_REQUEST:
    case PSC_FAULT_REMOTE_ACCESS:
    case PSC_FAULT_NAK_RECEIVED:
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
    if (!job->tampered && !deserved(job))
        sim_violation(sim, SIM_RULE_HONEST, &job->workers[0], SIM_NOBODY,
                      "the life ended by fault %u: nobody deserved it", job->fault);
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
