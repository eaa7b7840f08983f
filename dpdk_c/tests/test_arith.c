/* The ops of every variant against their definition, element by element: all lengths around a vector's width,
 * every alignment of the value, buffers of exactly the size. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "variants.h"

/* Of 4 bytes: three tiles of the widest variant's four vectors of 16, and an odd rest. */
#define MAX_UNITS        199
#define MAX_VALUE_BYTES  (4 * MAX_UNITS)
#define MAX_RESULT_BYTES (8 * MAX_VALUE_BYTES)
#define MAX_RANKS        64

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static bool is_nan(uint32_t bits)
{
    return (bits & 0x7fffffff) > 0x7f800000;
}

/* Which NaN the sum of two NaNs is, IEEE 754 leaves open and so may a compiler; of one NaN it is that one,
 * quiet, and Inf less Inf is the CPU's own. */
static bool same_sum(uint32_t got, uint32_t expected, uint32_t a, uint32_t b)
{
    return got == expected || (is_nan(a) && is_nan(b) && is_nan(got));
}

static uint32_t element(const uint8_t *array, uint32_t i, uint32_t bytes)
{
    uint32_t value = 0;
    for (uint32_t k = 0; k < bytes; k++)
        value |= (uint32_t)array[i * bytes + k] << 8 * k;
    return value;
}

/* ---- The definitions, from the wire contract. ---- */

/* Bits of the binary32 that a binary16 is: by its fields and ldexp. Not of a NaN. */
static uint32_t widened_f16(uint32_t bits)
{
    int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
    float magnitude = exponent == 31 ? INFINITY
                      : exponent > 0 ? ldexpf((float)(1024 + fraction), exponent - 25)
                                     : ldexpf((float)fraction, -24);
    return bits_of(bits & 0x8000 ? -magnitude : magnitude);
}

static bool is_nan_f16(uint32_t bits)
{
    return (bits & 0x7fff) > 0x7c00;
}

/* How a LUT op's index and sum lie: index bits, bytes of a sum. */
static void lut_shape(enum psc_op op, uint32_t *index_bits, uint32_t *sum_bytes)
{
    *index_bits = op <= PSC_OP_LUT4_U16 ? 4 : op <= PSC_OP_LUT2_U16 ? 2 : 8;
    *sum_bytes = op == PSC_OP_LUT4_U8 || op == PSC_OP_LUT2_U8 ? 1 : 2;
}

/* The bits of the binary32 that a sum of floats adds. */
static uint32_t addend(enum psc_op op, const uint8_t *value, uint32_t i)
{
    uint32_t v = element(value, i, op == PSC_OP_SUM_F32 ? 4 : 2);

    if (op == PSC_OP_SUM_F32)
        return v;
    if (op == PSC_OP_SUM_BF16)
        return v << 16;
    /* A NaN: quiet, its payload on the left. */
    return is_nan_f16(v) ? (v & 0x8000) << 16 | 0x7fc00000 | (v & 0x1ff) << 13 : widened_f16(v);
}

static bool adds_floats(enum psc_op op)
{
    return op == PSC_OP_SUM_F32 || op == PSC_OP_SUM_F16 || op == PSC_OP_SUM_BF16;
}

/* What the i-th element of the result is: `before` is there, unless it is the first contribution. */
static uint32_t specified(enum psc_op op, uint32_t before, const uint8_t *value, uint32_t i, bool first,
                          const uint8_t *table)
{
    uint32_t v, a = before & 0x7fffffff, index_bits, sum_bytes, byte, index;

    switch (op) {
    case PSC_OP_SUM_I32:
        v = element(value, i, 4);
        return first ? v : before + v;
    case PSC_OP_SUM_F32:
    case PSC_OP_SUM_F16:
    case PSC_OP_SUM_BF16:
        v = addend(op, value, i);
        return first ? v : bits_of(float_of(before) + float_of(v));
    case PSC_OP_MAX_F32:
        v = element(value, i, 4) & 0x7fffffff;
        return first || v > a ? v : a;
    case PSC_OP_OR_U32:
        v = element(value, i, 4);
        return first ? v : before | v;
    default:
        lut_shape(op, &index_bits, &sum_bytes);
        byte = value[i / (64 * 8 / index_bits) * 64 + i % 64];
        index = byte >> index_bits * (i % (64 * 8 / index_bits) / 64) & ((1u << index_bits) - 1);
        return (table[index] + (first ? 0 : before)) & (sum_bytes == 1 ? 0xff : 0xffff);
    }
}

/* Bytes of an element of the result. */
static uint32_t result_elem_bytes(enum psc_op op)
{
    uint32_t index_bits, sum_bytes = 4;
    if (psc_op_form(op)->table_entries > 0)
        lut_shape(op, &index_bits, &sum_bytes);
    return sum_bytes;
}

/* ---- Every length, every alignment. ---- */

static void random_bytes(uint8_t *out, uint32_t bytes, uint32_t *seed)
{
    for (uint32_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(next_random(seed) >> 11);
}

/* As every table: it does not fall. It need not begin with 0 here. */
static void random_table(uint8_t *table, uint32_t entries, uint32_t *seed)
{
    random_bytes(table, entries, seed);
    for (uint32_t i = 1; i < entries; i++)
        for (uint32_t k = i; k > 0 && table[k] < table[k - 1]; k--) {
            uint8_t smaller = table[k];
            table[k] = table[k - 1];
            table[k - 1] = smaller;
        }
}

static void check_result(enum psc_op op, const uint8_t *got, const uint8_t *before, const uint8_t *value,
                         uint32_t result_bytes, bool first, const uint8_t *table)
{
    uint32_t elem_bytes = result_elem_bytes(op);
    for (uint32_t i = 0; i < result_bytes / elem_bytes; i++) {
        uint32_t was = element(before, i, elem_bytes), is = element(got, i, elem_bytes);
        uint32_t expected = specified(op, was, value, i, first, table);
        /* The first one is no addition: every bit of a NaN is specified. */
        bool same =
            first || !adds_floats(op) ? is == expected : same_sum(is, expected, was, addend(op, value, i));
        if (!same)
            fail_msg("op %d, element %u of %u%s: %08x became %08x, not %08x", (int)op, i,
                     result_bytes / elem_bytes, first ? ", first" : "", was, is, expected);
    }
}

static void check_row(const struct psc_op_row *row, enum psc_op op, uint32_t units, uint32_t shift_bytes)
{
    const struct psc_op_form *form = psc_op_form(op);
    uint32_t value_bytes = units * form->unit_bytes, result_bytes = value_bytes * form->expansion;
    uint8_t before[MAX_RESULT_BYTES], shifted[8 + MAX_VALUE_BYTES], entries[PSC_MAX_TABLE];
    uint32_t seed = 1 + units * 8 + shift_bytes;

    random_bytes(before, result_bytes, &seed);
    random_bytes(shifted, shift_bytes + value_bytes, &seed);
    random_table(entries, form->table_entries, &seed);
    uint8_t *table = form->table_entries > 0 ? exact_copy(entries, form->table_entries) : NULL;
    uint8_t *accumulator = exact_copy(before, result_bytes);
    uint8_t *packet = exact_copy(shifted, shift_bytes + value_bytes);
    const uint8_t *value = packet + shift_bytes;

    row->combine(accumulator, value, units, table);
    check_result(op, accumulator, before, value, result_bytes, false, table);
    row->first(accumulator, value, units, table);
    check_result(op, accumulator, before, value, result_bytes, true, table);
    assert_memory_equal(packet, shifted, shift_bytes + value_bytes);
    free(packet);
    free(accumulator);
    free(table);
}

static void check_variant(const struct psc_op_row *rows)
{
    for (enum psc_op op = PSC_OP_SUM_I32; op <= PSC_OP_OR_U32; op++)
        for (uint32_t units = 0; units * psc_op_form(op)->unit_bytes <= MAX_VALUE_BYTES; units++)
            for (uint32_t shift_bytes = 0; shift_bytes < 8; shift_bytes++)
                check_row(&rows[op], op, units, shift_bytes);
    assert_null(rows[PSC_OP_PROBE].combine);
    assert_null(rows[PSC_OP_PROBE].first);
    /* Ops with sub-blocks have kernels of their own (test_sparse.c). */
    assert_null(rows[PSC_OP_EXPAND_SUM_I32].combine);
    assert_null(rows[PSC_OP_EXPAND_SUM_F32].combine);
}

/* ---- Where arithmetic has corners. ---- */

/* Every pair of the values at which float arithmetic has corners, in each lane of a vector. */
static void check_corners(const struct psc_op_row *rows)
{
    static const uint32_t corners[] = {
        0x00000000, 0x80000000, /* zeros */
        0x00000001, 0x807fffff, /* subnormal: no variant may flush them */
        0x00800000, 0x3f800000, 0xbf800000, 0x4b800000, 0x7f7fffff, 0xff7fffff, /* normal */
        0x7f800000, 0xff800000,                                                 /* Inf */
        0x7fc00000, 0xffc12345, 0x7f800001, /* NaN, the last one signalling */
    };
    static const enum psc_op ops[] = {PSC_OP_SUM_I32, PSC_OP_SUM_F32, PSC_OP_MAX_F32, PSC_OP_OR_U32};
    const uint32_t n = sizeof corners / sizeof *corners;
    for (uint32_t k = 0; k < sizeof ops / sizeof *ops; k++)
        for (uint32_t a = 0; a < n; a++)
            for (uint32_t v = 0; v < n; v++) {
                uint32_t accumulator[17], before[17], values[17];
                for (uint32_t i = 0; i < 17; i++) {
                    accumulator[i] = before[i] = corners[a];
                    values[i] = corners[v];
                }
                rows[ops[k]].combine(accumulator, values, 17, NULL);
                check_result(ops[k], (void *)accumulator, (void *)before, (void *)values, sizeof before,
                             false, NULL);
            }
}

/* All 65536 of each kind, stored and added to a few floats: subnormals, Inf and NaN among them. */
static void check_every_half(const struct psc_op_row *rows)
{
    static const uint32_t bases[] = {0x00000000, 0x80000000, 0x3f800001, 0x80000001, 0xff800000, 0x7fc00001};
    static uint16_t values[65536];
    static uint32_t before[65536], accumulator[65536];

    for (uint32_t i = 0; i < 65536; i++)
        values[i] = (uint16_t)i;
    for (enum psc_op op = PSC_OP_SUM_F16; op <= PSC_OP_SUM_BF16; op++) {
        rows[op].first(accumulator, values, 32768, NULL);
        check_result(op, (void *)accumulator, (void *)before, (void *)values, sizeof before, true, NULL);
        for (uint32_t k = 0; k < sizeof bases / sizeof *bases; k++) {
            for (uint32_t i = 0; i < 65536; i++)
                accumulator[i] = before[i] = bases[k];
            rows[op].combine(accumulator, values, 32768, NULL);
            check_result(op, (void *)accumulator, (void *)before, (void *)values, sizeof before, false, NULL);
        }
    }
}

/* As many ranks as may be, each with the greatest entry: the sum is the product, up to the accumulator's last
 * bit, and nothing is carried into a neighbour, which is 0 throughout. */
static void check_sum_limits(const struct psc_op_row *rows)
{
    for (enum psc_op op = PSC_OP_LUT4_U8; op <= PSC_OP_LUT8_U16; op++) {
        const struct psc_op_form *form = psc_op_form(op);
        for (uint32_t ranks = 1; ranks <= MAX_RANKS; ranks++) {
            uint32_t most = form->sum_max / ranks, elem_bytes = result_elem_bytes(op);
            uint8_t table[PSC_MAX_TABLE] = {0}, value[64], sum[512];
            table[form->table_entries - 1] =
                (uint8_t)(most < PSC_MAX_TABLE_ENTRY ? most : PSC_MAX_TABLE_ENTRY);
            for (uint32_t j = 0; j < 64; j++)
                value[j] = j % 2 ? 0xff : 0x00;
            assert_true(psc_table_ok(form, table));
            assert_true(psc_table_sum(form, table, ranks) <= form->sum_max);
            rows[op].first(sum, value, 1, table);
            for (uint32_t rank = 1; rank < ranks; rank++)
                rows[op].combine(sum, value, 1, table);
            for (uint32_t i = 0; i < 64u * form->expansion / elem_bytes; i++)
                assert_int_equal(element(sum, i, elem_bytes), i % 2 ? psc_table_sum(form, table, ranks) : 0);
        }
    }
}

static void check_all(const struct psc_op_row *rows)
{
    check_variant(rows);
    check_corners(rows);
    check_every_half(rows);
    check_sum_limits(rows);
}

/* Each variant that this CPU runs; the last one is the reference, which always does. */
static void every_variant_is_as_specified(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < PSC_ARITH_VARIANTS; i++) {
        const struct psc_arith_variant *variant = &psc_arith_variants[i];
        print_message("%s%s\n", variant->name, variant->runs_here() ? "" : ": not on this CPU");
        if (variant->runs_here())
            check_all(variant->rows);
    }
    assert_ptr_equal(psc_arith_variants[PSC_ARITH_VARIANTS - 1].rows, psc_op_rows_scalar);
}

/* Value, accumulator and table end where their pages do. */
static void nothing_is_touched_beyond_the_end(void **state)
{
    uint8_t *value_end = wall_after(MAX_VALUE_BYTES), *sum_end = wall_after(MAX_RESULT_BYTES);
    uint8_t *table_end = wall_after(PSC_MAX_TABLE);
    (void)state;
    for (uint32_t v = 0; v < PSC_ARITH_VARIANTS; v++)
        for (enum psc_op op = PSC_OP_SUM_I32; psc_arith_variants[v].runs_here() && op <= PSC_OP_OR_U32;
             op++) {
            const struct psc_op_row *row = &psc_arith_variants[v].rows[op];
            const struct psc_op_form *form = psc_op_form(op);
            for (uint32_t units = 0; units * form->unit_bytes <= MAX_VALUE_BYTES; units++) {
                const uint8_t *value = value_end - (size_t)units * form->unit_bytes;
                const void *values[PSC_COMBINE_MAX] = {value, value, value, value,
                                                       value, value, value, value};
                uint8_t *sum = sum_end - (size_t)units * form->unit_bytes * form->expansion;
                const uint8_t *table = table_end - form->table_entries;
                row->first(sum, value, units, table);
                row->combine(sum, value, units, table);
                row->first_many(sum, values, PSC_COMBINE_MAX, units, table);
                row->combine_many(sum, values, PSC_COMBINE_MAX, units, table);
            }
        }
}

static void max_orders_nan_above_inf_above_finite(void **state)
{
    float accumulator[4], values[4] = {-2.0f, -INFINITY, 3.0f, NAN}, next[4] = {1.0f, 5.0f, NAN, INFINITY};
    const struct psc_op_row *max = &psc_op_rows()[PSC_OP_MAX_F32];
    (void)state;
    max->first(accumulator, values, 4, NULL);
    assert_true(accumulator[0] == 2.0f && accumulator[1] == INFINITY);
    max->combine(accumulator, next, 4, NULL);
    assert_true(accumulator[0] == 2.0f && accumulator[1] == INFINITY);
    assert_true(isnan(accumulator[2]) && isnan(accumulator[3]));
}

/* The layout once more, in numbers that anybody can check by hand. */
static void indices_lie_as_the_contract_says(void **state)
{
    const uint8_t table[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 150};
    uint8_t value[64] = {0}, sum8[256];
    uint16_t sum16[256];
    (void)state;
    value[0] = 0x2f;
    value[63] = 0xe1;
    psc_op_rows()[PSC_OP_LUT4_U8].first(sum8, value, 1, table);
    assert_true(sum8[0] == 150 && sum8[64] == 2 && sum8[63] == 1 && sum8[127] == 14 && sum8[1] == 0);
    psc_op_rows()[PSC_OP_LUT4_U16].first(sum16, value, 1, table);
    psc_op_rows()[PSC_OP_LUT4_U16].combine(sum16, value, 1, table);
    assert_true(sum16[0] == 300 && sum16[64] == 4 && sum16[63] == 2 && sum16[127] == 28 && sum16[1] == 0);
    value[5] = 0xd8; /* 3 1 2 0 from the top */
    psc_op_rows()[PSC_OP_LUT2_U8].first(sum8, value, 1, table);
    assert_true(sum8[5] == 0 && sum8[69] == 2 && sum8[133] == 1 && sum8[197] == 3);
}

static void a_table_begins_with_0_does_not_fall_and_says_something(void **state)
{
    const struct psc_op_form *form = psc_op_form(PSC_OP_LUT2_U8);
    (void)state;
    assert_true(psc_table_ok(form, (const uint8_t[]){0, 1, 2, 2}));
    assert_true(psc_table_ok(form, (const uint8_t[]){0, 0, 0, 255}));
    assert_false(psc_table_ok(form, (const uint8_t[]){1, 1, 2, 2}));
    assert_false(psc_table_ok(form, (const uint8_t[]){0, 2, 1, 2}));
    assert_false(psc_table_ok(form, (const uint8_t[]){0, 1, 2, 1}));
    assert_false(psc_table_ok(form, (const uint8_t[]){0, 0, 0, 0}));
    assert_int_equal(psc_table_sum(form, (const uint8_t[]){0, 1, 2, 30}, 9), 270);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_is_as_specified),
        cmocka_unit_test(nothing_is_touched_beyond_the_end),
        cmocka_unit_test(max_orders_nan_above_inf_above_finite),
        cmocka_unit_test(indices_lie_as_the_contract_says),
        cmocka_unit_test(a_table_begins_with_0_does_not_fall_and_says_something),
    };
    return cmocka_run_group_tests_name("arith", tests, NULL, NULL);
}
