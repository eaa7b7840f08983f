/* The ops of every variant against their definition, element by element: all lengths around a vector's width,
 * every alignment of the value, buffers of exactly the size. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "variants.h"

#define MAX_ELEMS 67 /* two vectors of 16, an odd rest, and one more round of an unrolled loop */

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

/* The definitions, from the wire contract. */
static uint32_t specified(enum psc_op op, uint32_t accumulator, uint32_t value)
{
    uint32_t a = accumulator & 0x7fffffff, v = value & 0x7fffffff;
    switch (op) {
    case PSC_OP_SUM_I32:
        return accumulator + value;
    case PSC_OP_SUM_F32:
        return bits_of(float_of(accumulator) + float_of(value));
    case PSC_OP_MAX_F32:
        return a > v ? a : v;
    default:
        fail_msg("no definition of op %d", (int)op);
        return 0;
    }
}

static uint32_t specified_first(enum psc_op op, uint32_t value)
{
    return op == PSC_OP_MAX_F32 ? value & 0x7fffffff : value;
}

/* Which NaN the sum of two NaNs is, IEEE 754 leaves open. */
static bool same(enum psc_op op, uint32_t got, uint32_t expected)
{
    return got == expected || (op == PSC_OP_SUM_F32 && is_nan(got) && is_nan(expected));
}

static void check_row(const struct psc_op_row *row, enum psc_op op, uint32_t elems, uint32_t shift_bytes,
                      uint32_t seed)
{
    uint32_t before[MAX_ELEMS], values[MAX_ELEMS];
    uint8_t shifted[8 + sizeof values];
    for (uint32_t i = 0; i < MAX_ELEMS; i++) {
        before[i] = next_random(&seed);
        values[i] = next_random(&seed);
    }
    memcpy(shifted + shift_bytes, values, sizeof values);
    uint32_t *accumulator = (void *)exact_copy(before, 4 * elems);
    uint8_t *packet = exact_copy(shifted, shift_bytes + 4 * elems);

    row->combine(accumulator, packet + shift_bytes, elems);
    for (uint32_t i = 0; i < elems; i++)
        if (!same(op, accumulator[i], specified(op, before[i], values[i])))
            fail_msg("op %d, element %u of %u, value shifted by %u: %08x op %08x gave %08x", (int)op, i,
                     elems, shift_bytes, before[i], values[i], accumulator[i]);
    row->first(accumulator, packet + shift_bytes, elems);
    for (uint32_t i = 0; i < elems; i++)
        assert_true(accumulator[i] == specified_first(op, values[i]));
    assert_memory_equal(packet, shifted, shift_bytes + 4 * elems);
    free(packet);
    free(accumulator);
}

static void check_variant(const struct psc_op_row *rows)
{
    for (enum psc_op op = PSC_OP_SUM_I32; op < PSC_OP_COUNT; op++)
        for (uint32_t elems = 0; elems <= MAX_ELEMS; elems++)
            for (uint32_t shift_bytes = 0; shift_bytes < 8; shift_bytes++)
                check_row(&rows[op], op, elems, shift_bytes, 1 + elems * 8 + shift_bytes);
    assert_null(rows[PSC_OP_PROBE].combine);
    assert_null(rows[PSC_OP_PROBE].first);
    for (enum psc_op op = PSC_OP_PROBE; op < PSC_OP_COUNT; op++)
        assert_int_equal(rows[op].elem_bytes, 4);
}

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
    const uint32_t n = sizeof corners / sizeof *corners;
    for (enum psc_op op = PSC_OP_SUM_I32; op < PSC_OP_COUNT; op++)
        for (uint32_t a = 0; a < n; a++)
            for (uint32_t v = 0; v < n; v++) {
                uint32_t accumulator[17], values[17];
                for (uint32_t i = 0; i < 17; i++) {
                    accumulator[i] = corners[a];
                    values[i] = corners[v];
                }
                rows[op].combine(accumulator, values, 17);
                for (uint32_t i = 0; i < 17; i++)
                    if (!same(op, accumulator[i], specified(op, corners[a], corners[v])))
                        fail_msg("op %d: %08x op %08x gave %08x", (int)op, corners[a], corners[v],
                                 accumulator[i]);
            }
}

static void scalar_is_as_specified(void **state)
{
    (void)state;
    check_variant(psc_op_rows_scalar);
    check_corners(psc_op_rows_scalar);
}

static void avx2_is_as_specified(void **state)
{
    (void)state;
    if (!__builtin_cpu_supports("avx2")) {
        print_message("this CPU has no AVX2\n");
        skip();
    }
    check_variant(psc_op_rows_avx2);
    check_corners(psc_op_rows_avx2);
}

static void max_orders_nan_above_inf_above_finite(void **state)
{
    float accumulator[4], values[4] = {-2.0f, -INFINITY, 3.0f, NAN}, next[4] = {1.0f, 5.0f, NAN, INFINITY};
    const struct psc_op_row *max = &psc_op_rows()[PSC_OP_MAX_F32];
    (void)state;
    max->first(accumulator, values, 4);
    assert_true(accumulator[0] == 2.0f && accumulator[1] == INFINITY);
    max->combine(accumulator, next, 4);
    assert_true(accumulator[0] == 2.0f && accumulator[1] == INFINITY);
    assert_true(isnan(accumulator[2]) && isnan(accumulator[3]));
}

static void best_variant_is_selected(void **state)
{
    bool avx2 = __builtin_cpu_supports("avx2");
    (void)state;
    assert_ptr_equal(psc_op_rows(), avx2 ? psc_op_rows_avx2 : psc_op_rows_scalar);
    assert_string_equal(psc_arith_variant(), avx2 ? "avx2" : "scalar");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_is_as_specified),
        cmocka_unit_test(avx2_is_as_specified),
        cmocka_unit_test(max_orders_nan_above_inf_above_finite),
        cmocka_unit_test(best_variant_is_selected),
    };
    return cmocka_run_group_tests_name("arith", tests, NULL, NULL);
}
