/* bench/: what the files of psc_bench_lane share. A real lane of io/ on a ring port, fed on its own core by N
 * workers whose frames were built beforehand: no other core, no wire and no NIC is in what is measured.
 *
 *   feed -> psc_io_lane_turn -> drain
 *
 * Only the turn (and giving the sent mbufs back, which a NIC's driver does inside it) counts as the lane's
 * time; feeding and draining are timed beside it and told. */
#ifndef PSC_BENCH_LANE_H
#define PSC_BENCH_LANE_H

#include "psc_io_internal.h"

#ifdef __clang__
#define PSC_COMPILER __VERSION__
#else
#define PSC_COMPILER "gcc " __VERSION__
#endif

#define BENCH_STAMPS                                                                                         \
    3u /* odd: no two rounds of one slot in a row have the same, slots being a power of two */

struct bench_case {
    const char *name;
    enum psc_op op;
    uint32_t ranks, mtu;
    uint32_t window;
    uint32_t packets; /* of a contribution, all full; of a stream, those that fill its slot */
    uint32_t lag;     /* packets that each rank is behind the one before it */
    uint32_t burst;   /* frames offered at once, at most PSC_IO_BURST */
    uint32_t density; /* of a stream: percent of its elements that are there */
    bool shared;      /* of a stream: all ranks have the same elements, else each draws its own */
};

/* lane_values.c: contributions and sums. */
uint8_t bench_table_entry(uint32_t entries, uint32_t index);
/* Elements of `bytes` of a contribution that is no stream. */
uint32_t bench_coordinates(enum psc_op op, uint32_t bytes);
/* A small whole number; a stamped one differs with the stamp. */
uint32_t bench_value(uint32_t rank, uint32_t packet, uint32_t elem, bool stamped, uint32_t stamp);
uint32_t bench_f32_bits(uint32_t value);
bool bench_is_stream(enum psc_op op);
/* The rank's whole contribution, and what must come back; how many bytes. In each packet of a contribution
 * one word at most differs with the stamp. */
uint32_t bench_contribution(const struct bench_case *one, uint32_t rank, uint32_t stamp, uint8_t *bytes);
uint32_t bench_result(const struct bench_case *one, uint32_t stamp, uint8_t *bytes);

/* lane_streams.c: the same of the ops whose contributions are streams of sub-blocks. */
uint32_t bench_stream(const struct bench_case *one, uint32_t rank, uint32_t stamp, uint8_t *bytes);
uint32_t bench_stream_sum(const struct bench_case *one, uint32_t stamp, uint8_t *bytes);
/* Elements of the array that a stream stands for, and of them those that the rank has. */
uint32_t bench_stream_elements(const struct bench_case *one);
uint32_t bench_stream_values(const struct bench_case *one, uint32_t rank);

/* lane_rig.c: EAL, a ring port and a lane on it, as io.c makes them, but driven by the caller. */
struct bench_rig {
    struct psc_io_port port;
    struct psc_io_lane lane;
    struct psc_lane_stats stats;
    struct psc_job_stats job_stats;
    struct rte_ring *to_lane, *from_lane;
    struct rte_mempool *frames; /* the workers' */
};
void bench_rig_open(struct bench_rig *rig, bool huge_pages, uint32_t memory_mib);
/* Several, of which the caller's core drives the first, and lcore PSC_IO_LANE_LCORE(i) may drive the i-th. */
void bench_rigs_open(struct bench_rig *rigs, uint32_t lanes, bool huge_pages, uint32_t memory_mib);
/* One that its lcore drives while the caller, on another CPU, feeds and drains it: payloads are copied, since
 * nobody but the lane may let go of a lent one. */
void bench_rig_open_apart(struct bench_rig *rig, bool huge_pages, uint32_t memory_mib);
void bench_rig_close(struct bench_rig *rig);
void bench_command(struct bench_rig *rig, const struct psc_command *command);
/* The next event must be this one: a benchmark of a job that has failed measures nothing. */
void bench_expect_event(struct bench_rig *rig, enum psc_event_kind kind);
/* Prints why and exits: the caller of the program reads it. */
__attribute__((noreturn, format(printf, 1, 2))) void bench_fail(const char *format, ...);

/* lane_connect.c, lane_workers.c: N workers of one job. */
struct bench_workers;
struct bench_times {
    uint64_t lane_ticks, feed_ticks;
    uint64_t contribution_packets, turns;
    uint64_t stepped_packets; /* not 0: to run until so many, with SIGUSR1 raised around the lane's turns */
};
struct bench_workers *bench_workers_new(struct bench_rig *rig, const struct bench_case *one, uint32_t index);
/* Feeds whole rounds until at least `ticks` of the TSC have passed, and then takes every result and
 * acknowledges it. Adds to *times. */
void bench_workers_run(struct bench_workers *workers, uint64_t ticks, struct bench_times *times);
/* CRC, addition and CRC of the result over the same frames, and nothing else: ticks of the TSC for one
 * contribution packet. */
double bench_kernels_run(struct bench_workers *workers, uint64_t ticks);
/* Ticks from a round's last contribution to the first byte of its result, smallest first; how many. */
uint32_t bench_workers_latencies(struct bench_workers *workers, const uint32_t **ticks);
void bench_workers_free(struct bench_workers *workers);

#endif
