/* Which variants run, and what they leave behind: the best ones, or those that the environment names; no
 * upper half of a vector register in use, which would make everybody's SSE code slow. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "crc.h"
#include "variants.h"

static const struct psc_crc_variant *const crc_variants[] = {&psc_crc_vpclmul, &psc_crc_vpclmul_each,
                                                             &psc_crc_pclmul, &psc_crc_slicing};
#define CRC_VARIANTS (sizeof crc_variants / sizeof *crc_variants)

static const char *best_arith(void)
{
    uint32_t i = 0;
    while (!psc_arith_variants[i].runs_here())
        i++;
    return psc_arith_variants[i].name;
}

static const char *best_crc(void)
{
    uint32_t i = 0;
    while (!crc_variants[i]->runs_here())
        i++;
    return crc_variants[i]->name;
}

static bool arith_runs(const char *name)
{
    for (uint32_t i = 0; i < PSC_ARITH_VARIANTS; i++)
        if (strcmp(psc_arith_variants[i].name, name) == 0)
            return psc_arith_variants[i].runs_here();
    return false;
}

static bool crc_runs(const char *name)
{
    for (uint32_t i = 0; i < CRC_VARIANTS; i++)
        if (strcmp(crc_variants[i]->name, name) == 0)
            return crc_variants[i]->runs_here();
    return false;
}

/* The tests are run with several values of the two variables. */
static void the_environment_or_the_best(void **state)
{
    const char *arith = getenv("PASCALINE_ARITH"), *crc = getenv("PASCALINE_CRC");
    bool arith_heard = arith != NULL && arith_runs(arith), crc_heard = crc != NULL && crc_runs(crc);
    (void)state;
    assert_string_equal(psc_arith_variant(), arith_heard ? arith : best_arith());
    assert_string_equal(psc_crc_variant(), crc_heard ? crc : best_crc());
    assert_ptr_equal(psc_arith_refused(), arith_heard ? NULL : arith);
    assert_ptr_equal(psc_crc_refused(), crc_heard ? NULL : crc);
}

static void another_one_can_be_chosen(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < PSC_ARITH_VARIANTS; i++)
        if (psc_arith_choose(psc_arith_variants[i].name)) {
            assert_ptr_equal(psc_op_rows(), psc_arith_variants[i].rows);
            assert_string_equal(psc_arith_variant(), psc_arith_variants[i].name);
        } else
            assert_false(psc_arith_variants[i].runs_here());
    for (uint32_t i = 0; i < CRC_VARIANTS; i++)
        if (psc_crc_choose(crc_variants[i]->name))
            assert_ptr_equal(psc_crc_chosen, crc_variants[i]);
        else
            assert_false(crc_variants[i]->runs_here());
    assert_false(psc_arith_choose("avx"));
    assert_false(psc_crc_choose(""));
    assert_string_equal(psc_arith_variant(), "scalar");
    assert_string_equal(psc_crc_variant(), "slicing");
}

/* ---- Upper halves. ---- */

static void assert_clean(const char *who, int op, const char *what, uint32_t units)
{
    if (upper_halves_in_use())
        fail_msg("%s, op %d, %s with %u units leaves upper halves in use", who, op, what, units);
}

static void check_op(const struct psc_arith_variant *variant, enum psc_op op, uint32_t units)
{
    static uint8_t value[4096], sums[8 * 4096];
    const void *values[PSC_COMBINE_MAX];
    const struct psc_op_row *row = &variant->rows[op];
    uint8_t table[PSC_MAX_TABLE];

    for (uint32_t k = 0; k < PSC_COMBINE_MAX; k++)
        values[k] = value;
    memset(value, 0xa5, sizeof value);
    memset(table, 0x55, sizeof table);
    leave_no_upper_halves();
    row->first(sums, value, units, table);
    assert_clean(variant->name, (int)op, "first", units);
    row->combine(sums, value, units, table);
    assert_clean(variant->name, (int)op, "combine", units);
    row->first_many(sums, values, PSC_COMBINE_MAX, units, table);
    assert_clean(variant->name, (int)op, "first_many", units);
    row->combine_many(sums, values, PSC_COMBINE_MAX, units, table);
    assert_clean(variant->name, (int)op, "combine_many", units);
    (void)row->first_many_crc(sums, values, PSC_COMBINE_MAX, units, table);
    assert_clean(variant->name, (int)op, "first_many_crc", units);
    (void)row->combine_many_crc(sums, values, PSC_COMBINE_MAX, units, table);
    assert_clean(variant->name, (int)op, "combine_many_crc", units);
}

static void check_sparse(const struct psc_arith_variant *variant, uint32_t word)
{
    static uint32_t sums[64 * 32], united[64], bitmap[64], values[64 * 32];

    memset(united, 0x33, sizeof united);
    memset(bitmap, (int)word, sizeof bitmap);
    leave_no_upper_halves();
    variant->sparse->expand_f32(sums, united, bitmap, 64, values);
    assert_clean(variant->name, -1, "expand_f32", word);
    variant->sparse->expand_i32(sums, united, bitmap, 64, values);
    assert_clean(variant->name, -1, "expand_i32", word);
    variant->sparse->pack(values, sums, bitmap, 64);
    assert_clean(variant->name, -1, "pack", word);
    variant->sparse->count(bitmap, 64);
    assert_clean(variant->name, -1, "count", word);
}

static void check_crc(const struct psc_crc_variant *variant, size_t bytes)
{
    static uint8_t data[4096], mask[PSC_CRC_MASK_BYTES];
    const struct psc_crc_message message = {mask, data, 40, 0, data + 40};
    const struct psc_crc_message messages[PSC_CRC_TOGETHER] = {message, message, message, message};

    memset(data, 0xa5, sizeof data);
    leave_no_upper_halves();
    (void)variant->crc(0xa5a5a5a5, data, bytes);
    assert_clean(variant->name, -1, "crc", (uint32_t)bytes);
    (void)variant->masked(0xa5a5a5a5, mask, data, bytes < 64 ? 64 : bytes);
    assert_clean(variant->name, -1, "masked", (uint32_t)bytes);
    if (variant->together == NULL)
        return;
    (void)variant->together(0xa5a5a5a5, messages,
                            (bytes < 40 ? 0 : bytes - 40) / PSC_CRC_TURN_BYTES * PSC_CRC_TURN_BYTES);
    assert_clean(variant->name, -1, "together", (uint32_t)bytes);
}

static void no_upper_half_stays_in_use(void **state)
{
    (void)state;
    if (!upper_halves_are_told()) {
        print_message("this CPU has no AVX, or does not tell which halves are in use\n");
        skip();
    }
    for (uint32_t i = 0; i < PSC_ARITH_VARIANTS; i++)
        for (enum psc_op op = PSC_OP_SUM_I32; psc_arith_variants[i].runs_here() && op <= PSC_OP_OR_U32; op++)
            for (uint32_t units = 0; units * psc_op_form(op)->unit_bytes <= 4096; units = 3 * units + 1)
                check_op(&psc_arith_variants[i], op, units);
    for (uint32_t i = 0; i < PSC_ARITH_VARIANTS; i++)
        for (uint32_t word = 0; psc_arith_variants[i].runs_here() && word <= 255; word++)
            check_sparse(&psc_arith_variants[i], word);
    for (uint32_t i = 0; i < CRC_VARIANTS; i++)
        for (size_t bytes = 0; crc_variants[i]->runs_here() && bytes <= 4096; bytes = bytes * 5 / 4 + 1)
            check_crc(crc_variants[i], bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_or_the_best),
        cmocka_unit_test(another_one_can_be_chosen),
        cmocka_unit_test(no_upper_half_stays_in_use),
    };
    return cmocka_run_group_tests_name("variants", tests, NULL, NULL);
}
