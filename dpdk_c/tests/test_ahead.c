/* Sums that a pool makes ahead, while packets are checked: taken if just these values come, as the first of
 * their range and in this order; of no account else, and never when they are stale. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "psc_pool.h"
#include "variants.h"

#define MAX_RANKS    8u
#define PACKET_BYTES 512u
#define PACKETS      2u /* whole ones, and a short one behind them */
#define REST_BYTES   256u
#define LENGTH_BYTES (PACKETS * PACKET_BYTES + REST_BYTES)
#define MAX_RESULT   (2 * PACKET_BYTES) /* of one packet */

static const uint8_t tables[PSC_OP_COUNT][PSC_MAX_TABLE] = {
    [PSC_OP_LUT4_U8] = {0, 1, 3, 4, 6, 8, 9, 11, 13, 16, 18, 21, 23, 26, 29, 31},
    [PSC_OP_LUT4_U16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255}};

/* All ranks have begun round 0, of this op. */
struct trial {
    struct psc_pool pool;
    void *memory;
    enum psc_op op;
    uint32_t ranks;
    struct psc_slot *slot;
    uint8_t values[MAX_RANKS][PACKET_BYTES];
};

/* A variant that makes sums ahead, or no test. */
static int choose(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < PSC_ARITH_VARIANTS; i++)
        if (psc_arith_variants[i].first_checked && psc_arith_choose(psc_arith_variants[i].name))
            return 0;
    return 0;
}

static void skip_without_kernels(void)
{
    if (psc_first_checked(PSC_OP_SUM_I32) == NULL)
        skip();
}

static void begin(struct trial *trial, enum psc_op op, uint32_t ranks, uint32_t packet_bytes, bool crcs)
{
    const struct psc_pool_shape shape = {.world_size = ranks,
                                         .window = 1,
                                         .chunk_bytes = 8 * LENGTH_BYTES,
                                         .packet_bytes = packet_bytes,
                                         .tables = tables,
                                         .crcs = crcs};
    size_t bytes = psc_pool_memory_bytes(&shape);

    trial->op = op;
    trial->ranks = ranks;
    trial->memory = aligned_alloc(64, bytes);
    assert_non_null(trial->memory);
    memset(trial->memory, 0xa5, bytes);
    memset(trial->memory, 0, 2 * sizeof(struct psc_slot));
    psc_pool_init(&trial->pool, &shape, trial->memory);
    for (uint32_t rank = 0; rank < ranks; rank++)
        psc_pool_begin(&trial->pool, rank, op, LENGTH_BYTES);
    trial->slot = psc_pool_find(&trial->pool, 0);
}

/* 2^24 + 1 is 2^24: sums of such floats depend on their order. */
static void fill(struct trial *trial, uint32_t seed)
{
    static const float floats[] = {0x1p24f, 1.0f, -0x1p24f, 1.0f};

    for (uint32_t rank = 0; rank < MAX_RANKS; rank++)
        for (uint32_t at = 0; at < PACKET_BYTES; at += 4) {
            uint32_t bits = next_random(&seed);
            memcpy(trial->values[rank] + at,
                   trial->op == PSC_OP_SUM_F32 ? (const void *)&floats[rank % 4] : &bits, 4);
        }
}

/* The first four ranks' values. */
static bool add_ahead(struct trial *trial, uint32_t round, uint32_t packet)
{
    static const uint8_t mask[64], headers[40] = {0x45, 1, 2, 3};
    struct psc_crc_message messages[PSC_CRC_TOGETHER];
    uint32_t left = 1, packet_bytes = trial->pool.shape.packet_bytes;

    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        messages[i] = right_message(mask, headers, sizeof headers, trial->values[i], packet_bytes);
    bool made = psc_pool_add_ahead(&trial->pool, round, packet, messages, &left);
    assert_int_equal(left, made ? 0 : 1);
    return made;
}

static void add(struct trial *trial, uint32_t rank, uint32_t packet, const uint8_t *value)
{
    psc_pool_add(&trial->pool, rank, PACKET_BYTES * packet, value, PACKET_BYTES);
}

static void expect(const struct trial *trial, const uint8_t *const *values, uint8_t *sums)
{
    psc_op_rows_scalar[trial->op].first_many(sums, (const void *const *)values, trial->ranks,
                                             PACKET_BYTES / psc_op_form(trial->op)->unit_bytes,
                                             tables[trial->op]);
}

/* The sums of one packet of all ranks, and their CRCs. */
static void check(const struct trial *trial, uint32_t packet, const uint8_t *expected)
{
    uint32_t expansion = psc_op_form(trial->op)->expansion;

    assert_int_equal(trial->pool.waiting_count, 0);
    assert_int_equal(trial->slot->summed_packets, (packet + 1) * expansion);
    for (uint32_t i = 0; i < expansion; i++) {
        const uint8_t *sums = trial->slot->accumulator + (size_t)(packet * expansion + i) * PACKET_BYTES;
        assert_memory_equal(sums, expected + (size_t)i * PACKET_BYTES, PACKET_BYTES);
        assert_int_equal(trial->slot->packet_crc[packet * expansion + i], psc_crc32(0, sums, PACKET_BYTES));
    }
}

/* All ranks' values of a packet, in this order of ranks. */
static void add_and_check(struct trial *trial, uint32_t packet, const uint32_t *order)
{
    const uint8_t *values[MAX_RANKS];
    uint8_t expected[MAX_RESULT];

    for (uint32_t i = 0; i < trial->ranks; i++)
        values[i] = trial->values[order[i]];
    expect(trial, values, expected);
    for (uint32_t i = 0; i < trial->ranks; i++)
        add(trial, order[i], packet, values[i]);
    psc_pool_settle(&trial->pool);
    check(trial, packet, expected);
}

static const uint32_t in_order[MAX_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};

/* Nobody reads the values again: they have changed meanwhile, and the sums are those of what they were. */
static void check_taken(enum psc_op op, uint32_t ranks)
{
    struct trial trial;
    const uint8_t *values[MAX_RANKS];
    uint8_t expected[MAX_RESULT];

    begin(&trial, op, ranks, PACKET_BYTES, true);
    for (uint32_t packet = 0; packet < PACKETS; packet++) {
        fill(&trial, 1 + packet);
        for (uint32_t rank = 0; rank < ranks; rank++)
            values[rank] = trial.values[rank];
        expect(&trial, values, expected);
        assert_true(add_ahead(&trial, 0, packet));
        memset(trial.values, 0x11, PSC_CRC_TOGETHER * sizeof trial.values[0]);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            add(&trial, rank, packet, trial.values[rank]);
            if (rank == PSC_CRC_TOGETHER - 1)
                assert_int_equal(trial.pool.waiting_count, 0);
        }
        check(&trial, packet, expected);
        psc_pool_forget_ahead(&trial.pool);
    }
    free(trial.memory);
}

static void just_these_values_are_taken(void **state)
{
    static const enum psc_op ops[] = {PSC_OP_SUM_I32, PSC_OP_LUT4_U8, PSC_OP_SUM_F32};
    (void)state;
    skip_without_kernels();
    for (uint32_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (uint32_t ranks = 4; ranks <= 8; ranks += 4)
            check_taken(ops[i], ranks);
}

/* Of several ranges at once each takes its own, though their values have lain at the same places: only the
 * range tells them apart. */
static void ranges_do_not_mix(void **state)
{
    static uint8_t expected[PACKETS][MAX_RESULT];
    struct trial trial;
    const uint8_t *values[PSC_CRC_TOGETHER];
    (void)state;
    skip_without_kernels();
    begin(&trial, PSC_OP_SUM_I32, 4, PACKET_BYTES, true);
    for (uint32_t packet = PACKETS; packet-- > 0;) {
        fill(&trial, 3 + packet);
        for (uint32_t rank = 0; rank < 4; rank++)
            values[rank] = trial.values[rank];
        expect(&trial, values, expected[packet]);
        assert_true(add_ahead(&trial, 0, packet));
    }
    for (uint32_t packet = 0; packet < PACKETS; packet++) {
        for (uint32_t rank = 0; rank < 4; rank++)
            add(&trial, rank, packet, trial.values[rank]);
        check(&trial, packet, expected[packet]);
    }
    free(trial.memory);
}

static void another_value_is_added(void **state)
{
    static const enum psc_op ops[] = {PSC_OP_SUM_I32, PSC_OP_LUT4_U8};
    (void)state;
    skip_without_kernels();
    for (uint32_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (uint32_t ranks = 4; ranks <= 8; ranks += 4)
            for (uint32_t other = 0; other < 4; other++) {
                struct trial trial;
                uint8_t another[PACKET_BYTES], expected[MAX_RESULT];
                const uint8_t *values[MAX_RANKS];
                begin(&trial, ops[i], ranks, PACKET_BYTES, true);
                fill(&trial, 5);
                memset(another, 0x32, sizeof another);
                assert_true(add_ahead(&trial, 0, 0));
                for (uint32_t rank = 0; rank < ranks; rank++)
                    values[rank] = rank == other ? another : trial.values[rank];
                expect(&trial, values, expected);
                for (uint32_t rank = 0; rank < ranks; rank++)
                    add(&trial, rank, 0, values[rank]);
                check(&trial, 0, expected);
                free(trial.memory);
            }
}

/* The second sum lies where the first did: the first's values must not find it. */
static void a_range_summed_twice_forgets_the_first(void **state)
{
    static const uint8_t mask[64], headers[40] = {0x45, 1, 2, 3};
    static uint8_t others[4][PACKET_BYTES], expected[MAX_RESULT];
    struct psc_crc_message messages[PSC_CRC_TOGETHER];
    const uint8_t *values[PSC_CRC_TOGETHER];
    struct trial trial;
    uint32_t left = 1;
    (void)state;
    skip_without_kernels();
    begin(&trial, PSC_OP_SUM_I32, 4, PACKET_BYTES, true);
    fill(&trial, 21);
    assert_true(add_ahead(&trial, 0, 0));
    for (uint32_t rank = 0; rank < 4; rank++) {
        memset(others[rank], (int)rank + 1, PACKET_BYTES);
        messages[rank] = right_message(mask, headers, sizeof headers, others[rank], PACKET_BYTES);
        values[rank] = trial.values[rank];
    }
    assert_true(psc_pool_add_ahead(&trial.pool, 0, 0, messages, &left));
    expect(&trial, values, expected);
    for (uint32_t rank = 0; rank < 4; rank++)
        add(&trial, rank, 0, values[rank]);
    check(&trial, 0, expected);
    free(trial.memory);
}

static void another_order_is_kept(void **state)
{
    static const uint32_t other_order[MAX_RANKS] = {0, 2, 1, 3, 4, 5, 6, 7};
    struct trial trial;
    (void)state;
    skip_without_kernels();
    for (uint32_t ranks = 4; ranks <= 8; ranks += 4) {
        begin(&trial, PSC_OP_SUM_F32, ranks, PACKET_BYTES, true);
        fill(&trial, 6);
        assert_true(add_ahead(&trial, 0, 0));
        add_and_check(&trial, 0, other_order);
        free(trial.memory);
    }
}

/* It waits when the four come, or it is in the accumulator. */
static void what_came_first_is_not_lost(void **state)
{
    (void)state;
    skip_without_kernels();
    for (uint32_t settled = 0; settled < 2; settled++) {
        static const uint32_t order[MAX_RANKS] = {4, 0, 1, 2, 3, 5, 6, 7};
        struct trial trial;
        const uint8_t *values[MAX_RANKS];
        uint8_t expected[MAX_RESULT];
        begin(&trial, PSC_OP_SUM_I32, 8, PACKET_BYTES, true);
        fill(&trial, 7);
        for (uint32_t i = 0; i < 8; i++)
            values[i] = trial.values[order[i]];
        expect(&trial, values, expected);
        assert_true(add_ahead(&trial, 0, 0));
        for (uint32_t i = 0; i < 8; i++) {
            add(&trial, order[i], 0, values[i]);
            if (settled && i == 0)
                psc_pool_settle(&trial.pool);
            assert_false(add_ahead(&trial, 0, 0));
        }
        check(&trial, 0, expected);
        free(trial.memory);
    }
}

static void what_cannot_be_made_ahead_is_refused(void **state)
{
    struct trial trial;
    (void)state;
    skip_without_kernels();
    begin(&trial, PSC_OP_SUM_I32, 4, PACKET_BYTES, true);
    fill(&trial, 8);
    assert_false(add_ahead(&trial, 1, 0));       /* nobody has begun it */
    assert_false(add_ahead(&trial, 2, 0));       /* nor it, which would live in the same slot */
    assert_false(add_ahead(&trial, 0, PACKETS)); /* the short one */
    assert_false(add_ahead(&trial, 0, PACKETS + 1));
    /* Ranges are foreseen from what anybody may have sent: in bytes, these would be 0 modulo 2^32. */
    assert_false(add_ahead(&trial, 0, UINT32_MAX));
    assert_false(add_ahead(&trial, 0, UINT32_MAX / PACKET_BYTES));
    assert_true(add_ahead(&trial, 0, PACKETS - 1));
    free(trial.memory);

    static const struct {
        enum psc_op op;
        uint32_t packet_bytes;
        bool crcs, made;
    } cases[] = {{PSC_OP_SUM_F16, 512, true, false},  {PSC_OP_LUT4_U16, 512, true, false},
                 {PSC_OP_LUT4_U8, 256, true, false},  {PSC_OP_SUM_I32, 256, true, true},
                 {PSC_OP_SUM_I32, 512, false, false}, {PSC_OP_LUT4_U8, 512, true, true}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(&trial, cases[i].op, 4, cases[i].packet_bytes, cases[i].crcs);
        if (add_ahead(&trial, 0, 0) != cases[i].made)
            fail_msg("case %u is wrongly %s", i, cases[i].made ? "refused" : "made");
        free(trial.memory);
    }
}

static void a_variant_without_kernels_refuses(void **state)
{
    struct trial trial;
    (void)state;
    assert_true(psc_arith_choose("scalar"));
    begin(&trial, PSC_OP_SUM_I32, 4, PACKET_BYTES, true);
    fill(&trial, 9);
    assert_false(add_ahead(&trial, 0, 0));
    add_and_check(&trial, 0, in_order);
    free(trial.memory);
    choose(state);
}

/* The next burst's frames lie where this one's have been. */
static void what_is_forgotten_is_never_taken(void **state)
{
    static const enum psc_op ops[] = {PSC_OP_SUM_I32, PSC_OP_LUT4_U8};
    (void)state;
    skip_without_kernels();
    for (uint32_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (uint32_t ranks = 4; ranks <= 8; ranks += 4) {
            struct trial trial;
            begin(&trial, ops[i], ranks, PACKET_BYTES, true);
            /* As many as have room, and the first of them again. */
            for (uint32_t made = 0; made <= PSC_POOL_AHEAD; made++) {
                fill(&trial, 10 + made);
                assert_true(add_ahead(&trial, 0, made % PACKETS));
            }
            psc_pool_forget_ahead(&trial.pool);
            for (uint32_t packet = 0; packet < PACKETS; packet++) {
                fill(&trial, 30 + packet);
                add_and_check(&trial, packet, in_order);
            }
            free(trial.memory);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(just_these_values_are_taken),
        cmocka_unit_test(ranges_do_not_mix),
        cmocka_unit_test(another_value_is_added),
        cmocka_unit_test(a_range_summed_twice_forgets_the_first),
        cmocka_unit_test(another_order_is_kept),
        cmocka_unit_test(what_came_first_is_not_lost),
        cmocka_unit_test(what_cannot_be_made_ahead_is_refused),
        cmocka_unit_test(a_variant_without_kernels_refuses),
        cmocka_unit_test(what_is_forgotten_is_never_taken),
    };
    return cmocka_run_group_tests_name("ahead", tests, choose, NULL);
}
