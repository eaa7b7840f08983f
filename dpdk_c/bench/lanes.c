/* psc_bench_lanes: what a second lane gives, what a dispatcher costs, and what one job's latency is beside a
 * noisy one. One JSON object to stdout, with a value per repetition.
 *
 *   psc_bench_lanes [--huge-pages] [--realtime] [--memory-mib N] [--repetitions N] [--slice-ms N]
 *
 * Two lanes fed as psc_bench_lane feeds one, each on a core of its own. In every repetition, in turn: a copy
 * of memory on one core and on both, then one lane and both. So whatever slows the machine slows all four. */
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_launch.h>
#include <rte_malloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lanes_bench.h"
#include "psc_arith.h"

#define LANES           2u
#define MAX_REPETITIONS 200u
#define COPY_BYTES      4096u
#define COPY_SET_BYTES  (256u * 1024)

static struct bench_rig rigs[LANES];
static bool huge_pages, realtime;
static uint32_t memory_mib = 256, repetitions = 9, slice_ms = 20;

/* int32 of four ranks, L2-resident: what a lane is judged by. */
static const struct bench_case whole = {
    .name = "int32", .op = PSC_OP_SUM_I32, .ranks = 4, .mtu = 4096, .window = 4, .packets = 8, .burst = 64};

/* One core's part of a repetition. */
struct part {
    struct bench_workers *workers;
    uint8_t *set;      /* to be copied */
    bool lane;         /* else memory */
    uint64_t begin_at; /* TSC: both at once */
    double ns;         /* per packet, or per copy of a packet's bytes */
    uint64_t packets, ticks;
};

static struct part parts[LANES];
static double measured[2][2][LANES][MAX_REPETITIONS]; /* [lane or copy][one or two][core] */

static uint64_t ticks_of_ms(uint32_t ms)
{
    return rte_get_tsc_hz() / 1000 * ms;
}

double bench_ns_of(double ticks)
{
    return ticks * 1e9 / (double)rte_get_tsc_hz();
}

/* On a machine that others use: nobody takes a core from a repetition. Not around EAL's start and end, which
 * spin for a thread that would then never run. */
void bench_set_realtime(bool on)
{
    const struct sched_param priority = {.sched_priority = on ? 10 : 0};

    if (realtime && sched_setscheduler(0, on ? SCHED_FIFO : SCHED_OTHER, &priority) != 0)
        bench_fail("--realtime needs CAP_SYS_NICE");
}

/* Half of the set to the other half, one call of 4 KiB after the other. */
static double copy_ns(uint8_t *set, uint64_t ticks)
{
    void *(*volatile copy)(void *, const void *, size_t) = memcpy;
    uint64_t begin = rte_rdtsc(), calls = 0;

    while (rte_rdtsc() - begin < ticks)
        for (uint32_t at = 0; at < COPY_SET_BYTES / 2; at += COPY_BYTES, calls++)
            copy(set + COPY_SET_BYTES / 2 + at, set + at, COPY_BYTES);
    return bench_ns_of((double)(rte_rdtsc() - begin) / (double)calls);
}

static int run_part(void *argument)
{
    struct part *part = argument;
    struct bench_times times = {0};

    bench_set_realtime(true);
    while (rte_rdtsc() < part->begin_at)
        ;
    if (part->lane) {
        bench_workers_run(part->workers, ticks_of_ms(slice_ms), &times);
        part->ns = bench_ns_of((double)times.lane_ticks / (double)times.contribution_packets);
    } else {
        part->ns = copy_ns(part->set, ticks_of_ms(slice_ms));
    }
    bench_set_realtime(false);
    return 0;
}

/* The first core alone, or both at once. */
static void run(bool lane, uint32_t cores, uint32_t repetition)
{
    for (uint32_t i = 0; i < cores; i++) {
        parts[i].lane = lane;
        parts[i].begin_at = rte_rdtsc() + ticks_of_ms(1);
    }
    for (uint32_t i = 1; i < cores; i++)
        if (rte_eal_remote_launch(run_part, &parts[i], PSC_IO_LANE_LCORE(i)) != 0)
            bench_fail("an lcore does not start");
    run_part(&parts[0]);
    for (uint32_t i = 1; i < cores; i++)
        rte_eal_wait_lcore(PSC_IO_LANE_LCORE(i));
    for (uint32_t i = 0; i < cores; i++)
        measured[lane][cores - 1][i][repetition] = parts[i].ns;
}

void bench_print_list(const char *key, const double *values, uint32_t count)
{
    printf("\"%s\": [", key);
    for (uint32_t i = 0; i < count; i++)
        printf("%s%.2f", i == 0 ? "" : ", ", values[i]);
    printf("]");
}

static void print_scaling(void)
{
    static const char *const keys[2][2][LANES] = {{{"copy_one_ns", ""}, {"copy_two_ns_0", "copy_two_ns_1"}},
                                                  {{"lane_one_ns", ""}, {"lane_two_ns_0", "lane_two_ns_1"}}};

    for (int lane = 0; lane < 2; lane++)
        for (uint32_t cores = 1; cores <= 2; cores++)
            for (uint32_t i = 0; i < cores; i++) {
                printf(",\n");
                bench_print_list(keys[lane][cores - 1][i], measured[lane][cores - 1][i], repetitions);
            }
}

static void parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        uint32_t *number = strcmp(argv[i], "--memory-mib") == 0    ? &memory_mib
                           : strcmp(argv[i], "--repetitions") == 0 ? &repetitions
                           : strcmp(argv[i], "--slice-ms") == 0    ? &slice_ms
                                                                   : NULL;
        if (strcmp(argv[i], "--huge-pages") == 0)
            huge_pages = true;
        else if (strcmp(argv[i], "--realtime") == 0)
            realtime = true;
        else if (number != NULL && i + 1 < argc)
            *number = (uint32_t)strtoul(argv[++i], NULL, 10);
        else
            bench_fail("%s is no option", argv[i]);
    }
    if (repetitions == 0 || repetitions > MAX_REPETITIONS)
        bench_fail("nothing to measure");
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    bench_rigs_open(rigs, LANES, huge_pages, memory_mib);
    for (uint32_t i = 0; i < LANES; i++) {
        parts[i].workers = bench_workers_new(&rigs[i], &whole, 0);
        parts[i].set = rte_zmalloc("psc_bench_copy", COPY_SET_BYTES, 4096);
        if (parts[i].set == NULL)
            bench_fail("no memory");
    }
    for (uint32_t i = 0; i < repetitions; i++) {
        run(false, 1, i);
        run(true, 1, i);
        run(false, 2, i);
        run(true, 2, i);
    }
    printf("{\"variant\": \"%s\", \"compiler\": \"" PSC_COMPILER
           "\", \"huge_pages\": %s, \"realtime\": %s, \"repetitions\": %u",
           psc_arith_variant(), huge_pages ? "true" : "false", realtime ? "true" : "false", repetitions);
    print_scaling();
    bench_set_realtime(true);
    bench_dispatcher(&rigs[0], parts[0].workers, repetitions, ticks_of_ms(slice_ms));
    bench_workers_free(parts[0].workers);
    bench_fairness(&rigs[0], repetitions, ticks_of_ms(slice_ms));
    bench_set_realtime(false);
    printf("}\n");
    bench_workers_free(parts[1].workers);
    for (uint32_t i = 0; i < LANES; i++)
        bench_rig_close(&rigs[i]);
    rte_eal_cleanup();
    return EXIT_SUCCESS;
}
