/* What the benchmark's workers contribute, and what must come back: said a second time here, in the simplest
 * words, because a benchmark that asked the kernels under test would believe a lane that adds nothing. All
 * values are small whole numbers, so that no sum depends on the order of its additions. */
#include <string.h>

#include "lane_bench.h"

/* Table of the ops that look up: of 64 ranks no sum exceeds the 8 bits of the narrowest. */
uint8_t bench_table_entry(uint32_t entries, uint32_t index)
{
    return (uint8_t)(index * 3 / (entries - 1));
}

/* Element `elem` of the packet. Its first four bytes differ from round to round (`stamp`), so that what an
 * earlier round left in a slot is never right by chance. */
uint32_t bench_value(uint32_t rank, uint32_t packet, uint32_t elem, bool stamped, uint32_t stamp)
{
    return (rank * 11 + packet * 5 + elem * 7 + (stamped ? 1 + stamp * 17 : 0)) % 61;
}

uint32_t bench_f32_bits(uint32_t value)
{
    float wide = (float)value;
    uint32_t bits;

    memcpy(&bits, &wide, sizeof bits);
    return bits;
}

static uint16_t f16_bits(uint32_t value)
{
    uint32_t exponent = 31 - (uint32_t)__builtin_clz(value | 1);

    return value == 0 ? 0 : (uint16_t)((exponent + 15) << 10 | (value - (1u << exponent)) << (10 - exponent));
}

/* Bits of an index in a contribution; 0: the op looks nothing up. */
static uint32_t index_bits(enum psc_op op)
{
    switch (op) {
    case PSC_OP_LUT4_U8:
    case PSC_OP_LUT4_U16:
        return 4;
    case PSC_OP_LUT2_U8:
    case PSC_OP_LUT2_U16:
        return 2;
    case PSC_OP_LUT8_U16:
        return 8;
    default:
        return 0;
    }
}

static uint32_t element_bytes(enum psc_op op)
{
    if (index_bits(op) > 0)
        return 1;
    return op == PSC_OP_SUM_F16 || op == PSC_OP_SUM_BF16 ? 2 : 4;
}

uint32_t bench_coordinates(enum psc_op op, uint32_t bytes)
{
    return index_bits(op) > 0 ? bytes * 8 / index_bits(op) : bytes / element_bytes(op);
}

static void fill(const struct bench_case *one, uint32_t rank, uint32_t packet, uint32_t stamp,
                 uint8_t *payload)
{
    uint32_t elem_bytes = element_bytes(one->op);

    for (uint32_t i = 0; i < one->mtu / elem_bytes; i++) {
        uint32_t value = bench_value(rank, packet, i, i * elem_bytes < 4, stamp);
        uint32_t bits = value;
        if (one->op == PSC_OP_SUM_F32 || one->op == PSC_OP_MAX_F32)
            bits = bench_f32_bits(value);
        else if (one->op == PSC_OP_SUM_BF16)
            bits = bench_f32_bits(value) >> 16;
        else if (one->op == PSC_OP_SUM_F16)
            bits = f16_bits(value);
        memcpy(payload + (size_t)i * elem_bytes, &bits, elem_bytes); /* little-endian, like the wire */
    }
}

/* Of one byte of indices, whose parts stand 64 elements apart (contract/psc_wire.h). */
static void expect_indices(const struct bench_case *one, uint32_t packet, uint32_t stamp, uint32_t at,
                           uint8_t *result)
{
    uint32_t bits = index_bits(one->op), entries = 1u << bits;
    uint32_t sum_bytes = one->op == PSC_OP_LUT4_U8 || one->op == PSC_OP_LUT2_U8 ? 1 : 2;

    for (uint32_t part = 0; part < 8 / bits; part++) {
        uint32_t sum = 0;
        for (uint32_t rank = 0; rank < one->ranks; rank++) {
            uint32_t byte = bench_value(rank, packet, at, at < 4, stamp);
            sum += bench_table_entry(entries, byte >> bits * part & (entries - 1));
        }
        uint32_t coordinate = at / 64 * 64 * (8 / bits) + 64 * part + at % 64;
        memcpy(result + (size_t)coordinate * sum_bytes, &sum, sum_bytes);
    }
}

static uint32_t expect_number(const struct bench_case *one, uint32_t packet, uint32_t stamp, uint32_t elem)
{
    bool stamped = elem * element_bytes(one->op) < 4;
    uint32_t sum = 0, max = 0, bits = 0;

    for (uint32_t rank = 0; rank < one->ranks; rank++) {
        uint32_t value = bench_value(rank, packet, elem, stamped, stamp);
        sum += value;
        bits |= value;
        max = value > max ? value : max;
    }
    if (one->op == PSC_OP_SUM_I32)
        return sum;
    if (one->op == PSC_OP_OR_U32)
        return bits;
    return bench_f32_bits(one->op == PSC_OP_MAX_F32 ? max : sum);
}

static void expect(const struct bench_case *one, uint32_t packet, uint32_t stamp, uint8_t *result)
{
    uint32_t elems = one->mtu / element_bytes(one->op);

    for (uint32_t i = 0; i < elems; i++) {
        if (index_bits(one->op) > 0) {
            expect_indices(one, packet, stamp, i, result);
        } else {
            uint32_t number = expect_number(one, packet, stamp, i);
            memcpy(result + (size_t)i * 4, &number, 4);
        }
    }
}

bool bench_is_stream(enum psc_op op)
{
    return psc_op_form(op)->sub_block_elems > 0;
}

uint32_t bench_contribution(const struct bench_case *one, uint32_t rank, uint32_t stamp, uint8_t *bytes)
{
    if (bench_is_stream(one->op))
        return bench_stream(one, rank, stamp, bytes);
    for (uint32_t packet = 0; packet < one->packets; packet++)
        fill(one, rank, packet, stamp, bytes + (size_t)packet * one->mtu);
    return one->packets * one->mtu;
}

uint32_t bench_result(const struct bench_case *one, uint32_t stamp, uint8_t *bytes)
{
    uint32_t result_mtu = one->mtu * psc_op_form(one->op)->expansion;

    if (bench_is_stream(one->op))
        return bench_stream_sum(one, stamp, bytes);
    for (uint32_t packet = 0; packet < one->packets; packet++)
        expect(one, packet, stamp, bytes + (size_t)packet * result_mtu);
    return one->packets * result_mtu;
}
