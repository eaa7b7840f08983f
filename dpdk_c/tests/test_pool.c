/* A pool by itself, where the protocol tests cannot get it to: over the wrap of the round after 2^32 rounds;
 * and a peer that breaks the window rule. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "psc_pool.h"
#include "psc_roce.h"

#define WINDOW 4u
#define RANKS  3u

static const struct psc_pool_shape shape = {
    .world_size = RANKS, .window = WINDOW, .chunk_bytes = 512, .packet_bytes = 256};

static void *make_pool(struct psc_pool *pool, uint32_t first_round)
{
    size_t bytes = psc_pool_memory_bytes(&shape);
    void *memory = aligned_alloc(64, bytes);

    assert_non_null(memory);
    memset(memory, 0, bytes);
    psc_pool_init(pool, &shape, memory);
    pool->completed_rounds = first_round;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        pool->ledger[rank].begun_rounds = pool->ledger[rank].acknowledged_rounds = first_round;
    return memory;
}

/* Returns whether the round is complete. */
static bool contribute(struct psc_pool *pool, uint32_t rank, uint32_t round, int32_t value)
{
    struct psc_refusal refusal;

    assert_true(psc_pool_round_ok(pool, rank, round, PSC_OP_SUM_I32, sizeof value, &refusal));
    assert_true(psc_pool_slot_writable(pool, round));
    assert_true(psc_pool_immediate_ok(pool, round, round, &refusal));
    psc_pool_begin(pool, rank, PSC_OP_SUM_I32, sizeof value);
    psc_pool_add(pool, rank, 0, &value, sizeof value);
    psc_pool_settle(pool);
    return psc_pool_finish(pool, rank, round);
}

static void rounds_go_on_over_the_wrap(void **state)
{
    struct psc_pool pool;
    void *memory = make_pool(&pool, UINT32_MAX - 10);
    uint32_t round = UINT32_MAX - 10;

    (void)state;
    for (int32_t turn = 0; turn < 30; turn++, round++) {
        for (uint32_t rank = 0; rank < RANKS; rank++)
            assert_int_equal(contribute(&pool, rank, round, turn), rank == RANKS - 1);
        assert_int_equal(pool.completed_rounds, round + 1);
        int32_t sum;
        memcpy(&sum, psc_pool_find(&pool, round)->accumulator, sizeof sum);
        assert_int_equal(sum, (int32_t)RANKS * turn);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            psc_pool_acknowledge(&pool, rank, round + 1);
        assert_true(psc_pool_delivered(&pool));
    }
    free(memory);
}

static void the_window_holds_over_the_wrap(void **state)
{
    struct psc_pool pool;
    void *memory = make_pool(&pool, UINT32_MAX - 1);
    struct psc_refusal refusal;

    (void)state;
    for (uint32_t i = 0; i < WINDOW; i++)
        contribute(&pool, 0, UINT32_MAX - 1 + i, 1);
    assert_false(psc_pool_round_ok(&pool, 0, UINT32_MAX - 1 + WINDOW, PSC_OP_SUM_I32, 4, &refusal));
    assert_int_equal(refusal.fault, PSC_FAULT_ROUND_MISMATCH);
    assert_int_equal(refusal.expected, UINT32_MAX - 1 + WINDOW - 1);
    assert_int_equal(psc_pool_missing(&pool, UINT32_MAX), 0x6);
    free(memory);
}

/* No conforming worker comes here: the last guard before a result that somebody still needs is written over.
 */
static void a_slot_that_one_rank_has_not_acknowledged_is_not_writable(void **state)
{
    struct psc_pool pool;
    void *memory = make_pool(&pool, 0);

    (void)state;
    for (uint32_t round = 0; round < 2 * WINDOW; round++)
        for (uint32_t rank = 0; rank < RANKS; rank++)
            contribute(&pool, rank, round, 1);
    assert_false(psc_pool_slot_writable(&pool, 2 * WINDOW));
    psc_pool_acknowledge(&pool, 0, 1);
    psc_pool_acknowledge(&pool, 1, 2);
    assert_false(psc_pool_slot_writable(&pool, 2 * WINDOW));
    psc_pool_acknowledge(&pool, 2, 1);
    assert_true(psc_pool_slot_writable(&pool, 2 * WINDOW));
    assert_false(psc_pool_slot_writable(&pool, 2 * WINDOW + 1));
    free(memory);
}

/* Rule 7, over the wrap: what is complete stays and is still guarded, what is not is void and begun anew. */
static void a_rewound_pool_keeps_what_is_complete(void **state)
{
    struct psc_pool pool;
    void *memory = make_pool(&pool, UINT32_MAX);
    int32_t sum;

    (void)state;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        contribute(&pool, rank, UINT32_MAX, 5);
    psc_pool_acknowledge(&pool, 0, 0);
    contribute(&pool, 0, 0, 7);
    contribute(&pool, 0, 1, 7);
    contribute(&pool, 1, 0, 7);

    psc_pool_rewind(&pool);
    assert_int_equal(pool.completed_rounds, 0);
    memcpy(&sum, psc_pool_find(&pool, UINT32_MAX)->accumulator, sizeof sum);
    assert_int_equal(sum, 15);
    assert_null(psc_pool_find(&pool, 0));
    assert_null(psc_pool_find(&pool, 1));
    assert_int_equal(psc_pool_missing(&pool, 0), 0x7);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(contribute(&pool, rank, 0, (int32_t)rank), rank == RANKS - 1);
    memcpy(&sum, psc_pool_find(&pool, 0)->accumulator, sizeof sum);
    assert_int_equal(sum, 0 + 1 + 2);
    free(memory);
}

static void what_a_rank_says_it_has_is_complete_and_all_that_it_acknowledged(void **state)
{
    struct psc_pool pool;
    void *memory = make_pool(&pool, UINT32_MAX - 1);

    (void)state;
    for (uint32_t round = UINT32_MAX - 1; round != 1; round++)
        for (uint32_t rank = 0; rank < RANKS; rank++)
            contribute(&pool, rank, round, 1);
    psc_pool_acknowledge(&pool, 2, UINT32_MAX);
    assert_false(psc_pool_received_ok(&pool, 2, UINT32_MAX - 1));
    assert_true(psc_pool_received_ok(&pool, 2, UINT32_MAX));
    assert_true(psc_pool_received_ok(&pool, 2, 1));
    assert_false(psc_pool_received_ok(&pool, 2, 2));
    assert_true(psc_pool_received_ok(&pool, 1, UINT32_MAX - 1));
    psc_pool_acknowledge(&pool, 2, 1);
    assert_true(psc_pool_has_all(&pool, 2));
    assert_false(psc_pool_has_all(&pool, 1));
    free(memory);
}

/* ---- Results longer than contributions. ---- */

static const uint8_t tables[PSC_OP_COUNT][PSC_MAX_TABLE] = {
    [PSC_OP_LUT4_U8] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    [PSC_OP_LUT4_U16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255},
    [PSC_OP_LUT2_U16] = {0, 1, 1, 7}};

/* Contributions of 2 whole packets and 3 units. */
#define LONG_BYTES (2 * 256 + 3 * 64)

static void *make_expanding_pool(struct psc_pool *pool)
{
    struct psc_pool_shape wide = shape;

    wide.chunk_bytes = 8 * 768;
    wide.tables = tables;
    void *memory = aligned_alloc(64, psc_pool_memory_bytes(&wide));
    assert_non_null(memory);
    memset(memory, 0xa5, psc_pool_memory_bytes(&wide));
    memset(memory, 0, 2 * WINDOW * sizeof(struct psc_slot));
    psc_pool_init(pool, &wide, memory);
    return memory;
}

/* One packet of rank's contribution, all of its bytes of this value. */
static void add_packet(struct psc_pool *pool, uint32_t rank, uint32_t packet, uint8_t value)
{
    uint8_t payload[256];
    uint32_t rest_bytes = LONG_BYTES - 256 * packet;

    memset(payload, value, sizeof payload);
    psc_pool_add(pool, rank, 256 * packet, payload, rest_bytes < 256 ? rest_bytes : 256);
    psc_pool_settle(pool);
}

/* Cut-through goes range by range: each summed packet of a contribution frees as many of the result as the op
 * expands, the last, shorter one what is left of them. */
static void a_result_grows_by_the_packets_that_its_op_makes(void **state)
{
    static const uint32_t summed[] = {4, 8, 11}; /* of 704 * 4 bytes */
    struct psc_pool pool;
    void *memory = make_expanding_pool(&pool);
    uint32_t bytes;

    (void)state;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(psc_pool_begin(&pool, rank, PSC_OP_LUT4_U16, LONG_BYTES), rank == 0);
    const struct psc_slot *slot = psc_pool_find(&pool, 0);
    assert_int_equal(slot->length_bytes, LONG_BYTES);
    assert_int_equal(slot->result_bytes, 4 * LONG_BYTES);
    assert_int_equal(slot->packets, 11);
    for (uint32_t packet = 0; packet < 3; packet++)
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            add_packet(&pool, rank, packet, (uint8_t)(0xf1 + packet));
            assert_int_equal(slot->summed_packets, rank == RANKS - 1 ? summed[packet]
                                                   : packet          ? summed[packet - 1]
                                                                     : 0);
        }
    for (uint32_t packet = 0; packet < 11; packet++) {
        const uint8_t *payload = psc_slot_payload(&pool, slot, packet, &bytes);
        assert_ptr_equal(payload, slot->accumulator + 256 * packet);
        assert_int_equal(bytes, 256);
    }
    /* A unit of 64 bytes makes 64 sums of its low nibbles, then 64 of the high ones: 512 bytes. */
    const uint16_t *sums = (const void *)slot->accumulator;
    for (uint32_t i = 0; i < 2 * LONG_BYTES; i++)
        assert_int_equal(sums[i], i % 128 < 64 ? RANKS * (1 + i / 512) : RANKS * 255);
    assert_int_equal(slot->accumulator[4 * LONG_BYTES], 0xa5);
    free(memory);
}

/* One unit, one packet, one packet and a unit: the result's packets are full ones but for the last. */
static void a_short_contribution_has_a_result_of_some_packets(void **state)
{
    static const struct {
        enum psc_op op;
        uint32_t length_bytes, packets, last_bytes;
    } cases[] = {{PSC_OP_LUT4_U8, 64, 1, 128},       {PSC_OP_LUT2_U16, 64, 2, 256},
                 {PSC_OP_LUT4_U8, 192, 2, 128},      {PSC_OP_LUT2_U16, 256, 8, 256},
                 {PSC_OP_LUT4_U8, 256 + 64, 3, 128}, {PSC_OP_LUT2_U16, 256 + 64, 10, 256}};
    struct psc_pool pool;
    void *memory = make_expanding_pool(&pool);

    (void)state;
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const uint8_t payload[256];
        uint32_t bytes = 0;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            psc_pool_begin(&pool, rank, cases[i].op, cases[i].length_bytes);
            for (uint32_t at = 0; at < cases[i].length_bytes; at += 256)
                psc_pool_add(&pool, rank, at, payload,
                             cases[i].length_bytes - at < 256 ? cases[i].length_bytes - at : 256);
            psc_pool_finish(&pool, rank, i);
        }
        const struct psc_slot *slot = psc_pool_find(&pool, i);
        assert_int_equal(slot->packets, cases[i].packets);
        assert_int_equal(slot->summed_packets, cases[i].packets);
        psc_slot_payload(&pool, slot, cases[i].packets - 1, &bytes);
        assert_int_equal(bytes, cases[i].last_bytes);
    }
    free(memory);
}

static void the_longest_contribution_is_one_whose_result_has_room(void **state)
{
    struct psc_pool pool;
    void *memory = make_expanding_pool(&pool);

    (void)state;
    assert_int_equal(psc_pool_contribution_max(&pool, PSC_OP_OR_U32), 8 * 768);
    assert_int_equal(psc_pool_contribution_max(&pool, PSC_OP_SUM_BF16), 4 * 768);
    assert_int_equal(psc_pool_contribution_max(&pool, PSC_OP_LUT2_U16), 768);
    free(memory);
}

/* ---- CRCs of results. ---- */

/* Of ops that widen too, and of the full packets that a short contribution makes. */
static void crcs_of_results_come_with_the_last_addition(void **state)
{
    static const enum psc_op ops[] = {PSC_OP_SUM_I32, PSC_OP_SUM_F16, PSC_OP_LUT4_U8, PSC_OP_LUT4_U16};
    struct psc_pool_shape wide = shape;
    struct psc_pool pool;

    (void)state;
    wide.chunk_bytes = 4 * 1024;
    wide.tables = tables;
    wide.crcs = true;
    void *memory = aligned_alloc(64, psc_pool_memory_bytes(&wide));
    assert_non_null(memory);
    memset(memory, 0, psc_pool_memory_bytes(&wide));
    psc_pool_init(&pool, &wide, memory);
    for (uint32_t round = 0; round < 4; round++) {
        assert_true(psc_pool_makes_crcs(&pool, ops[round]));
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            psc_pool_begin(&pool, rank, ops[round], LONG_BYTES);
            for (uint32_t packet = 0; packet < 3; packet++)
                add_packet(&pool, rank, packet, (uint8_t)(17 * rank + packet + 1));
        }
        const struct psc_slot *slot = psc_pool_find(&pool, round);
        assert_int_equal(slot->summed_packets, slot->packets);
        for (uint32_t packet = 0, bytes; packet < slot->packets; packet++) {
            const uint8_t *payload = psc_slot_payload(&pool, slot, packet, &bytes);
            assert_int_equal(slot->packet_crc[packet], psc_crc32(0, payload, bytes));
        }
    }
    /* A unit of LUT2_U16 makes 512 bytes. */
    assert_false(psc_pool_makes_crcs(&pool, PSC_OP_LUT2_U16));
    assert_false(psc_pool_makes_crcs(&pool, PSC_OP_EXPAND_SUM_I32));
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_go_on_over_the_wrap),
        cmocka_unit_test(the_window_holds_over_the_wrap),
        cmocka_unit_test(a_slot_that_one_rank_has_not_acknowledged_is_not_writable),
        cmocka_unit_test(a_rewound_pool_keeps_what_is_complete),
        cmocka_unit_test(what_a_rank_says_it_has_is_complete_and_all_that_it_acknowledged),
        cmocka_unit_test(a_result_grows_by_the_packets_that_its_op_makes),
        cmocka_unit_test(a_short_contribution_has_a_result_of_some_packets),
        cmocka_unit_test(the_longest_contribution_is_one_whose_result_has_room),
        cmocka_unit_test(crcs_of_results_come_with_the_last_addition),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
