/* bench/: what the files of psc_bench_lanes share. */
#ifndef PSC_BENCH_LANES_H
#define PSC_BENCH_LANES_H

#include "lane_workers.h"

double bench_ns_of(double ticks);
void bench_set_realtime(bool on); /* of this thread, if --realtime says so */
/* "key": [value, ...] */
void bench_print_list(const char *key, const double *values, uint32_t count);

/* lanes_dispatcher.c: a dispatcher in front of eight lanes' rings, with a job's frames. Prints the ns of
 * those of its turns that find a full burst, per frame: dispatch_ns with all rings on its own core,
 * dispatch_beside_ns with their other ends on the other one at the same time, dispatch_rewritten_ns with
 * headers that that one has just written; and of the last dispatch_frames_per_us, all turns together. The
 * rig's own lane does nothing meanwhile. */
void bench_dispatcher(struct bench_rig *rig, struct bench_workers *workers, uint32_t repetitions,
                      uint64_t ticks);

/* lanes_fairness.c: latency of a job that sends a little, alone on its lane and beside one that sends all it
 * can. Prints quiet_alone_us and quiet_beside_us, each p50, p99 and p99.9 of all repetitions. */
void bench_fairness(struct bench_rig *rig, uint32_t repetitions, uint64_t ticks);

#endif
