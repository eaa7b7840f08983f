/* Many values in one pass against the same values one after the other, by the scalar reference, which
 * test_arith.c holds against the definition: 1 to 8 of them, all lengths around a tile, alignments that
 * differ from value to value, buffers of exactly the size. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "crc.h"
#include "variants.h"

#define MAX_UNITS        199 /* of 4 bytes: three of the widest variant's tiles, and an odd rest */
#define MAX_VALUE_BYTES  (4 * MAX_UNITS)
#define MAX_RESULT_BYTES (8 * MAX_VALUE_BYTES)
#define MAX_SHIFT_BYTES  64

struct contribution {
    uint8_t *packet; /* on the heap, of exactly the size */
    const void *value;
};

/* One exponent of floats in so many is all ones: Inf or NaN. */
static bool is_special(uint32_t bits)
{
    return (bits & 0x7f800000) == 0x7f800000;
}

static bool is_nan(uint32_t bits)
{
    return (bits & 0x7fffffff) > 0x7f800000;
}

static uint32_t f32_element(const uint8_t *array, uint32_t i)
{
    uint32_t bits;
    memcpy(&bits, array + (size_t)4 * i, 4);
    return bits;
}

/* The i-th 2-byte float's exponent is all ones. */
static bool is_special_half(enum psc_op op, const uint8_t *array, uint32_t i)
{
    uint16_t bits, ones = op == PSC_OP_SUM_F16 ? 0x7c00 : 0x7f80;
    memcpy(&bits, array + (size_t)2 * i, 2);
    return (bits & ones) == ones;
}

static bool adds_floats(enum psc_op op)
{
    return op == PSC_OP_SUM_F32 || op == PSC_OP_SUM_F16 || op == PSC_OP_SUM_BF16;
}

/* Where two NaNs meet (or two Inf make one that meets another), which of them the sum is is open: see
 * test_arith.c. Elsewhere every bit counts, a lone NaN's too. */
static bool may_differ(enum psc_op op, const uint8_t *before, const struct contribution *from, uint32_t count,
                       uint32_t i)
{
    uint32_t specials = before != NULL && is_special(f32_element(before, i));

    for (uint32_t k = 0; k < count; k++)
        specials += op == PSC_OP_SUM_F32 ? is_special(f32_element(from[k].value, i))
                                         : is_special_half(op, from[k].value, i);
    return adds_floats(op) && specials >= 2;
}

static void check_same(enum psc_op op, const uint8_t *got, const uint8_t *expected, uint32_t bytes,
                       const uint8_t *before, const struct contribution *from, uint32_t count)
{
    if (memcmp(got, expected, bytes) == 0)
        return;
    for (uint32_t i = 0; i < bytes / 4; i++) {
        uint32_t is = f32_element(got, i), other = f32_element(expected, i);
        bool same = is == other;
        if (!same && is_nan(is) && is_nan(other))
            same = may_differ(op, before, from, count, i);
        if (!same)
            fail_msg("op %d, %u values%s, word %u of %u: %08x, one by one %08x", (int)op, count,
                     before ? "" : ", first", i, bytes / 4, is, other);
    }
}

static void random_bytes(uint8_t *out, uint32_t bytes, uint32_t *seed)
{
    for (uint32_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(next_random(seed) >> 11);
}

/* Does not fall, and goes up to `greatest`. */
static uint8_t *table_up_to(uint32_t greatest, uint32_t entries)
{
    uint8_t table[PSC_MAX_TABLE];

    if (entries == 0)
        return NULL;
    for (uint32_t i = 0; i < entries; i++)
        table[i] = (uint8_t)(i * greatest / (entries - 1));
    return exact_copy(table, entries);
}

static void make_contributions(struct contribution *from, uint32_t count, uint32_t bytes,
                               uint32_t shift_bytes, uint32_t *seed)
{
    uint8_t filled[MAX_SHIFT_BYTES + MAX_VALUE_BYTES];

    for (uint32_t k = 0; k < count; k++) {
        uint32_t shift = (shift_bytes + 14 * k) % MAX_SHIFT_BYTES;
        random_bytes(filled, shift + bytes, seed);
        from[k].packet = exact_copy(filled, shift + bytes);
        from[k].value = from[k].packet + shift;
    }
}

/* Same sums as without, and their CRC. */
static void check_crc(psc_combine_many_fn *plain, psc_combine_many_crc_fn *with_crc, const uint8_t *before,
                      const void *const *values, uint32_t count, uint32_t units, const uint8_t *table,
                      uint32_t result_bytes)
{
    uint8_t *expected = exact_copy(before, result_bytes), *sums = exact_copy(before, result_bytes);

    plain(expected, values, count, units, table);
    uint32_t crc = with_crc(sums, values, count, units, table);
    if (result_bytes > 0)
        assert_memory_equal(sums, expected, result_bytes);
    if (crc != psc_crc_slicing.crc(0, expected, result_bytes))
        fail_msg("CRC of %u bytes of sums of %u values is wrong", result_bytes, count);
    free(expected);
    free(sums);
}

/* `greatest`: of the table. */
static void check_row(const struct psc_op_row *row, enum psc_op op, uint32_t count, uint32_t units,
                      uint32_t shift_bytes, uint32_t greatest)
{
    const struct psc_op_form *form = psc_op_form(op);
    const struct psc_op_row *reference = &psc_op_rows_scalar[op];
    uint32_t value_bytes = units * form->unit_bytes, result_bytes = value_bytes * form->expansion;
    uint32_t seed = 1 + units * 64 + shift_bytes + 4096 * count;
    uint8_t before[MAX_RESULT_BYTES], expected[MAX_RESULT_BYTES];
    struct contribution from[PSC_COMBINE_MAX];
    const void *values[PSC_COMBINE_MAX];
    uint8_t *table = table_up_to(greatest, form->table_entries);

    make_contributions(from, count, value_bytes, shift_bytes, &seed);
    random_bytes(before, result_bytes, &seed);
    memcpy(expected, before, result_bytes);
    for (uint32_t k = 0; k < count; k++) {
        values[k] = from[k].value;
        reference->combine(expected, from[k].value, units, table);
    }
    uint8_t *accumulator = exact_copy(before, result_bytes);
    row->combine_many(accumulator, values, count, units, table);
    check_same(op, accumulator, expected, result_bytes, before, from, count);
    check_crc(row->combine_many, row->combine_many_crc, before, values, count, units, table, result_bytes);

    for (uint32_t k = 0; k < count; k++)
        (k == 0 ? reference->first : reference->combine)(expected, from[k].value, units, table);
    row->first_many(accumulator, values, count, units, table);
    check_same(op, accumulator, expected, result_bytes, NULL, from, count);
    check_crc(row->first_many, row->first_many_crc, before, values, count, units, table, result_bytes);

    for (uint32_t k = 0; k < count; k++)
        free(from[k].packet);
    free(accumulator);
    free(table);
}

static void check_op(const struct psc_op_row *row, enum psc_op op, uint32_t count)
{
    /* A sum of 8 such entries fits a byte, only some do, one does. */
    static const uint32_t greatest[] = {31, 100, 255};
    const struct psc_op_form *form = psc_op_form(op);

    for (uint32_t i = 0; i < (form->table_entries > 0 ? 3 : 1); i++)
        for (uint32_t units = 0; units * form->unit_bytes <= MAX_VALUE_BYTES; units++)
            check_row(row, op, count, units, 11 * units % MAX_SHIFT_BYTES, greatest[i]);
    for (uint32_t shift_bytes = 0; shift_bytes < MAX_SHIFT_BYTES; shift_bytes++)
        check_row(row, op, count, form->unit_bytes == 4 ? 131 : 5, shift_bytes, 100);
}

static void every_variant_equals_one_by_one(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < PSC_ARITH_VARIANTS; i++) {
        const struct psc_arith_variant *variant = &psc_arith_variants[i];
        print_message("%s%s\n", variant->name, variant->runs_here() ? "" : ": not on this CPU");
        for (enum psc_op op = PSC_OP_SUM_I32; variant->runs_here() && op <= PSC_OP_OR_U32; op++)
            for (uint32_t count = 1; count <= PSC_COMBINE_MAX; count++)
                check_op(&variant->rows[op], op, count);
        assert_null(variant->rows[PSC_OP_PROBE].combine_many);
        assert_null(variant->rows[PSC_OP_PROBE].first_many);
    }
}

/* 2^24 + 1 - 2^24 is 0 or 1: the order of the additions is the order of the values. */
static void floats_are_added_in_order(void **state)
{
    const float big = 0x1p24f;
    float rising[3][16], sum[16];
    const void *values[3] = {rising[0], rising[1], rising[2]}, *other[3] = {rising[0], rising[2], rising[1]};
    (void)state;
    for (uint32_t i = 0; i < 16; i++) {
        rising[0][i] = big;
        rising[1][i] = 1.0f;
        rising[2][i] = -big;
    }
    for (uint32_t v = 0; v < PSC_ARITH_VARIANTS; v++) {
        const struct psc_op_row *row = &psc_arith_variants[v].rows[PSC_OP_SUM_F32];
        if (!psc_arith_variants[v].runs_here())
            continue;
        row->first_many(sum, values, 3, 16, NULL);
        assert_true(sum[0] == 0.0f && sum[15] == 0.0f);
        row->first_many(sum, other, 3, 16, NULL);
        assert_true(sum[0] == 1.0f && sum[15] == 1.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_equals_one_by_one),
        cmocka_unit_test(floats_are_added_in_order),
    };
    return cmocka_run_group_tests_name("arith_many", tests, NULL, NULL);
}
