/* sim/: what one life of a job is made of: program, queue pairs with their numbers, buffers. Numbers are
 * drawn as the appliance's control plane draws them: random, and none twice. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define GUARD_BYTES 256u
#define GUARD       0xa5

static uint32_t draw_psn(struct sim *sim, const struct sim_job_plan *job, uint32_t packets)
{
    uint32_t psn = (uint32_t)sim_draw(&sim->random) & PSC_PSN_MASK;

    /* Near enough to the end that the run crosses it, sometimes by a packet. */
    return job->wraps ? (0 - (uint32_t)sim_between(&sim->random, 1, 1 + packets / 2)) & PSC_PSN_MASK : psn;
}

static void make_stream(struct sim_stream *stream, uint32_t start_psn, uint32_t packets)
{
    *stream = (struct sim_stream){.start_psn = start_psn, .packets = packets};
    stream->content = calloc(packets, sizeof *stream->content);
    stream->delivered = calloc(packets, sizeof *stream->delivered);
}

static void make_queue(struct sim *sim, struct sim_job *job, struct sim_queue *queue)
{
    const struct sim_pool_plan *pool = &job->plan->pools[queue->pool];
    const struct sim_round *last = &job->rounds[queue->pool][pool->rounds - 1];
    uint32_t packets = last->first_packet + last->packets, bytes = pool->window * pool->chunk_bytes;
    uint32_t number = sim->next_qp++;

    queue->posted = queue->completed = queue->drained = 0;
    queue->probe_completed = false;
    sim->queues[number] = queue;
    queue->qpn = SIM_QPN_BASE + number;
    /* The same place in the lane's table in every life, and another number: late frames of the life before
     * meet a queue pair that is not theirs. */
    uint32_t place = (job->index * SIM_RANKS + queue->worker->rank) * SIM_POOLS + queue->pool;
    uint32_t high = (job->life * 331 + (uint32_t)sim_below(&sim->random, 331)) & 1023;
    queue->appliance_qpn = high << 14 | place << 4 | 3;
    queue->start_psn = draw_psn(sim, job->plan, packets);
    queue->appliance_psn = draw_psn(sim, job->plan, packets);
    queue->rkey = (uint32_t)sim_draw(&sim->random);
    queue->va_base = sim_draw(&sim->random) >> (64 - PSC_VA_BASE_BITS);
    queue->udp_port = (uint16_t)(0xc000 | sim_below(&sim->random, 0x4000));
    queue->contributions = calloc(1, bytes);
    queue->guarded = malloc(bytes + 2 * GUARD_BYTES);
    memset(queue->guarded, GUARD, bytes + 2 * GUARD_BYTES);
    queue->region = (struct sim_region){.data = queue->guarded + GUARD_BYTES,
                                        .va = sim_draw(&sim->random) >> 17,
                                        .bytes = bytes,
                                        .rkey = (uint32_t)sim_draw(&sim->random)};
    queue->arrived = calloc(pool->rounds, sizeof *queue->arrived);
    make_stream(&queue->out, queue->start_psn, packets);
    make_stream(&queue->in, queue->appliance_psn, packets);
}

void sim_life_make(struct sim *sim, struct sim_job *job)
{
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        const struct sim_pool_plan *pool = &job->plan->pools[p];
        job->rounds[p] = sim_data_program(job->plan, job->life, p);
        job->sums[p] = malloc(4 * pool->window * pool->chunk_bytes);
        job->sum_round[p] = malloc(4 * pool->window * sizeof(uint32_t));
        memset(job->sum_round[p], 0xff, 4 * pool->window * sizeof(uint32_t));
        for (uint32_t rank = 0; rank < job->plan->ranks; rank++) {
            struct sim_queue *queue = &job->workers[rank].queues[p];
            queue->worker = &job->workers[rank];
            queue->pool = p;
            make_queue(sim, job, queue);
        }
    }
}

static void free_queue(struct sim *sim, struct sim_queue *queue)
{
    sim->queues[queue->qpn - SIM_QPN_BASE] = NULL;
    if (queue->endpoint)
        queue->endpoint->ops->release(queue->endpoint);
    free(queue->contributions);
    free(queue->guarded);
    free(queue->arrived);
    free(queue->out.content);
    free(queue->out.delivered);
    free(queue->in.content);
    free(queue->in.delivered);
    *queue = (struct sim_queue){0};
}

void sim_life_free(struct sim *sim, struct sim_job *job)
{
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        free(job->rounds[p]);
        free(job->sums[p]);
        free(job->sum_round[p]);
        job->rounds[p] = NULL;
        job->sums[p] = job->sum_round[p] = NULL;
        for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
            free_queue(sim, &job->workers[rank].queues[p]);
    }
}

void sim_life_spec(const struct sim_job *job, struct psc_job_spec *spec)
{
    *spec = (struct psc_job_spec){.world_size = job->plan->ranks,
                                  .mtu = job->plan->mtu_bytes,
                                  .ops = {PSC_OP_SUM_I32, PSC_OP_SUM_F32, PSC_OP_MAX_F32},
                                  .op_count = SIM_OPS,
                                  .pool_count = SIM_POOLS,
                                  .tag = job->index};
    for (uint32_t p = 0; p < SIM_POOLS; p++)
        spec->pools[p] = (struct psc_pool_spec){.pool_class = p == 0 ? PSC_POOL_DATA : PSC_POOL_SMALL,
                                                .window = job->plan->pools[p].window,
                                                .chunk_bytes = job->plan->pools[p].chunk_bytes};
}

void sim_life_qp(const struct sim_queue *queue, struct psc_qp_spec *spec)
{
    const struct sim_worker *worker = queue->worker;

    *spec = (struct psc_qp_spec){.pool = queue->pool,
                                 .rank = worker->rank,
                                 .qpn = queue->appliance_qpn,
                                 .start_psn = queue->appliance_psn,
                                 .rkey = queue->rkey,
                                 .va_base = queue->va_base,
                                 .udp_port = queue->udp_port,
                                 .peer = {{[10] = 0xff, 0xff}},
                                 .peer_qpn = queue->qpn,
                                 .peer_start_psn = queue->start_psn,
                                 .result_rkey = queue->region.rkey,
                                 .result_va = queue->region.va};
    memcpy(spec->peer.b + 12, worker->ip, 4);
}

void sim_oracle_guards(struct sim *sim, const struct sim_queue *queue)
{
    for (uint32_t i = 0; i < GUARD_BYTES; i++)
        if (queue->guarded[i] != GUARD || queue->region.data[queue->region.bytes + i] != GUARD)
            sim_violation(sim, SIM_RULE_REGION, queue->worker, SIM_NOBODY,
                          "bytes beside the results have changed");
}
