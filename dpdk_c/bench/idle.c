/* psc_bench_idle: what `idle_sleep_us` costs and saves. A lane runs psc_io_lane_main on one CPU; four ranks
 * on another contribute to one round at a time, at moments of their own, so that it finds the lane idle. For
 * each pause in turn, again and again: the CPU that the idle lane takes, then rounds. One JSON object to
 * stdout.
 *
 *   psc_bench_idle [--huge-pages] [--realtime] [--memory-mib N] [--repetitions N] [--rounds N] MICROSECONDS
 * ... */
#include <pthread.h>
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_launch.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lane_workers.h"

#define MAX_PAUSES 8u
#define IDLE_NS    50000000L
#define GAP_NS     400000L /* between rounds, and up to as much again */
#define DRAIN      64u

static const struct bench_case one_packet = {
    .name = "idle", .op = PSC_OP_SUM_I32, .ranks = 4, .mtu = 4096, .window = 4, .packets = 1, .burst = 64};

static struct bench_rig rig;
static struct bench_workers *workers;
static bool huge_pages, realtime;
static uint32_t memory_mib = 128, repetitions = 10, rounds = 200;
static struct {
    uint32_t pause_us;
    uint32_t *ticks; /* [repetition][round] */
    double idle_cpu; /* sum of the repetitions' */
} measured[MAX_PAUSES];
static uint32_t pause_count;
static clockid_t lane_clock;
static uint32_t lane_runs;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pause_ns(long ns)
{
    const struct timespec pause = {.tv_nsec = ns};

    nanosleep(&pause, NULL);
}

static void set_realtime(bool on)
{
    const struct sched_param priority = {.sched_priority = on ? 10 : 0};

    if (realtime && sched_setscheduler(0, on ? SCHED_FIFO : SCHED_OTHER, &priority) != 0)
        bench_fail("--realtime needs CAP_SYS_NICE");
}

static int lane_main(void *argument)
{
    set_realtime(true);
    pthread_getcpuclockid(pthread_self(), &lane_clock);
    __atomic_store_n(&lane_runs, 1, __ATOMIC_RELEASE);
    psc_io_lane_main(argument);
    set_realtime(false);
    return 0;
}

/* What has come from the lane, as it comes. */
static void take(void)
{
    struct rte_mbuf *sent[DRAIN];
    uint32_t count = rte_ring_dequeue_burst(rig.from_lane, (void **)sent, DRAIN, NULL);
    uint64_t now = rte_rdtsc();

    for (uint32_t i = 0; i < count; i++)
        bench_workers_take(workers, sent[i], now);
    rte_pktmbuf_free_bulk(sent, count);
}

/* An ACK's frame is written again only when the lane has let go of it. */
static void wait_for_acks(void)
{
    for (uint32_t rank = 0; rank < one_packet.ranks; rank++)
        while (rte_mbuf_refcnt_read(workers->ranks[rank].ack.m) != 1)
            take();
}

/* One round: from all ranks at once, results taken, ACKs given. */
static void run_round(void)
{
    workers->stop_round = workers->ranks[0].round + 1;
    bench_workers_feed(workers);
    for (uint32_t rank = 0; rank < one_packet.ranks; rank++)
        while (workers->ranks[rank].received_rounds != workers->stop_round)
            take();
    bench_workers_feed(workers);
    wait_for_acks();
}

static void measure(uint32_t which, uint32_t repetition)
{
    rig.lane.idle_sleep_us = measured[which].pause_us;
    rig.lane.stop = 0;
    lane_runs = 0;
    if (rte_eal_remote_launch(lane_main, &rig.lane, rig.lane.lcore) != 0)
        bench_fail("the lane does not start");
    while (!__atomic_load_n(&lane_runs, __ATOMIC_ACQUIRE))
        pause_ns(1000000);
    uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC), cpu_ns = clock_ns(lane_clock);
    pause_ns(IDLE_NS);
    measured[which].idle_cpu += (double)(clock_ns(lane_clock) - cpu_ns) /
                                (double)(clock_ns(CLOCK_MONOTONIC) - begin_ns) / repetitions;
    workers->latency_count = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        pause_ns(GAP_NS + random() % GAP_NS);
        run_round();
    }
    memcpy(measured[which].ticks + (size_t)repetition * rounds, workers->latencies,
           rounds * sizeof(uint32_t));
    __atomic_store_n(&rig.lane.stop, 1, __ATOMIC_RELEASE);
    rte_eal_wait_lcore(rig.lane.lcore);
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static void print_pause(uint32_t which)
{
    static const double parts[] = {0.5, 0.99};
    uint32_t count = repetitions * rounds, *ticks = measured[which].ticks;

    qsort(ticks, count, sizeof *ticks, by_size);
    printf("%s\n{\"idle_sleep_us\": %u, \"idle_cpu\": %.4f, \"last_to_first_us\": [", which == 0 ? "" : ",",
           measured[which].pause_us, measured[which].idle_cpu);
    for (size_t i = 0; i < 2; i++)
        printf("%s%.2f", i == 0 ? "" : ", ",
               ticks[(uint32_t)(count * parts[i])] * 1e6 / (double)rte_get_tsc_hz());
    printf("]}");
}

static void parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        uint32_t *number = strcmp(argv[i], "--memory-mib") == 0    ? &memory_mib
                           : strcmp(argv[i], "--repetitions") == 0 ? &repetitions
                           : strcmp(argv[i], "--rounds") == 0      ? &rounds
                                                                   : NULL;
        if (strcmp(argv[i], "--huge-pages") == 0)
            huge_pages = true;
        else if (strcmp(argv[i], "--realtime") == 0)
            realtime = true;
        else if (number != NULL && i + 1 < argc)
            *number = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (pause_count < MAX_PAUSES)
            measured[pause_count++].pause_us = (uint32_t)strtoul(argv[i], NULL, 10);
        else
            bench_fail("more than %u pauses", MAX_PAUSES);
    }
    if (pause_count == 0 || repetitions == 0 || rounds == 0 || rounds > LATENCIES_KEPT)
        bench_fail("nothing to measure");
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    for (uint32_t i = 0; i < pause_count; i++)
        measured[i].ticks = calloc((size_t)repetitions * rounds, sizeof(uint32_t));
    bench_rig_open_apart(&rig, huge_pages, memory_mib);
    workers = bench_workers_new(&rig, &one_packet, 0);
    set_realtime(true);
    for (uint32_t repetition = 0; repetition < repetitions; repetition++)
        for (uint32_t i = 0; i < pause_count; i++)
            measure(i, repetition);
    set_realtime(false);
    printf("{\"compiler\": \"" PSC_COMPILER
           "\", \"huge_pages\": %s, \"realtime\": %s, \"rounds\": %u, \"pauses\": [",
           huge_pages ? "true" : "false", realtime ? "true" : "false", repetitions * rounds);
    for (uint32_t i = 0; i < pause_count; i++) {
        print_pause(i);
        free(measured[i].ticks);
    }
    printf("]}\n");
    bench_workers_free(workers);
    bench_rig_close(&rig);
    rte_eal_cleanup();
    return EXIT_SUCCESS;
}
