/* The sum of four packets made while they are checked (psc_first_checked) against the two steps by
 * themselves: sums of the scalar reference, CRCs of the slicing one, and what the check of four leaves. All
 * that is read or written ends at a wall, or lies at odd alignments. */
#include "support.h"

#include <string.h>

#include "crc.h"
#include "variants.h"

#define MAX_BYTES    4096u
#define MAX_PARTS    8u
#define HEADER_BYTES 64u

/* Ends of rooms, and what is made in them. */
static uint8_t *payload_ends[PSC_CRC_TOGETHER], *header_end, *table_end, *sums_end;

struct burst {
    struct psc_crc_message messages[PSC_CRC_TOGETHER];
    const void *values[PSC_CRC_TOGETHER];
    uint8_t *payloads[PSC_CRC_TOGETHER];
    size_t payload_bytes;
    const uint8_t *table; /* or NULL */
    uint8_t masks[PSC_CRC_TOGETHER][HEADER_BYTES];
};

static int make_rooms(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        payload_ends[i] = wall_after(2 * MAX_BYTES);
    header_end = wall_after(HEADER_BYTES);
    table_end = wall_after(PSC_MAX_TABLE);
    sums_end = wall_after(MAX_PARTS * MAX_BYTES);
    return 0;
}

static void random_bytes(uint8_t *out, size_t bytes, uint32_t *seed)
{
    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(next_random(seed) >> 11);
}

static bool adds_floats(enum psc_op op)
{
    return op == PSC_OP_SUM_F32 || op == PSC_OP_MAX_F32;
}

/* Infinities, zeros of both signs, denormals and, of each element, at most one NaN: which of two NaNs a sum
 * is is open (test_arith.c). */
static void make_floats(const struct burst *burst, uint32_t *seed)
{
    static const uint32_t kinds[] = {0x7f800000, 0xff800000, 0x80000000, 0x00000000, 0x00000001, 0x807fffff};
    static const uint32_t nans[] = {0x7fc00001, 0xffc12345, 0x7f812345, 0xff800001};

    for (size_t at = 0; at < burst->payload_bytes; at += 4) {
        bool has_nan = next_random(seed) % 4 == 0, all_zero = next_random(seed) % 16 == 0;
        for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++) {
            uint32_t bits = next_random(seed) % 3 ? next_random(seed) & ~UINT32_C(0x00800000)
                                                  : kinds[next_random(seed) % 6];
            if (all_zero)
                bits = next_random(seed) % 8 ? 0x80000000 : 0;
            else if (has_nan && (bits & 0x7f800000) == 0x7f800000)
                bits = 0x3f800000;
            memcpy(burst->payloads[i] + at, &bits, 4);
        }
        if (has_nan && !all_zero)
            memcpy(burst->payloads[next_random(seed) % PSC_CRC_TOGETHER] + at, &nans[next_random(seed) % 4],
                   4);
    }
}

/* As psc_table_ok wants it: from 0 on, never falling. */
static const uint8_t *make_table(const struct psc_op_form *form, uint32_t *seed)
{
    uint8_t *table = table_end - form->table_entries;

    if (form->table_entries == 0)
        return NULL;
    table[0] = 0;
    for (uint32_t i = 1; i < form->table_entries; i++) {
        uint32_t entry = table[i - 1] + next_random(seed) % 35;
        table[i] = (uint8_t)(entry < 255 ? entry : 255);
    }
    table[form->table_entries - 1] |= 1;
    return table;
}

/* Payload i ends shift_bytes * (i + 1) before its wall. */
static void make_burst(struct burst *burst, enum psc_op op, size_t payload_bytes, uint32_t shift_bytes,
                       uint32_t *seed)
{
    burst->payload_bytes = payload_bytes;
    burst->table = make_table(psc_op_form(op), seed);
    random_bytes(burst->masks[0], sizeof burst->masks, seed);
    random_bytes(header_end - HEADER_BYTES, HEADER_BYTES, seed);
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++) {
        burst->payloads[i] = payload_ends[i] - payload_bytes - shift_bytes * (i + 1);
        burst->values[i] = burst->payloads[i];
        random_bytes(burst->payloads[i], payload_bytes, seed);
    }
    if (adds_floats(op))
        make_floats(burst, seed);
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++) {
        uint32_t header_bytes = 4 + next_random(seed) % (HEADER_BYTES - 3);
        burst->messages[i] = right_message(burst->masks[i], header_end - header_bytes, header_bytes,
                                           burst->payloads[i], payload_bytes);
    }
}

static uint32_t call(psc_first_checked_fn *checked, const struct burst *burst, uint8_t *sums, uint32_t *crcs)
{
    if (upper_halves_are_told())
        leave_no_upper_halves();
    uint32_t left = checked(sums, burst->messages, burst->payload_bytes, burst->table, crcs);
    if (upper_halves_are_told() && upper_halves_in_use())
        fail_msg("%zu bytes leave upper halves in use", burst->payload_bytes);
    return left;
}

/* The sums' room begins with somebody else's bytes and ends at a wall. */
static void check_sums(psc_first_checked_fn *checked, const struct psc_op_row *row, enum psc_op op,
                       const struct burst *burst)
{
    static uint8_t expected[MAX_PARTS * MAX_BYTES], part[MAX_BYTES];
    const struct psc_op_form *form = psc_op_form(op);
    uint32_t units = (uint32_t)burst->payload_bytes / form->unit_bytes, part_units = units / form->expansion;
    uint8_t *sums = sums_end - burst->payload_bytes * form->expansion;
    uint32_t crcs[MAX_PARTS + 1];

    memset(crcs, 0x5a, sizeof crcs);
    memset(sums_end - MAX_PARTS * MAX_BYTES, 0xa5, MAX_PARTS * MAX_BYTES);
    assert_int_equal(call(checked, burst, sums, crcs), 0);
    psc_op_rows_scalar[op].first_many(expected, burst->values, PSC_CRC_TOGETHER, units, burst->table);
    if (memcmp(sums, expected, burst->payload_bytes * form->expansion) != 0)
        fail_msg("op %d, %zu bytes: sums are not the reference's", (int)op, burst->payload_bytes);
    for (const uint8_t *before = sums_end - MAX_PARTS * MAX_BYTES; before < sums; before++)
        assert_int_equal(*before, 0xa5);
    for (uint32_t i = 0; i < form->expansion; i++) {
        const void *values[PSC_CRC_TOGETHER];
        for (uint32_t k = 0; k < PSC_CRC_TOGETHER; k++)
            values[k] = burst->payloads[k] + (size_t)i * part_units * form->unit_bytes;
        uint32_t crc = row->first_many_crc(part, values, PSC_CRC_TOGETHER, part_units, burst->table);
        if (crcs[i] != crc ||
            crc != psc_crc_slicing.crc(0, sums + i * burst->payload_bytes, burst->payload_bytes))
            fail_msg("op %d, %zu bytes: CRC of part %u is wrong", (int)op, burst->payload_bytes, i);
    }
    assert_int_equal(crcs[form->expansion], 0x5a5a5a5a);
}

/* A wrong bit of each packet in turn, somewhere; then claims of any kind. */
static void check_left(psc_first_checked_fn *checked, enum psc_op op, struct burst *burst, uint32_t *seed)
{
    uint8_t *sums = sums_end - burst->payload_bytes * psc_op_form(op)->expansion;
    uint32_t crcs[MAX_PARTS];

    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++) {
        uint8_t *byte = burst->payloads[i] + next_random(seed) % burst->payload_bytes;
        uint8_t bit = (uint8_t)(1u << next_random(seed) % 8);
        *byte ^= bit;
        uint32_t left = call(checked, burst, sums, crcs);
        assert_int_not_equal(left, 0);
        assert_int_equal(left,
                         psc_crc_vpclmul.together(PSC_ICRC_SEED, burst->messages, burst->payload_bytes));
        *byte ^= bit;
        burst->messages[i].claimed ^= UINT32_C(1) << next_random(seed) % 32;
        assert_int_not_equal(call(checked, burst, sums, crcs), 0);
    }
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        burst->messages[i].claimed = next_random(seed);
    assert_int_equal(call(checked, burst, sums, crcs),
                     psc_crc_vpclmul.together(PSC_ICRC_SEED, burst->messages, burst->payload_bytes));
}

static void check_op(psc_first_checked_fn *checked, const struct psc_op_row *row, enum psc_op op)
{
    static const uint32_t shifts_bytes[] = {0, 1, 7, 33, 63};
    size_t step_bytes = (size_t)PSC_CRC_TURN_BYTES * psc_op_form(op)->expansion;
    uint32_t seed = 1 + op;
    struct burst burst;

    for (size_t bytes = step_bytes; bytes <= MAX_BYTES; bytes += step_bytes)
        for (uint32_t i = 0; i < sizeof shifts_bytes / sizeof *shifts_bytes; i++) {
            make_burst(&burst, op, bytes, shifts_bytes[i], &seed);
            check_sums(checked, row, op, &burst);
            check_left(checked, op, &burst, &seed);
        }
}

static void sums_crcs_and_claims_are_those_of_the_steps_by_themselves(void **state)
{
    uint32_t found = 0;
    (void)state;
    for (uint32_t i = 0; i < PSC_ARITH_VARIANTS; i++) {
        const struct psc_arith_variant *variant = &psc_arith_variants[i];
        if (variant->first_checked == NULL || !variant->runs_here())
            continue;
        for (enum psc_op op = PSC_OP_PROBE; op < PSC_OP_COUNT; op++)
            if (variant->first_checked[op] != NULL) {
                print_message("%s, op %d\n", variant->name, (int)op);
                check_op(variant->first_checked[op], &variant->rows[op], op);
                found++;
            }
    }
    if (found == 0)
        skip();
    assert_in_range(found, 5, PSC_OP_COUNT);
}

static void the_chosen_variant_is_asked(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < PSC_ARITH_VARIANTS; i++) {
        const struct psc_arith_variant *variant = &psc_arith_variants[i];
        if (!psc_arith_choose(variant->name))
            continue;
        for (enum psc_op op = PSC_OP_PROBE; op < PSC_OP_COUNT; op++)
            assert_ptr_equal(psc_first_checked(op), variant->first_checked && !PSC_PLANTED_ERROR
                                                        ? variant->first_checked[op]
                                                        : NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_crcs_and_claims_are_those_of_the_steps_by_themselves),
        cmocka_unit_test(the_chosen_variant_is_asked),
    };
    return cmocka_run_group_tests_name("checked", tests, make_rooms, NULL);
}
