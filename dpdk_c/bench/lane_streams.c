/* Contributions of the ops that take streams of sub-blocks, and their sums, by docs/expand-sum.md: the format
 * is written a second time here, from arrays that say of each element whether it is there. */
#include <stdlib.h>
#include <string.h>

#include "lane_bench.h"

#define SUB_BLOCK PSC_SUB_BLOCK_EXPAND_SUM_I32
#define NOWHERE   UINT32_MAX
_Static_assert(PSC_SUB_BLOCK_EXPAND_SUM_I32 == PSC_SUB_BLOCK_EXPAND_SUM_F32, "one size for both ops");

struct elements {
    uint32_t count;
    bool *there;
    uint32_t *values, *places; /* places: of its value in the stream, in words */
};

static struct elements elements_new(const struct bench_case *one)
{
    uint32_t count = bench_stream_elements(one);

    return (struct elements){.count = count,
                             .there = calloc(count, sizeof(bool)),
                             .values = calloc(count, sizeof(uint32_t)),
                             .places = calloc(count, sizeof(uint32_t))};
}

static void elements_free(struct elements *all)
{
    free(all->there);
    free(all->values);
    free(all->places);
}

uint32_t bench_stream_elements(const struct bench_case *one)
{
    return psc_sub_block_elems_max(one->packets * one->mtu);
}

/* Whether the rank has it: as if drawn, with the same draw every time. */
static bool has(const struct bench_case *one, uint32_t rank, uint32_t elem)
{
    uint32_t bits = elem + ((one->shared ? 0 : rank + 1) << 20);

    bits = (bits ^ bits >> 16) * 0x7feb352du;
    bits = (bits ^ bits >> 15) * 0x846ca68bu;
    return (bits ^ bits >> 16) % 100 < one->density;
}

uint32_t bench_stream_values(const struct bench_case *one, uint32_t rank)
{
    uint32_t values = 0;

    for (uint32_t elem = 0; elem < bench_stream_elements(one); elem++)
        values += has(one, rank, elem);
    return values;
}

static void put(uint8_t *bytes, uint32_t place, uint32_t word)
{
    memcpy(bytes + (size_t)place * 4, &word, 4);
}

/* Elements [begin, end) from word `at` on; returns the first word behind them. */
static uint32_t put_sub_block(struct elements *all, uint32_t begin, uint32_t end, uint32_t at, uint8_t *bytes)
{
    uint32_t there = 0, bitmap[SUB_BLOCK / 32] = {0};

    for (uint32_t elem = begin; elem < end; elem++) {
        there += all->there[elem];
        bitmap[(elem - begin) / 32] |= (uint32_t)all->there[elem] << (elem - begin) % 32;
    }
    put(bytes, at++, there);
    if (there > 0 && there < end - begin)
        for (uint32_t word = 0; word < (end - begin + 31) / 32; word++)
            put(bytes, at++, bitmap[word]);
    for (uint32_t elem = begin; elem < end; elem++)
        if (all->there[elem]) {
            all->places[elem] = at;
            put(bytes, at++, all->values[elem]);
        }
    return at;
}

static uint32_t put_stream(struct elements *all, uint8_t *bytes)
{
    uint32_t at = 0;

    put(bytes, at++, all->count);
    for (uint32_t begin = 0; begin < all->count; begin += SUB_BLOCK) {
        uint32_t rest = all->count - begin;
        at = put_sub_block(all, begin, begin + (rest < SUB_BLOCK ? rest : SUB_BLOCK), at, bytes);
    }
    return 4 * at;
}

static uint32_t as_op(const struct bench_case *one, uint32_t number)
{
    return one->op == PSC_OP_EXPAND_SUM_F32 ? bench_f32_bits(number) : number;
}

/* The rank's elements, as numbers, and where they stand: the first value of each packet is stamped. */
static uint32_t contribute(const struct bench_case *one, uint32_t rank, uint32_t stamp, struct elements *all,
                           uint8_t *bytes)
{
    uint32_t stamped_packet = NOWHERE;

    for (uint32_t elem = 0; elem < all->count; elem++)
        all->there[elem] = has(one, rank, elem);
    uint32_t stream_bytes = put_stream(all, bytes);
    for (uint32_t elem = 0; elem < all->count; elem++) {
        if (!all->there[elem])
            continue;
        uint32_t packet = all->places[elem] * 4 / one->mtu;
        all->values[elem] = bench_value(rank, packet, elem, packet != stamped_packet, stamp);
        put(bytes, all->places[elem], as_op(one, all->values[elem]));
        stamped_packet = packet;
    }
    return stream_bytes;
}

uint32_t bench_stream(const struct bench_case *one, uint32_t rank, uint32_t stamp, uint8_t *bytes)
{
    struct elements all = elements_new(one);
    uint32_t stream_bytes = contribute(one, rank, stamp, &all, bytes);

    elements_free(&all);
    return stream_bytes;
}

uint32_t bench_stream_sum(const struct bench_case *one, uint32_t stamp, uint8_t *bytes)
{
    struct elements sum = elements_new(one), own = elements_new(one);

    for (uint32_t rank = 0; rank < one->ranks; rank++) {
        contribute(one, rank, stamp, &own, bytes);
        for (uint32_t elem = 0; elem < sum.count; elem++) {
            sum.there[elem] |= own.there[elem];
            sum.values[elem] += own.there[elem] ? own.values[elem] : 0;
        }
    }
    for (uint32_t elem = 0; elem < sum.count; elem++)
        sum.values[elem] = as_op(one, sum.values[elem]);
    uint32_t stream_bytes = put_stream(&sum, bytes);
    elements_free(&own);
    elements_free(&sum);
    return stream_bytes;
}
