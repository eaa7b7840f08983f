/* What a variant of the codec lhc is, private to this room: the work on a chunk's blocks for one instruction
 * set. docs/lhc.md is the specification of every bit. Call a variant only on a CPU that has it. */
#ifndef PSC_KERNELS_SKETCH_H
#define PSC_KERNELS_SKETCH_H

#include "psc_kernels.h"

enum {
    LHC_LANES = 32, /* elements of a block, buckets of a row, bits of a word of a bitmap */
    LHC_TABLES = 3,
    LHC_GROUP = 16, /* blocks whose hashes are made together */
    LHC_CROWDED = 255,
};

/* Where blocks go. A place is (row << 5 | rotation), rows numbered through the three sub-tables: bucket of
 * lane l is (place & ~31) + ((l + place) & 31). Bit l of a sign negates lane l. */
struct psc_lhc_group {
    uint32_t place[LHC_TABLES][LHC_GROUP];
    uint32_t sign[LHC_TABLES][LHC_GROUP];
};

/* How a value becomes an integer, or the way back: times both factors, powers of two. */
struct psc_lhc_scale {
    float first, rest;
};

/* Lanes of a block that peel at one time, by the sub-table that has them alone in a bucket. */
struct psc_lhc_turn {
    uint32_t block;
    uint32_t by[LHC_TABLES];
};

/* A chunk while it peels; everything but the table is scratch. One element of each array for a block. */
struct psc_lhc_peeling {
    uint32_t *place[LHC_TABLES];
    uint32_t *sign[LHC_TABLES];
    uint32_t *left;   /* elements that have not peeled */
    uint32_t *active; /* numbers of the blocks that have some */
    uint64_t blocks, actives;
    uint8_t *counts; /* of each bucket: its elements that have not peeled; LHC_CROWDED stays */
    /* What a pass has peeled, in its order; NULL: nobody asks. */
    struct psc_lhc_turn *turns;
    uint64_t turned;
};

struct psc_lhc_variant {
    /* Blocks first .. first + LHC_GROUP - 1. */
    void (*hash)(const struct psc_lhc_hash *hash, uint32_t first, struct psc_lhc_group *group);
    /* Adds the first `blocks` blocks of a group to their rows; `live`: the lanes that are to be added. */
    void (*sketch)(const struct psc_lhc_group *group, const uint32_t live[LHC_GROUP], uint32_t blocks,
                   const float *values, struct psc_lhc_scale scale, int32_t *table);
    /* Counts what is left of blocks first .. end - 1, and makes those active that have some. */
    void (*count)(struct psc_lhc_peeling *peeling, uint64_t first, uint64_t end);
    /* One pass over the active blocks; whether anything peeled. */
    bool (*sweep)(struct psc_lhc_peeling *peeling);
};

extern const struct psc_lhc_variant psc_lhc_scalar;
#ifdef __x86_64__
extern const struct psc_lhc_variant psc_lhc_avx2;
extern const struct psc_lhc_variant psc_lhc_avx512;
#endif

#endif
