/* bench/load: what the ranks contribute and what the sums are. Written from the wire contract's page alone,
 * not with arith/, which is what is being tested. */
#include "load.h"

#include <stdlib.h>
#include <string.h>

/* xorshift32 (Marsaglia, 2003): 2^32 - 1 numbers are enough, and none of them is secret. */
static uint32_t draw(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* -2^(bits-1) .. 2^(bits-1) - 1 */
static int32_t draw_integer(uint32_t *state, uint32_t bits)
{
    return (int32_t)(draw(state) >> (32 - bits)) - (1 << (bits - 1));
}

static uint32_t float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Of an integer below 2^11, which binary16 holds exactly. */
static uint16_t half_of(int32_t value)
{
    uint32_t magnitude = (uint32_t)abs(value);
    uint32_t top = 31u - (uint32_t)__builtin_clz(magnitude | 1);

    if (magnitude == 0)
        return 0;
    return (uint16_t)((value < 0 ? 0x8000u : 0) | (15 + top) << 10 | ((magnitude << (10 - top)) & 0x3ff));
}

/* One element: drawn, written at `out`, and combined into the sum so far. Floating-point ones are integers
 * that are so small that 64 ranks' sum is exact in binary32. */
static void add_element(uint32_t op, uint32_t *state, uint8_t *out, uint32_t *sum)
{
    uint32_t word = 0;
    uint16_t half;
    int32_t integer;

    switch (op) {
    case PSC_OP_SUM_F32:
        integer = draw_integer(state, 17);
        word = float_bits((float)integer);
        *sum += (uint32_t)integer;
        break;
    case PSC_OP_SUM_F16:
        integer = draw_integer(state, 11);
        half = half_of(integer);
        memcpy(out, &half, sizeof half);
        *sum += (uint32_t)integer;
        return;
    case PSC_OP_SUM_BF16:
        integer = draw_integer(state, 8);
        half = (uint16_t)(float_bits((float)integer) >> 16);
        memcpy(out, &half, sizeof half);
        *sum += (uint32_t)integer;
        return;
    case PSC_OP_MAX_F32:
        word = draw(state);
        *sum = RTE_MAX(*sum, word & 0x7fffffffu);
        break;
    case PSC_OP_OR_U32:
        word = draw(state) & draw(state) & draw(state);
        *sum |= word;
        break;
    default:
        word = draw(state);
        *sum += word;
        break;
    }
    memcpy(out, &word, sizeof word);
}

static bool is_float_sum(uint32_t op)
{
    return op == PSC_OP_SUM_F32 || op == PSC_OP_SUM_F16 || op == PSC_OP_SUM_BF16;
}

static void fill_elements(const struct load_shape *shape, uint8_t *contributions, uint8_t *result,
                          uint32_t ranks, uint32_t *state)
{
    uint32_t element_bytes = shape->op == PSC_OP_SUM_F16 || shape->op == PSC_OP_SUM_BF16 ? 2 : 4;

    for (uint32_t i = 0; i < shape->bytes / element_bytes; i++) {
        uint32_t sum = 0;

        for (uint32_t rank = 0; rank < ranks; rank++)
            add_element(shape->op, state, contributions + rank * shape->rank_bytes + i * element_bytes, &sum);
        if (is_float_sum(shape->op))
            sum = float_bits((float)(int32_t)sum);
        memcpy(result + 4 * (size_t)i, &sum, sizeof sum);
    }
}

/* Index k of a unit of 64 bytes: bits n * (k / 64) and up of byte k mod 64. */
static uint32_t index_of(const uint8_t *unit, uint32_t k, uint32_t bits)
{
    return unit[k % 64] >> (bits * (k / 64)) & ((1u << bits) - 1);
}

static void fill_indices(const struct load_shape *shape, const uint8_t *table, uint8_t *contributions,
                         uint8_t *result, uint32_t ranks, uint32_t *state)
{
    uint32_t bits = (uint32_t)__builtin_ctz(psc_op_form(shape->op)->table_entries);
    uint32_t sum_bytes = shape->result_bytes / (shape->bytes * 8 / bits);
    uint32_t per_unit = 64 * 8 / bits;

    for (uint32_t rank = 0; rank < ranks; rank++)
        for (uint32_t i = 0; i < shape->bytes; i++)
            contributions[rank * shape->rank_bytes + i] = (uint8_t)(draw(state) >> 24);
    for (uint32_t k = 0; k < shape->bytes / 64 * per_unit; k++) {
        uint32_t sum = 0;

        for (uint32_t rank = 0; rank < ranks; rank++)
            sum += table[index_of(contributions + rank * shape->rank_bytes + k / per_unit * 64, k % per_unit,
                                  bits)];
        memcpy(result + (size_t)k * sum_bytes, &sum, sum_bytes);
    }
}

static uint32_t *packet_crcs(const struct load_shape *shape, const uint8_t *contributions, uint32_t ranks,
                             uint32_t mtu)
{
    uint32_t *crcs = calloc((size_t)ranks * shape->packets, sizeof *crcs);

    if (crcs == NULL)
        return NULL;
    for (uint32_t rank = 0; rank < ranks; rank++)
        for (uint32_t i = 0; i < shape->packets; i++)
            crcs[rank * shape->packets + i] = psc_crc32(0, contributions + rank * shape->rank_bytes + i * mtu,
                                                        RTE_MIN(mtu, shape->bytes - i * mtu));
    return crcs;
}

bool load_shape_add(struct load_shapes *shapes, uint32_t op, uint32_t op_window, uint32_t bytes,
                    uint32_t ranks, uint32_t mtu, uint32_t seed)
{
    struct load_shape shape = {.op = op,
                               .op_window = op_window,
                               .bytes = bytes,
                               .result_bytes = bytes * psc_op_form(op)->expansion,
                               .rank_bytes = RTE_ALIGN_CEIL(bytes, 64),
                               .packets = (bytes + mtu - 1) / mtu};
    uint32_t state = 0x9e3779b9u * (seed + 1);

    if (shapes->count == LOAD_MAX_SHAPES)
        return false;
    uint8_t *contributions = calloc(ranks, shape.rank_bytes);
    uint8_t *result = calloc(1, shape.result_bytes);
    if (contributions != NULL && result != NULL) {
        if (psc_op_form(op)->table_entries != 0)
            fill_indices(&shape, shapes->tables[op], contributions, result, ranks, &state);
        else
            fill_elements(&shape, contributions, result, ranks, &state);
        shape.contribution_crcs = packet_crcs(&shape, contributions, ranks, mtu);
    }
    shape.contributions = contributions;
    shape.result = result;
    shapes->shape[shapes->count++] = shape;
    return shape.contribution_crcs != NULL;
}

void load_shapes_free(struct load_shapes *shapes)
{
    for (uint32_t i = 0; i < shapes->count; i++) {
        free((void *)(uintptr_t)shapes->shape[i].contributions);
        free((void *)(uintptr_t)shapes->shape[i].contribution_crcs);
        free((void *)(uintptr_t)shapes->shape[i].result);
    }
    shapes->count = 0;
}

const struct load_shape *load_shape_of(const struct load *load, uint32_t pool, uint32_t round)
{
    return &load->shapes[pool].shape[round % load->shapes[pool].count];
}

/* The contract's: CRC-32 over (sequence number of the collective, chunk, op, length, elements). A round is a
 * collective here. */
uint32_t load_immediate_of(const struct load_shape *shape, uint32_t round)
{
    const uint32_t fields[PSC_IMM_FIELDS] = {round, 0, shape->op, shape->bytes, shape->bytes / 4};

    return ~psc_crc32(UINT32_MAX, fields, sizeof fields);
}
