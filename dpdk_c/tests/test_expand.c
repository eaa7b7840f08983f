/* Streams of sub-blocks, read in pieces of any size into a slot of exactly its size, against sums made of
 * plain arrays; and every way in which a stream can be wrong. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "psc_expand.h"

#define SUB     PSC_SUB_BLOCK_ELEMS
#define RANKS   3u
#define ELEMS   (3 * SUB + 77)
#define LONGEST (1 + ELEMS + (ELEMS + 31) / 32 + 4)

/* What a rank has: an array and which of it is there. */
struct part {
    uint32_t values[ELEMS];
    bool there[ELEMS];
};

static uint32_t chunk_bytes_for(uint32_t elements)
{
    return 4 * (elements + (elements + 31) / 32) + PSC_SUB_BLOCK_SPARE_BYTES;
}

/* ---- The format once more, written for itself. ---- */

static uint32_t encode(const struct part *part, uint32_t elements, uint32_t *out)
{
    uint32_t at = 0;

    out[at++] = elements;
    for (uint32_t begin = 0; begin < elements; begin += SUB) {
        uint32_t size = elements - begin < SUB ? elements - begin : SUB, count = 0, words = (size + 31) / 32;
        for (uint32_t i = 0; i < size; i++)
            count += part->there[begin + i];
        out[at++] = count;
        if (count > 0 && count < size) {
            memset(&out[at], 0, 4 * words);
            for (uint32_t i = 0; i < size; i++)
                if (part->there[begin + i])
                    out[at + i / 32] |= 1u << i % 32;
            at += words;
        }
        for (uint32_t i = 0; i < size; i++)
            if (part->there[begin + i])
                out[at++] = part->values[begin + i];
    }
    return at;
}

/* Each sub-block of another density: none, few, half, nearly all, all. */
static void draw(struct part *part, uint32_t elements, uint32_t *seed)
{
    static const uint32_t per_mille[] = {0, 10, 300, 997, 1000, 500, 1};

    for (uint32_t begin = 0; begin < elements; begin += SUB) {
        uint32_t wanted = per_mille[next_random(seed) % 7];
        for (uint32_t i = begin; i < elements && i < begin + SUB; i++) {
            part->there[i] = next_random(seed) % 1000 < wanted;
            part->values[i] = next_random(seed);
        }
    }
}

static void sum_up(const struct part *parts, uint32_t ranks, uint32_t elements, struct part *sum)
{
    memset(sum, 0, sizeof *sum);
    for (uint32_t rank = 0; rank < ranks; rank++)
        for (uint32_t i = 0; i < elements; i++)
            if (parts[rank].there[i]) {
                sum->values[i] += parts[rank].values[i];
                sum->there[i] = true;
            }
}

/* ---- A slot. ---- */

struct bench {
    struct psc_expand_sum sum;
    struct psc_expand_slot slot;
    struct psc_expand_reader readers[RANKS];
    uint32_t words[RANKS][LONGEST], length[RANKS], at[RANKS]; /* words */
};

/* Memory of exactly a slot's size for so many elements, full of garbage. */
static void open_slot(struct bench *bench, uint32_t elements, uint32_t ranks)
{
    uint32_t chunk_bytes = chunk_bytes_for(elements), sub_blocks = psc_expand_sub_blocks(elements);

    assert_int_equal(psc_sub_block_elems_max(chunk_bytes), elements);
    assert_int_equal(psc_sub_block_elems_max(chunk_bytes - 4), elements - 1);
    bench->sum = (struct psc_expand_sum){0};
    bench->slot = (struct psc_expand_slot){.sum = &bench->sum,
                                           .words = malloc(chunk_bytes),
                                           .arrived = malloc(sub_blocks),
                                           .op = PSC_OP_EXPAND_SUM_I32,
                                           .elements_max = psc_sub_block_elems_max(chunk_bytes),
                                           .world_size = ranks};
    assert_true(bench->slot.words && bench->slot.arrived);
    memset(bench->slot.words, 0xa5, chunk_bytes);
    memset(bench->slot.arrived, 0xa5, sub_blocks);
    memset(bench->at, 0, sizeof bench->at);
}

static void close_slot(struct bench *bench)
{
    free(bench->slot.words);
    free(bench->slot.arrived);
}

static void begin(struct bench *bench, uint32_t rank, uint32_t words)
{
    bench->length[rank] = words;
    psc_expand_begin(&bench->readers[rank], 4 * words);
}

/* A packet of the rank's stream. */
static bool read(struct bench *bench, uint32_t rank, uint32_t words, struct psc_refusal *refusal)
{
    uint8_t *payload = exact_copy(&bench->words[rank][bench->at[rank]], 4 * words);
    bool fine = psc_expand_read(&bench->readers[rank], &bench->slot, payload, 4 * words, refusal);

    bench->at[rank] += words;
    free(payload);
    return fine;
}

/* ---- Sums. ---- */

/* Every rank's stream in pieces, whose turn it is by lot; packed as soon as all have passed, and right. */
static void check_sum(uint32_t elements, uint32_t ranks, uint32_t piece, uint32_t seed)
{
    static struct bench bench;
    static struct part parts[RANKS], sum;
    static uint32_t expected[LONGEST];
    struct psc_refusal refusal;
    uint32_t open = ranks;

    open_slot(&bench, elements, ranks);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        draw(&parts[rank], elements, &seed);
        begin(&bench, rank, encode(&parts[rank], elements, bench.words[rank]));
    }
    sum_up(parts, ranks, elements, &sum);
    uint32_t result_words = encode(&sum, elements, expected);
    while (open > 0) {
        uint32_t rank = next_random(&seed) % ranks, rest = bench.length[rank] - bench.at[rank];
        if (rest == 0)
            continue;
        assert_false(psc_expand_whole(&bench.sum));
        assert_true(read(&bench, rank, rest < piece ? rest : piece, &refusal));
        open -= rest <= piece;
        /* What all have passed stands there. */
        uint32_t passed = bench.readers[0].sub_block;
        for (uint32_t r = 1; r < ranks; r++)
            passed = bench.readers[r].sub_block < passed ? bench.readers[r].sub_block : passed;
        assert_int_equal(bench.sum.packed_sub_blocks, bench.sum.elements ? passed : 0);
        assert_memory_equal(bench.slot.words, expected, 4 * bench.sum.result_words);
    }
    assert_true(psc_expand_whole(&bench.sum));
    assert_int_equal(bench.sum.result_words, result_words);
    assert_true(result_words <= 1 + elements + (elements + 31) / 32);
    close_slot(&bench);
}

static void sums_are_right_however_streams_are_cut(void **state)
{
    static const uint32_t sizes[] = {1,       2,   31,      32,           33,        64,
                                     SUB - 1, SUB, SUB + 1, 2 * SUB + 31, ELEMS - 1, ELEMS};
    static const uint32_t pieces[] = {1, 2, 7, 64, 256, 1024, LONGEST};

    (void)state;
    for (uint32_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint32_t p = 0; p < sizeof pieces / sizeof *pieces; p++)
            for (uint32_t ranks = 1; ranks <= RANKS; ranks++)
                for (uint32_t turn = 1; turn <= 5; turn++)
                    check_sum(sizes[s], ranks, pieces[p], 1 + turn + 8 * p + 64 * s + 1024 * ranks);
}

/* The longest result: of every sub-block all but the last element, so that nothing is left out. */
static void the_longest_result_fits_its_slot(void **state)
{
    static struct bench bench;
    static struct part part;
    static uint32_t expected[LONGEST];
    struct psc_refusal refusal;

    (void)state;
    for (uint32_t i = 0; i < ELEMS; i++) {
        part.there[i] = i % SUB != SUB - 1 && i != ELEMS - 1;
        part.values[i] = i;
    }
    open_slot(&bench, ELEMS, 1);
    begin(&bench, 0, encode(&part, ELEMS, bench.words[0]));
    assert_int_equal(bench.length[0], 1 + ELEMS + (ELEMS + 31) / 32);
    assert_true(read(&bench, 0, bench.length[0], &refusal));
    assert_int_equal(encode(&part, ELEMS, expected), bench.sum.result_words);
    assert_memory_equal(bench.slot.words, expected, 4 * bench.sum.result_words);
    close_slot(&bench);
}

static void floats_are_added_as_they_come(void **state)
{
    static struct bench bench;
    static const float values[RANKS] = {1e8f, -1e8f, 1.0f};
    struct psc_refusal refusal;
    float sum;

    (void)state;
    open_slot(&bench, 40, RANKS);
    bench.slot.op = PSC_OP_EXPAND_SUM_F32;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const uint32_t head[] = {40, 1, 0, 1u << 7, 0};
        memcpy(bench.words[rank], head, sizeof head);
        memcpy(&bench.words[rank][4], &values[rank], 4);
        begin(&bench, rank, 5);
        assert_true(read(&bench, rank, 5, &refusal));
    }
    memcpy(&sum, &bench.slot.words[4], 4);
    assert_true(sum == 1.0f);
    close_slot(&bench);
}

/* ---- What is no stream. ---- */

/* 2 sub-blocks of SUB and 40 elements: 5 values in the first, 3 in the second. */
static uint32_t sound(uint32_t *words)
{
    static struct part part;

    memset(&part, 0, sizeof part);
    for (uint32_t i = 0; i < 5; i++)
        part.there[100 * i] = true;
    for (uint32_t i = 0; i < 3; i++)
        part.there[SUB + 10 * i] = true;
    return encode(&part, SUB + 40, words);
}
#define SECOND (1 + 1 + PSC_SUB_BLOCK_WORDS + 5) /* where its count is */

/* The stream after one change, in packets of `piece` words; `more`: words that its message has besides. */
static void refused(uint32_t at, uint32_t word, int32_t more, enum psc_fault fault, uint64_t expected,
                    uint64_t got)
{
    static const uint32_t pieces[] = {1, 13, 64, LONGEST};

    for (uint32_t p = 0; p < 4; p++) {
        static struct bench bench;
        struct psc_refusal refusal = {0};
        bool fine = true;
        open_slot(&bench, ELEMS, 2);
        /* Rank 1 has contributed before, whole. */
        begin(&bench, 1, sound(bench.words[1]));
        assert_true(read(&bench, 1, bench.length[1], &refusal));
        uint32_t length = sound(bench.words[0]) + (uint32_t)more;
        bench.words[0][at] = word;
        begin(&bench, 0, length);
        while (fine && bench.at[0] < length) {
            uint32_t rest = length - bench.at[0];
            fine = read(&bench, 0, rest < pieces[p] ? rest : pieces[p], &refusal);
        }
        assert_false(fine);
        assert_false(psc_expand_whole(&bench.sum));
        assert_int_equal(refusal.fault, fault);
        assert_int_equal(refusal.expected, expected);
        assert_int_equal(refusal.got, got);
        close_slot(&bench);
    }
}

static void a_stream_that_contradicts_itself_or_another_is_refused(void **state)
{
    uint32_t words[LONGEST], length = sound(words);

    (void)state;
    assert_int_equal(words[SECOND], 3);
    refused(0, 0, 0, PSC_FAULT_ELEMENTS_RANGE, ELEMS, 0);
    refused(0, ELEMS + 1, 0, PSC_FAULT_ELEMENTS_RANGE, ELEMS, ELEMS + 1);
    refused(0, UINT32_MAX, 0, PSC_FAULT_ELEMENTS_RANGE, ELEMS, UINT32_MAX);
    refused(0, SUB + 41, 0, PSC_FAULT_ELEMENTS_MISMATCH, SUB + 40, SUB + 41);
    refused(0, 1, 0, PSC_FAULT_ELEMENTS_MISMATCH, SUB + 40, 1);
    refused(1, SUB + 1, 0, PSC_FAULT_SUB_BLOCK, SUB, SUB + 1);
    refused(1, UINT32_MAX, 0, PSC_FAULT_SUB_BLOCK, SUB, UINT32_MAX);
    refused(1, 6, 0, PSC_FAULT_SUB_BLOCK, 6, 5);
    refused(1, 4, 0, PSC_FAULT_SUB_BLOCK, 4, 5);
    refused(2, 3, 0, PSC_FAULT_SUB_BLOCK, 5, 6);
    refused(2 + PSC_SUB_BLOCK_WORDS - 1, 1u << 31, 0, PSC_FAULT_SUB_BLOCK, 5, 6);
    refused(SECOND, 41, 0, PSC_FAULT_SUB_BLOCK, 40, 41);
    refused(SECOND + 2, 1u << 8, 0, PSC_FAULT_SUB_BLOCK, 40, 41); /* the first bit that is no element */
    refused(SECOND + 2, 1u << 31, 0, PSC_FAULT_SUB_BLOCK, 40, 64);
    refused(length - 1, 9, 1, PSC_FAULT_STREAM_LENGTH, 4 * length, 4 * length + 4);
    refused(length - 1, 9, (int32_t)LONGEST - (int32_t)length, PSC_FAULT_STREAM_LENGTH, 4 * length,
            4 * LONGEST);
}

/* A message that ends before its stream: at every word, and the least that it lacks is named. */
static void a_stream_that_ends_early_is_refused(void **state)
{
    uint32_t words[LONGEST], length = sound(words);

    (void)state;
    refused(0, SUB + 40, 1 - (int32_t)length, PSC_FAULT_STREAM_LENGTH, 12, 4);
    refused(0, SUB + 40, 2 - (int32_t)length, PSC_FAULT_STREAM_LENGTH, 4 * SECOND + 4, 8);
    for (int32_t n = 3; n < (int32_t)SECOND; n++)
        refused(0, SUB + 40, n - (int32_t)length, PSC_FAULT_STREAM_LENGTH, 4 * SECOND + 4, (uint32_t)(4 * n));
    refused(0, SUB + 40, (int32_t)SECOND - (int32_t)length, PSC_FAULT_STREAM_LENGTH, 4 * SECOND + 4,
            4 * SECOND);
    for (int32_t n = (int32_t)SECOND + 1; n < (int32_t)length; n++)
        refused(0, SUB + 40, n - (int32_t)length, PSC_FAULT_STREAM_LENGTH, 4 * length, (uint32_t)(4 * n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_right_however_streams_are_cut),
        cmocka_unit_test(the_longest_result_fits_its_slot),
        cmocka_unit_test(floats_are_added_as_they_come),
        cmocka_unit_test(a_stream_that_contradicts_itself_or_another_is_refused),
        cmocka_unit_test(a_stream_that_ends_early_is_refused),
    };

    return cmocka_run_group_tests_name("expand", tests, NULL, NULL);
}
