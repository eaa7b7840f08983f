/* A pool that adds several packets of a range in one pass: nothing is said to be summed before it is added,
 * and nothing is added late. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "psc_pool.h"

#define RANKS   64u
#define PACKETS 100u /* more than may wait at once */
#define BYTES   (PACKETS * 256)

/* Of every size, so that no two orders of addition have the same bits. */
static float value_of(uint32_t rank, uint32_t packet, uint32_t elem)
{
    return (float)(1 + rank * 37 % 11) * (float)(1u << (rank * 5 + packet + elem) % 24) / 3.0f;
}

static void make_values(uint32_t rank, uint32_t packet, float values[64])
{
    for (uint32_t elem = 0; elem < 64; elem++)
        values[elem] = value_of(rank, packet, elem);
}

static void assert_sums(const struct psc_slot *slot, uint32_t packet)
{
    const float *sums = (const float *)(const void *)slot->accumulator + packet * 64;

    for (uint32_t elem = 0; elem < 64; elem++) {
        float sum = value_of(0, packet, elem);
        for (uint32_t rank = 1; rank < RANKS; rank++)
            sum += value_of(rank, packet, elem);
        assert_memory_equal(&sums[elem], &sum, sizeof sum);
    }
}

static void *make_pool_of_many(struct psc_pool *pool)
{
    const struct psc_pool_shape many = {
        .world_size = RANKS, .window = 1, .chunk_bytes = BYTES, .packet_bytes = 256};
    void *memory = aligned_alloc(64, psc_pool_memory_bytes(&many));

    assert_non_null(memory);
    memset(memory, 0, psc_pool_memory_bytes(&many));
    psc_pool_init(pool, &many, memory);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        psc_pool_begin(pool, rank, PSC_OP_SUM_F32, BYTES);
    return memory;
}

/* A range is summed when all ranks are in the accumulator, not when all have come; and in the order in which
 * they came. */
static void what_is_summed_is_added(void **state)
{
    static float values[RANKS][64];
    struct psc_pool pool;
    void *memory = make_pool_of_many(&pool);
    const struct psc_slot *slot = psc_pool_find(&pool, 0);

    (void)state;
    for (uint32_t packet = 0; packet < PACKETS; packet++) {
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            assert_int_equal(slot->summed_packets, packet);
            make_values(rank, packet, values[rank]);
            psc_pool_add(&pool, rank, 256 * packet, values[rank], 256);
        }
        assert_int_equal(slot->summed_packets, packet + 1);
        assert_sums(slot, packet);
    }
    free(memory);
}

/* Whole contributions one after the other: more ranges wait than have room, and between ranks the frames that
 * the payloads lay in are somebody else's. */
static void what_waits_is_added_before_its_frames_are_gone(void **state)
{
    static float values[PACKETS][64];
    struct psc_pool pool;
    void *memory = make_pool_of_many(&pool);

    (void)state;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t packet = 0; packet < PACKETS; packet++) {
            make_values(rank, packet, values[packet]);
            psc_pool_add(&pool, rank, 256 * packet, values[packet], 256);
        }
        psc_pool_settle(&pool);
        memset(values, 0x7f, sizeof values);
    }
    for (uint32_t packet = 0; packet < PACKETS; packet++)
        assert_sums(psc_pool_find(&pool, 0), packet);
    free(memory);
}

/* Three ranks each, three packets behind each other: a range gets its eighth value, and is added and opened
 * anew, while others wait before and behind it. */
static void additions_of_many_ranges_do_not_mix(void **state)
{
    static float values[RANKS][8][64];
    struct psc_pool pool;
    void *memory = make_pool_of_many(&pool);

    (void)state;
    for (uint32_t rank = 0; rank < RANKS; rank += 3)
        for (uint32_t packet = 0; packet < 8 + 6; packet++)
            for (uint32_t i = 0; i < 3 && rank + i < RANKS; i++) {
                uint32_t own = packet - 3 * i;
                if (own >= 8)
                    continue;
                make_values(rank + i, own, values[rank + i][own]);
                psc_pool_add(&pool, rank + i, 256 * own, values[rank + i][own], 256);
            }
    assert_int_equal(psc_pool_find(&pool, 0)->summed_packets, 8);
    for (uint32_t packet = 0; packet < 8; packet++)
        assert_sums(psc_pool_find(&pool, 0), packet);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_summed_is_added),
        cmocka_unit_test(what_waits_is_added_before_its_frames_are_gone),
        cmocka_unit_test(additions_of_many_ranges_do_not_mix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
