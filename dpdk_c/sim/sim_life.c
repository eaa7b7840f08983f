/* sim/: what one life of a job is made of: program and buffers; and what each of its epochs has anew: queue
 * pairs with their numbers, drawn as the appliance's control plane draws them: random, and none twice. */
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

static void free_stream(struct sim_stream *stream)
{
    free(stream->content);
    free(stream->delivered);
    *stream = (struct sim_stream){0};
}

/* What is left of the pool's program from this round on. */
static void make_stream(struct sim *sim, const struct sim_queue *queue, struct sim_stream *stream,
                        uint32_t first_round)
{
    const struct sim_job *job = queue->worker->job;
    const struct sim_round *rounds = job->rounds[queue->pool];
    const struct sim_round *last = &rounds[job->plan->pools[queue->pool].rounds - 1];
    uint32_t end = last->first_packet + last->packets;
    uint32_t first = first_round > (uint32_t)(last - rounds) ? end : rounds[first_round].first_packet;

    free_stream(stream);
    *stream = (struct sim_stream){.first_round = first_round, .base = first - 1, .packets = end - first + 1};
    stream->start_psn = draw_psn(sim, job->plan, stream->packets);
    stream->content = calloc(stream->packets, sizeof *stream->content);
    stream->delivered = calloc(stream->packets, sizeof *stream->delivered);
}

static uint32_t place_of(const struct sim_queue *queue)
{
    const struct sim_worker *worker = queue->worker;

    return (worker->job->index * SIM_RANKS + worker->rank) * SIM_POOLS + queue->pool;
}

struct sim_queue *sim_life_queue(struct sim *sim, uint32_t qpn)
{
    uint32_t place = qpn & ((1u << SIM_PLACE_BITS) - 1);
    uint32_t pool = place % SIM_POOLS, rank = place / SIM_POOLS % SIM_RANKS;
    uint32_t job = place / SIM_POOLS / SIM_RANKS;
    struct sim_queue *queue = job < SIM_JOBS ? &sim->jobs[job].workers[rank].queues[pool] : NULL;

    return queue && qpn != 0 && queue->qpn == qpn ? queue : NULL;
}

static void renew_queue(struct sim *sim, struct sim_queue *queue)
{
    struct sim_worker *worker = queue->worker;
    struct sim_job *job = worker->job;
    uint32_t place = place_of(queue);

    make_stream(sim, queue, &queue->out, job->complete[queue->pool]);
    make_stream(sim, queue, &queue->in, job->received[worker->rank][queue->pool]);
    queue->probe_completed = false;
    queue->qpn = SIM_QPN_BASE + (sim->next_qp++ << SIM_PLACE_BITS | place);
    /* The same place in the lane's table in every epoch, and another number for the next 1023: late frames of
     * the epoch before meet a queue pair that is not theirs. */
    uint32_t high = (uint32_t)(job->plan->salt + 331 * job->queue_pairs) & 1023;
    queue->appliance_qpn = high << 14 | place << 4 | 3;
    queue->start_psn = queue->out.start_psn;
    queue->appliance_psn = queue->in.start_psn;
    queue->rkey = (uint32_t)sim_draw(&sim->random);
    queue->va_base = sim_draw(&sim->random) >> (64 - PSC_VA_BASE_BITS);
    queue->udp_port = (uint16_t)(0xc000 | sim_below(&sim->random, 0x4000));
}

void sim_life_renew(struct sim *sim, struct sim_worker *worker)
{
    for (uint32_t p = 0; p < SIM_POOLS; p++)
        renew_queue(sim, &worker->queues[p]);
}

static void make_queue(struct sim *sim, struct sim_job *job, struct sim_queue *queue)
{
    const struct sim_pool_plan *pool = &job->plan->pools[queue->pool];
    uint32_t bytes = pool->window * pool->chunk_bytes;

    queue->contributions = calloc(1, bytes);
    queue->guarded = malloc(bytes + 2 * GUARD_BYTES);
    memset(queue->guarded, GUARD, bytes + 2 * GUARD_BYTES);
    queue->region = (struct sim_region){.data = queue->guarded + GUARD_BYTES,
                                        .va = sim_draw(&sim->random) >> 17,
                                        .bytes = bytes,
                                        .rkey = (uint32_t)sim_draw(&sim->random)};
    queue->arrived = calloc(pool->rounds, sizeof *queue->arrived);
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

static void free_queue(struct sim_queue *queue)
{
    if (queue->endpoint)
        queue->endpoint->ops->release(queue->endpoint);
    free(queue->contributions);
    free(queue->guarded);
    free(queue->arrived);
    free_stream(&queue->out);
    free_stream(&queue->in);
    *queue = (struct sim_queue){0};
}

void sim_life_free(struct sim_job *job)
{
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        free(job->rounds[p]);
        free(job->sums[p]);
        free(job->sum_round[p]);
        job->rounds[p] = NULL;
        job->sums[p] = job->sum_round[p] = NULL;
        for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
            free_queue(&job->workers[rank].queues[p]);
    }
}

void sim_life_spec(const struct sim_job *job, struct psc_job_spec *spec)
{
    *spec =
        (struct psc_job_spec){.world_size = job->plan->ranks,
                              .mtu = job->plan->mtu_bytes,
                              .ops = {PSC_OP_SUM_I32, PSC_OP_SUM_F32, PSC_OP_MAX_F32, PSC_OP_EXPAND_SUM_I32},
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
                                 .result_va = queue->region.va,
                                 .received = queue->in.first_round};
    memcpy(spec->peer.b + 12, worker->ip, 4);
}

void sim_oracle_guards(struct sim *sim, const struct sim_queue *queue)
{
    for (uint32_t i = 0; i < GUARD_BYTES; i++)
        if (queue->guarded[i] != GUARD || queue->region.data[queue->region.bytes + i] != GUARD)
            sim_violation(sim, SIM_RULE_REGION, queue->worker, SIM_NOBODY,
                          "bytes beside the results have changed");
}
