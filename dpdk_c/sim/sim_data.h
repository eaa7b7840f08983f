/* sim/: what the ranks add. Every round's op, length, values, sum and immediate follow from the job's salt;
 * the sums are computed here again, in another way than arith/ does. Pure.
 *
 * Streams of sub-blocks: all ranks have the same elements of a round, so that contributions and result are of
 * one length, as all the rest of the simulation takes them to be. What lengths of their own do, the protocol
 * tests show (test_streams.py, test_lossy.py). */
#ifndef SIM_DATA_H
#define SIM_DATA_H

#include "sim_plan.h"

/* One round of a pool, alike on all ranks. */
struct sim_round {
    uint32_t op;       /* enum psc_op */
    uint32_t elements; /* of a stream of sub-blocks */
    uint32_t bytes, packets;
    uint32_t first_packet; /* in its pool's stream: the probe is packet 0. The same both ways */
    uint32_t imm;
    uint64_t salt;
};

/* The pool's rounds in one life of the job: plan->rounds of them. The caller frees it. */
struct sim_round *sim_data_program(const struct sim_job_plan *job, uint32_t life, uint32_t pool);
/* The op window of a round's op. */
uint32_t sim_data_window(uint32_t op);
uint32_t sim_data_imm(uint32_t sequence, uint32_t chunk, uint32_t op, uint32_t bytes);
void sim_data_contribution(const struct sim_round *round, uint32_t rank, uint32_t *out);
void sim_data_sum(const struct sim_round *round, uint32_t ranks, uint32_t *out);
uint64_t sim_data_hash(const void *data, uint32_t bytes);

#endif
