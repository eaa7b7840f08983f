/* core/: how an epoch ends, and what comes after it (rule 7). Halt: nothing is executed or sent. Resume:
 * complete rounds keep their results, incomplete ones are void, and new QPs take up from there. End: complete
 * results go to whoever can still be reached, and then the job is over. Who may resume and who must end is
 * for the control core to say. */
#include <assert.h>

#include "psc_lane_state.h"

static void stop_qps(struct psc_job *job, uint64_t ranks)
{
    for (uint32_t i = 0; i < job->spec.pool_count; i++)
        for (uint32_t rank = 0; rank < job->spec.world_size; rank++)
            if (ranks >> rank & 1)
                job->pools[i].qps[rank].state = PSC_QP_ERR;
}

void psc_count_fault(struct psc_job *job)
{
    if (job->spec.stats)
        job->spec.stats->faults++;
}

/* A complete result is still to be delivered through this QP: its rank has not left and is not dead. */
static bool owed(const struct psc_job *job, const struct psc_qp *qp)
{
    return !(job->left_ranks >> qp->spec.rank & 1) && qp->state != PSC_QP_ERR &&
           !psc_pool_has_all(&qp->pool->pool, qp->spec.rank);
}

/* Nothing is executed or sent any more; the FAULT that tells it. */
static struct psc_event halt(struct psc_job *job)
{
    if (job->state == PSC_JOB_RUNNING) /* else END has counted it */
        psc_count_fault(job);
    job->state = PSC_JOB_HALTED;
    stop_qps(job, UINT64_MAX);
    return psc_event_of(PSC_EVENT_FAULT, job);
}

void psc_fault_job(struct psc_lane *lane, const struct psc_qp *qp, uint32_t round,
                   const struct psc_refusal *why)
{
    struct psc_job *job = qp->job;

    if (job->state == PSC_JOB_ENDING && !owed(job, qp)) {
        qp->pool->qps[qp->spec.rank].state = PSC_QP_ERR;
        psc_answer_end(lane, job);
        return;
    }
    if (job->state != PSC_JOB_RUNNING && job->state != PSC_JOB_ENDING)
        return;
    struct psc_event event = halt(job);
    event.pool = qp->pool->index;
    event.rank = qp->spec.rank;
    event.round = round;
    event.fault = why->fault;
    event.expected = why->expected;
    event.got = why->got;
    psc_event_push(lane, &event);
}

/* Running: the first of the rank's QPs takes the job with it. Ending: so does the first that still owes a
 * result. Else nothing is left to halt. */
bool psc_job_halt(struct psc_lane *lane, struct psc_job *job, uint32_t rank, uint32_t fault)
{
    const struct psc_refusal why = {.fault = (enum psc_fault)fault};

    if (!psc_job_attached(job) || rank >= job->spec.world_size || fault == PSC_FAULT_NONE ||
        fault >= PSC_FAULT_COUNT)
        return false;
    for (uint32_t i = 0; i < job->spec.pool_count; i++)
        psc_fault_job(lane, &job->pools[i].qps[rank], job->pools[i].pool.completed_rounds, &why);
    return true;
}

bool psc_job_freeze(struct psc_lane *lane, struct psc_job *job)
{
    if (!psc_job_attached(job))
        return false;
    if (job->state == PSC_JOB_HALTED)
        return true;
    struct psc_event event = halt(job);
    psc_event_push(lane, &event);
    return true;
}

bool psc_job_resume(struct psc_lane *lane, struct psc_job *job)
{
    if (job->state != PSC_JOB_HALTED)
        return false;
    psc_forget_qps(lane, job, PSC_QP_RESET);
    for (uint32_t i = 0; i < job->spec.pool_count; i++) {
        struct psc_job_pool *pool = &job->pools[i];
        /* A turn publishes what it has completed before it ends, whatever else it found, and commands come
         * between turns: complete rounds have their CRCs, and what is half published is void. */
        assert(pool->publishing_round == pool->pool.completed_rounds);
        pool->published_packets = 0;
        psc_pool_rewind(&pool->pool);
        pool->first_round = pool->pool.completed_rounds;
        for (uint32_t rank = 0; rank < job->spec.world_size; rank++)
            if (job->left_ranks >> rank & 1) /* does not come back, and wants nothing */
                psc_pool_acknowledge(&pool->pool, rank, pool->pool.completed_rounds);
    }
    job->state = PSC_JOB_RUNNING;
    psc_answer_leavers(lane, job);
    return true;
}

/* QPs of the dead are in ERR: nobody is owed anything through them. A halted job owes its results through QPs
 * that are not there yet: it stays halted, and the FAULT that has crossed the command is the answer. */
bool psc_job_end(struct psc_lane *lane, struct psc_job *job, uint64_t dead_ranks)
{
    if (!psc_job_attached(job))
        return false;
    if (job->state == PSC_JOB_ENDED || job->state == PSC_JOB_HALTED)
        return true;
    if (job->state == PSC_JOB_RUNNING)
        psc_count_fault(job);
    job->state = PSC_JOB_ENDING;
    stop_qps(job, dead_ranks);
    psc_answer_end(lane, job);
    return true;
}

static bool owes_results(const struct psc_job *job)
{
    for (uint32_t i = 0; i < job->spec.pool_count; i++)
        for (uint32_t rank = 0; rank < job->spec.world_size; rank++)
            if (owed(job, &job->pools[i].qps[rank]))
                return true;
    return false;
}

void psc_answer_end(struct psc_lane *lane, struct psc_job *job)
{
    if (job->state != PSC_JOB_ENDING || owes_results(job))
        return;
    job->state = PSC_JOB_ENDED;
    stop_qps(job, UINT64_MAX);
    struct psc_event event = psc_event_of(PSC_EVENT_ENDED, job);
    psc_event_push(lane, &event);
}
