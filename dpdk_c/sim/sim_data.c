/* sim/: values, sums and immediates. */
#include "sim_data.h"

#include <stdlib.h>
#include <string.h>

#include "psc_wire.h"

static uint32_t crc32_of(const uint8_t *data, uint32_t bytes)
{
    uint32_t crc = 0xffffffffu;

    for (uint32_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

uint32_t sim_data_imm(uint32_t sequence, uint32_t chunk, uint32_t op, uint32_t bytes)
{
    const uint32_t fields[PSC_IMM_FIELDS] = {sequence, chunk, op, bytes, bytes / 4};

    return crc32_of((const uint8_t *)fields, sizeof fields);
}

/* Full chunks, single elements and everything between. */
static uint32_t draw_bytes(struct sim_random *random, const struct sim_job_plan *job, uint32_t chunk_bytes)
{
    uint64_t kind = sim_below(random, 8);

    if (kind < 2)
        return chunk_bytes;
    if (kind == 2)
        return 4;
    if (kind == 3) /* whole packets */
        return (uint32_t)sim_between(random, 1, chunk_bytes / job->mtu_bytes) * job->mtu_bytes;
    return 4 * (uint32_t)sim_between(random, 1, chunk_bytes / 4);
}

uint32_t sim_data_window(uint32_t op)
{
    return op == PSC_OP_EXPAND_SUM_I32 ? SIM_OPS : op;
}

/* ---- Streams of sub-blocks. ---- */

#define SUB_BLOCK 2048u

/* Of a stream with these words and elements: as many sub-blocks as can be have all of theirs, one has some,
 * the others none. False: that cannot be, since what is left is no bitmap with some of its bits. */
struct layout {
    uint32_t sub_blocks, full, some; /* some: elements in sub-block `full`; 0: it has none either */
};

static uint32_t size_of(uint32_t elements, uint32_t sub_block)
{
    uint32_t rest = elements - sub_block * SUB_BLOCK;

    return rest < SUB_BLOCK ? rest : SUB_BLOCK;
}

static bool lay_out(uint32_t words, uint32_t elements, struct layout *layout)
{
    *layout = (struct layout){.sub_blocks = (elements + SUB_BLOCK - 1) / SUB_BLOCK};
    if (words < 1 + layout->sub_blocks)
        return false;
    uint32_t rest = words - 1 - layout->sub_blocks;
    while (layout->full < layout->sub_blocks && rest >= size_of(elements, layout->full))
        rest -= size_of(elements, layout->full++);
    if (rest == 0)
        return true;
    if (layout->full == layout->sub_blocks)
        return false;
    uint32_t size = size_of(elements, layout->full), bitmap = (size + 31) / 32;
    layout->some = rest > bitmap && rest - bitmap < size ? rest - bitmap : 0;
    return layout->some > 0;
}

/* Makes some of the rounds of SUM_I32 rounds of streams, of as many bytes: nothing that was drawn changes. */
static void make_stream(struct sim_round *round, uint32_t chunk_bytes)
{
    uint32_t elements = (chunk_bytes - PSC_SUB_BLOCK_SPARE_BYTES) / 4 * 32 / 33;
    struct layout layout;

    if (round->op != PSC_OP_SUM_I32 || round->salt % 2 != 0 || !lay_out(round->bytes / 4, elements, &layout))
        return;
    round->op = PSC_OP_EXPAND_SUM_I32;
    round->elements = elements;
}

struct sim_round *sim_data_program(const struct sim_job_plan *job, uint32_t life, uint32_t pool)
{
    const struct sim_pool_plan *plan = &job->pools[pool];
    struct sim_round *rounds = calloc(plan->rounds, sizeof *rounds);
    struct sim_random random = {.state = job->salt + life * 7919 + pool};
    uint32_t packets = 1;

    for (uint32_t r = 0; r < plan->rounds; r++) {
        struct sim_round *round = &rounds[r];
        round->op = (uint32_t)sim_between(&random, PSC_OP_SUM_I32, PSC_OP_MAX_F32);
        round->bytes = draw_bytes(&random, job, plan->chunk_bytes);
        round->packets = (round->bytes + job->mtu_bytes - 1) / job->mtu_bytes;
        round->first_packet = packets;
        round->salt = sim_draw(&random);
        make_stream(round, plan->chunk_bytes);
        round->imm =
            sim_data_imm(r, pool, round->op, round->elements > 0 ? 4 * round->elements : round->bytes);
        packets += round->packets;
    }
    return rounds;
}

static uint32_t value_of(uint32_t op, uint64_t bits)
{
    if (op != PSC_OP_SUM_F32)
        return (uint32_t)bits; /* int32 over its whole range; for MAX any float, NaN and Inf among them */
    /* Integers of 20 bits: the sum of 12 of them is exact in binary32, in whatever order it is formed. */
    float value = (float)((int32_t)(bits & 0xfffff) - 0x80000);
    uint32_t word;
    memcpy(&word, &value, 4);
    return word;
}

static uint64_t stream_of(const struct sim_round *round, uint32_t rank)
{
    return sim_mix(round->salt + rank);
}

/* Numerical Recipes' 64-bit congruence: its high half is random enough, and it is quick. */
static uint64_t step(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 32;
}

/* The round's stream with the rank's values, or these added to what is there. */
static void put_stream(const struct sim_round *round, uint64_t state, bool add, uint32_t *out)
{
    struct layout layout;

    lay_out(round->bytes / 4, round->elements, &layout);
    *out++ = round->elements;
    for (uint32_t b = 0; b < layout.sub_blocks; b++) {
        uint32_t size = size_of(round->elements, b), first = (uint32_t)(round->salt >> 8) % size;
        uint32_t count = b < layout.full ? size : b == layout.full ? layout.some : 0;
        *out++ = count;
        if (count > 0 && count < size) {
            memset(out, 0, 4 * ((size + 31) / 32));
            for (uint32_t i = 0; i < count; i++)
                out[(first + i) % size / 32] |= 1u << (first + i) % size % 32;
            out += (size + 31) / 32;
        }
        for (uint32_t i = 0; i < count; i++, out++)
            *out = (uint32_t)step(&state) + (add ? *out : 0);
    }
}

void sim_data_contribution(const struct sim_round *round, uint32_t rank, uint32_t *out)
{
    uint64_t state = stream_of(round, rank);

    if (round->elements > 0) {
        put_stream(round, state, false, out);
        return;
    }
    for (uint32_t i = 0; i < round->bytes / 4; i++)
        out[i] = value_of(round->op, step(&state));
}

static uint32_t add_one(uint32_t op, uint32_t sum, uint64_t bits)
{
    uint32_t value = (uint32_t)bits;

    switch (op) {
    case PSC_OP_SUM_F32: /* as an integer, made a float at the end */
        return sum + (uint32_t)((int32_t)(bits & 0xfffff) - 0x80000);
    case PSC_OP_MAX_F32:
        value &= 0x7fffffff;
        return value > sum ? value : sum;
    default:
        return sum + value;
    }
}

void sim_data_sum(const struct sim_round *round, uint32_t ranks, uint32_t *out)
{
    memset(out, 0, round->bytes);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint64_t state = stream_of(round, rank);
        if (round->elements > 0) {
            put_stream(round, state, rank > 0, out);
            continue;
        }
        for (uint32_t i = 0; i < round->bytes / 4; i++)
            out[i] = add_one(round->op, out[i], step(&state));
    }
    if (round->op != PSC_OP_SUM_F32)
        return;
    for (uint32_t i = 0; i < round->bytes / 4; i++) {
        float value = (float)(int32_t)out[i];
        memcpy(&out[i], &value, 4);
    }
}

uint64_t sim_data_hash(const void *data, uint32_t bytes)
{
    const uint8_t *at = data;
    uint64_t hash = bytes;

    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = (hash ^ word) * UINT64_C(0x9fb21c651e98df25);
        hash ^= hash >> 32;
    }
    for (; bytes > 0; bytes--, at++)
        hash = (hash ^ *at) * UINT64_C(0x100000001b3);
    return sim_mix(hash);
}
