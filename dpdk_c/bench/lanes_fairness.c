/* Two jobs on one lane: one sends a packet, waits for the sum, and sends the next; the other sends all that
 * its window takes. How much later the first one's sums come beside the second is the lane's fairness. */
#include <rte_cycles.h>
#include <stdio.h>
#include <stdlib.h>

#include "lanes_bench.h"

#define DRAIN      1024u
#define NOISY_QPS  16u /* from here on */
#define IDLE_TURNS 1000u

static const struct bench_case quiet = {
    .name = "quiet", .op = PSC_OP_SUM_I32, .ranks = 4, .mtu = 4096, .window = 1, .packets = 1, .burst = 16};
static const struct bench_case noisy = {
    .name = "noisy", .op = PSC_OP_SUM_I32, .ranks = 4, .mtu = 4096, .window = 8, .packets = 16, .burst = 48};

static struct bench_workers *job_of(struct bench_workers *const *jobs, uint32_t count,
                                    const struct rte_mbuf *m)
{
    uint32_t index = rte_pktmbuf_mtod(m, const uint8_t *)[48]; /* the middle byte of the QPN */

    for (uint32_t i = 0; i < count; i++)
        if (jobs[i]->index == index)
            return jobs[i];
    bench_fail("a frame for a job that is not there: %u", index);
}

/* All jobs offer what they may, the lane takes a turn, and all take what came. */
static uint32_t together(struct bench_rig *rig, struct bench_workers *const *jobs, uint32_t count)
{
    struct rte_mbuf *sent[DRAIN];
    uint32_t moved = 0;

    for (uint32_t i = 0; i < count; i++)
        moved += bench_workers_feed(jobs[i]);
    psc_io_lane_turn(&rig->lane);
    uint64_t now = rte_rdtsc();
    uint32_t drained = rte_ring_dequeue_burst(rig->from_lane, (void **)sent, DRAIN, NULL);
    for (uint32_t i = 0; i < drained; i++)
        bench_workers_take(job_of(jobs, count, sent[i]), sent[i], now);
    rte_pktmbuf_free_bulk(sent, drained);
    return moved + drained;
}

static bool all_finished(struct bench_workers *const *jobs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!bench_workers_finished(jobs[i]))
            return false;
    return true;
}

static void run(struct bench_rig *rig, struct bench_workers *const *jobs, uint32_t count, uint64_t ticks)
{
    uint64_t begin = rte_rdtsc();
    uint32_t idle = 0;

    for (uint32_t i = 0; i < count; i++)
        jobs[i]->stop_round = bench_workers_newest_round(jobs[i]) - 1; /* nobody gets so far */
    while (rte_rdtsc() - begin < ticks)
        together(rig, jobs, count);
    for (uint32_t i = 0; i < count; i++)
        jobs[i]->stop_round = bench_workers_newest_round(jobs[i]);
    while (!all_finished(jobs, count) && idle < IDLE_TURNS)
        idle = together(rig, jobs, count) > 0 ? 0 : idle + 1;
    psc_io_lane_turn(&rig->lane); /* the last ACKs */
    if (idle == IDLE_TURNS)
        bench_fail("nothing moves any more");
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static void print_latencies(const char *key, struct bench_workers *workers)
{
    static const double shares[] = {0.5, 0.99, 0.999};
    double us[3];

    if (workers->latency_count == 0)
        bench_fail("no round was complete");
    qsort(workers->latencies, workers->latency_count, sizeof *workers->latencies, by_size);
    for (size_t i = 0; i < 3; i++)
        us[i] =
            bench_ns_of(workers->latencies[(uint32_t)((double)workers->latency_count * shares[i])]) / 1000;
    printf(",\n");
    bench_print_list(key, us, 3);
    workers->latency_count = 0;
}

void bench_fairness(struct bench_rig *rig, uint32_t repetitions, uint64_t ticks)
{
    struct bench_workers *first = bench_workers_new(rig, &quiet, 0);
    struct bench_workers *second = bench_workers_new(rig, &noisy, NOISY_QPS);
    struct bench_workers *const both[] = {first, second};

    for (uint32_t i = 0; i < repetitions; i++)
        run(rig, both, 1, ticks);
    print_latencies("quiet_alone_us", first);
    for (uint32_t i = 0; i < repetitions; i++)
        run(rig, both, 2, ticks);
    print_latencies("quiet_beside_us", first);
    print_latencies("noisy_beside_us", second);
    bench_workers_free(first);
    bench_workers_free(second);
}
