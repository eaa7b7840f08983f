/* psc_bench_lane: how fast one lane is without wire and NIC. Cases are measured in turn, again and again, a
 * copy of memory in 4 KiB calls between any two, so that whatever slows the machine slows all; one JSON
 * object with a value per repetition goes to stdout.
 *
 *   psc_bench_lane [--huge-pages] [--realtime] [--in-turn] [--stepped] [--memory-mib N] [--repetitions N]
 *                  [--slice-ms N] [--idle-qps N] CASE ...
 *   CASE: name,op,ranks,mtu,window,packets,lag,burst,density,shared
 *
 * op is a number of enum psc_op; packets is a contribution's length, of a stream the slot's; density and
 * shared are of streams (lane_bench.h). */
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_malloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lane_workers.h"
#include "psc_arith.h"
#define MAX_CASES       32u
#define MAX_REPETITIONS 200u
#define STEPPED_PACKETS 256u
#define COPY_BYTES      4096u
#define COPY_SET_BYTES  (256u * 1024)

static struct bench_rig rig;
static struct bench_case cases[MAX_CASES];
static uint32_t case_count;
static char names[MAX_CASES][64];
static bool huge_pages, realtime, in_turn, stepped;
static uint32_t memory_mib = 192, repetitions = 9, slice_ms = 10, idle_qps;

static struct {
    struct bench_workers *workers;
    double lane_ns[MAX_REPETITIONS], feed_ns[MAX_REPETITIONS], copy_ns[MAX_REPETITIONS];
    double kernel_ns[MAX_REPETITIONS];
    double packets_per_turn;
} measured[MAX_CASES];

static uint64_t ticks_of_ms(uint32_t ms)
{
    return rte_get_tsc_hz() / 1000 * ms;
}

static double ns_of(double ticks)
{
    return ticks * 1e9 / (double)rte_get_tsc_hz();
}

/* Nanoseconds of a copy of 4 KiB: half of the set to the other half, one call after the other. */
static double copy_ns(void)
{
    static uint8_t *set;
    void *(*volatile copy)(void *, const void *, size_t) = memcpy;
    uint64_t begin = rte_rdtsc(), calls = 0;

    if (set == NULL && (set = rte_zmalloc("psc_bench_copy", COPY_SET_BYTES, 4096)) == NULL)
        bench_fail("no memory");
    while (rte_rdtsc() - begin < ticks_of_ms(2))
        for (uint32_t at = 0; at < COPY_SET_BYTES / 2; at += COPY_BYTES, calls++)
            copy(set + COPY_SET_BYTES / 2 + at, set + at, COPY_BYTES);
    return ns_of((double)(rte_rdtsc() - begin) / (double)calls);
}

static void measure(uint32_t repetition)
{
    double before = copy_ns();

    for (uint32_t i = 0; i < case_count; i++) {
        struct bench_times times = {0};
        bench_workers_run(measured[i].workers, ticks_of_ms(slice_ms), &times);
        double packets = (double)times.contribution_packets, after = copy_ns();
        measured[i].lane_ns[repetition] = ns_of((double)times.lane_ticks / packets);
        measured[i].feed_ns[repetition] = ns_of((double)times.feed_ticks / packets);
        measured[i].copy_ns[repetition] = (before + after) / 2;
        measured[i].kernel_ns[repetition] =
            ns_of(bench_kernels_run(measured[i].workers, ticks_of_ms(slice_ms) / 4));
        measured[i].packets_per_turn = packets / (double)times.turns;
        before = copy_ns();
    }
}

/* ---- The report ---- */

static void print_list(const char *key, const double *values)
{
    printf(", \"%s\": [", key);
    for (uint32_t i = 0; i < repetitions; i++)
        printf("%s%.2f", i == 0 ? "" : ", ", values[i]);
    printf("]");
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static void print_latencies(struct bench_workers *workers)
{
    static const double parts[] = {0.5, 0.99, 0.999};
    uint32_t *ticks = workers->latencies, count = workers->latency_count;

    qsort(ticks, count, sizeof *ticks, by_size);
    printf(", \"latency_us\": [");
    for (size_t i = 0; i < 3; i++) {
        uint32_t at = (uint32_t)((double)count * parts[i]);
        printf("%s%.2f", i == 0 ? "" : ", ", count == 0 ? 0 : ns_of(ticks[at]) / 1000);
    }
    printf("], \"latency_rounds\": %u", count);
}

/* Of a whole round, per contribution packet: ranks' streams need not be alike. */
static void print_shape(const struct bench_workers *workers)
{
    const struct bench_case *one = &workers->one;
    bool stream = bench_is_stream(one->op);
    double packets = 0, bytes = 0, values = 0, elements = 0;

    for (uint32_t rank = 0; rank < one->ranks; rank++) {
        packets += workers->ranks[rank].packets;
        bytes += workers->ranks[rank].bytes;
        elements +=
            stream ? bench_stream_elements(one) : bench_coordinates(one->op, workers->ranks[rank].bytes);
        values +=
            stream ? bench_stream_values(one, rank) : bench_coordinates(one->op, workers->ranks[rank].bytes);
    }
    printf(
        "\"payload_bytes_per_packet\": %.2f, \"coordinates_per_packet\": %.2f, \"values_per_packet\": %.2f, "
        "\"result_bytes\": %u, ",
        bytes / packets, elements / packets, values / packets, workers->result_bytes);
}

static void print_case(uint32_t i)
{
    const struct bench_case *one = &cases[i];

    printf("%s\n{\"name\": \"%s\", \"op\": %u, \"ranks\": %u, \"mtu\": %u, \"window\": %u, \"packets\": %u, "
           "\"lag\": %u, \"burst\": %u, ",
           i == 0 ? "" : ",", one->name, (uint32_t)one->op, one->ranks, one->mtu, one->window, one->packets,
           one->lag, one->burst);
    print_shape(measured[i].workers);
    printf("\"slot_bytes\": %u, \"packets_per_turn\": %.1f",
           2 * one->window * one->packets * one->mtu * psc_op_form(one->op)->expansion,
           measured[i].packets_per_turn);
    print_list("lane_ns", measured[i].lane_ns);
    print_list("feed_ns", measured[i].feed_ns);
    print_list("copy_ns", measured[i].copy_ns);
    print_list("kernel_ns", measured[i].kernel_ns);
    print_latencies(measured[i].workers);
    printf("}");
}

/* ---- The command line ---- */

static void add_case(char *text)
{
    uint32_t values[9] = {0};
    char *name = strsep(&text, ",");

    for (int i = 0; i < 9; i++) {
        const char *value = strsep(&text, ",");
        if (value == NULL)
            bench_fail(
                "a case is name,op,ranks,mtu,window,packets,lag,burst,density,shared: %s has %d values", name,
                i + 1);
        values[i] = (uint32_t)strtoul(value, NULL, 10);
    }
    if (case_count == MAX_CASES)
        bench_fail("more than %u cases", MAX_CASES);
    snprintf(names[case_count], sizeof names[0], "%s", name);
    cases[case_count] = (struct bench_case){.name = names[case_count],
                                            .op = (enum psc_op)values[0],
                                            .ranks = values[1],
                                            .mtu = values[2],
                                            .window = values[3],
                                            .packets = values[4],
                                            .lag = values[5],
                                            .burst = values[6],
                                            .density = values[7],
                                            .shared = values[8] != 0};
    case_count++;
}

static void parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        uint32_t *number = strcmp(argv[i], "--memory-mib") == 0    ? &memory_mib
                           : strcmp(argv[i], "--repetitions") == 0 ? &repetitions
                           : strcmp(argv[i], "--slice-ms") == 0    ? &slice_ms
                           : strcmp(argv[i], "--idle-qps") == 0    ? &idle_qps
                                                                   : NULL;
        if (strcmp(argv[i], "--huge-pages") == 0)
            huge_pages = true;
        else if (strcmp(argv[i], "--realtime") == 0)
            realtime = true;
        else if (strcmp(argv[i], "--in-turn") == 0)
            in_turn = true;
        else if (strcmp(argv[i], "--stepped") == 0)
            stepped = true;
        else if (number != NULL && i + 1 < argc)
            *number = (uint32_t)strtoul(argv[++i], NULL, 10);
        else
            add_case(argv[i]);
    }
    if (case_count == 0 || idle_qps > 512 || repetitions == 0 || repetitions > MAX_REPETITIONS)
        bench_fail("nothing to measure");
}

/* On a machine that others use: nobody takes the core from a repetition. Not around EAL's start and end,
 * which spin for a thread that would then never run. */
static void set_realtime(bool on)
{
    const struct sched_param priority = {.sched_priority = on ? 10 : 0};

    if (realtime && sched_setscheduler(0, on ? SCHED_FIFO : SCHED_OTHER, &priority) != 0)
        bench_fail("--realtime needs CAP_SYS_NICE");
}

static void print_report(void)
{
    printf("{\"variant\": \"%s\", \"compiler\": \"" PSC_COMPILER
           "\", \"huge_pages\": %s, \"realtime\": %s, \"repetitions\": %u, \"cases\": [",
           psc_arith_variant(), huge_pages ? "true" : "false", realtime ? "true" : "false", repetitions);
    for (uint32_t i = 0; i < case_count; i++)
        print_case(i);
    printf("]}\n");
}

/* Whoever holds the other end of the pipes says when. */
static void await_turn(void)
{
    if (in_turn && getchar() == EOF)
        bench_fail("nobody gives the turn any more");
}

static void give_turn(void)
{
    if (in_turn && (putchar('.') == EOF || fflush(stdout) != 0))
        bench_fail("nobody takes the turn any more");
}

static void measure_all(void)
{
    set_realtime(true);
    for (uint32_t i = 0; i < repetitions; i++) {
        await_turn();
        measure(i);
        give_turn();
    }
    set_realtime(false);
}

/* Warm first: rounds that nobody counts. */
static void step(void)
{
    struct bench_times warm = {0}, times = {.stepped_packets = STEPPED_PACKETS};

    bench_workers_run(measured[0].workers, ticks_of_ms(slice_ms), &warm);
    bench_workers_run(measured[0].workers, 1, &times);
    printf("%lu\n", times.contribution_packets);
}

/* Connected, and never used. */
static void make_idle_jobs(struct bench_workers **jobs, uint32_t qps)
{
    static const struct bench_case idle = {.name = "idle",
                                           .op = PSC_OP_SUM_I32,
                                           .ranks = 64,
                                           .mtu = 1024,
                                           .window = 1,
                                           .packets = 1,
                                           .burst = 64};

    for (uint32_t i = 0; i * idle.ranks < idle_qps; i++, qps += idle.ranks)
        jobs[i] = bench_workers_new(&rig, &idle, qps);
}

int main(int argc, char **argv)
{
    static struct bench_workers *idle_jobs[PSC_MAX_RANKS];
    uint32_t qps = 0;

    parse(argc, argv);
    bench_rig_open(&rig, huge_pages, memory_mib);
    for (uint32_t i = 0; i < case_count; qps += cases[i].ranks, i++)
        measured[i].workers = bench_workers_new(&rig, &cases[i], qps);
    make_idle_jobs(idle_jobs, qps);
    if (stepped) {
        step();
    } else {
        measure_all();
        print_report();
    }
    for (uint32_t i = 0; i < case_count; i++)
        bench_workers_free(measured[i].workers);
    for (uint32_t i = 0; idle_jobs[i] != NULL; i++)
        bench_workers_free(idle_jobs[i]);
    bench_rig_close(&rig);
    rte_eal_cleanup();
    return EXIT_SUCCESS;
}
