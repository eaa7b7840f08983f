/* A pool by itself, where the protocol tests cannot get it to: over the wrap of the round after 2^32 rounds;
 * and a peer that breaks the window rule. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "psc_pool.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_go_on_over_the_wrap),
        cmocka_unit_test(the_window_holds_over_the_wrap),
        cmocka_unit_test(a_slot_that_one_rank_has_not_acknowledged_is_not_writable),
        cmocka_unit_test(a_rewound_pool_keeps_what_is_complete),
        cmocka_unit_test(what_a_rank_says_it_has_is_complete_and_all_that_it_acknowledged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
