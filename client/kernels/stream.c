/* Streams of sub-blocks (docs/expand-sum.md) for codec sparse in one phase: heads and bitmaps here, values by
 * the instruction set in use. */
#include <string.h>

#include "pack.h"

enum { WORD = 32, SUB_BLOCK = 2048, SUB_WORDS = SUB_BLOCK / WORD, LINE_WORDS = 16 };

/* Instead of the bitmap that a sub-block does not have. */
static const uint32_t nothing[SUB_WORDS];
#define ONES4  ~0u, ~0u, ~0u, ~0u
#define ONES16 ONES4, ONES4, ONES4, ONES4
static const uint32_t everything[SUB_WORDS] = {ONES16, ONES16, ONES16, ONES16};

/* One sub-block of a stream of `elems`: where its parts are, by what its head says. */
struct sub_block {
    uint32_t elems;
    uint32_t count;
    uint32_t bitmap_words; /* 0: it is empty or full */
    uint64_t at;           /* in the stream, of its bitmap or first value */
};

static uint32_t size_of(uint64_t left)
{
    return left < SUB_BLOCK ? (uint32_t)left : SUB_BLOCK;
}

static uint32_t words_of(uint32_t elems)
{
    return (elems + WORD - 1) / WORD;
}

static struct sub_block sub_block_of(uint64_t left, uint32_t count, uint64_t head_at)
{
    const uint32_t elems = size_of(left);
    return (struct sub_block){elems, count, count && count < elems ? words_of(elems) : 0, head_at + 1};
}

static uint64_t end_of(const struct sub_block *block)
{
    return block->at + block->bitmap_words + block->count;
}

static const uint32_t *bitmap_of(const struct sub_block *block, const uint32_t *stream)
{
    if (block->bitmap_words)
        return stream + block->at;
    return block->count ? everything : nothing;
}

uint64_t psc_sparse_stream_words(const uint32_t *bitmap, uint64_t elems)
{
    uint64_t at = 1;
    for (uint64_t first = 0; first < elems; first += SUB_BLOCK, bitmap += SUB_WORDS) {
        const uint64_t count = psc_sparse_count(bitmap, words_of(size_of(elems - first)));
        const struct sub_block block = sub_block_of(elems - first, (uint32_t)count, at);
        at = end_of(&block);
    }
    return at;
}

void psc_sparse_stream_write(const uint32_t *x, const uint32_t *packed, const uint32_t *bitmap,
                             uint64_t elems, uint32_t *stream, uint64_t stream_words)
{
    uint64_t at = 1;
    stream[0] = (uint32_t)elems;
    for (uint64_t first = 0; first < elems; first += SUB_BLOCK, bitmap += SUB_WORDS) {
        const uint64_t count = psc_sparse_count(bitmap, words_of(size_of(elems - first)));
        const struct sub_block block = sub_block_of(elems - first, (uint32_t)count, at);
        uint32_t *values = stream + block.at + block.bitmap_words;
        stream[at] = block.count;
        memcpy(stream + block.at, bitmap, sizeof *bitmap * block.bitmap_words);
        if (packed) {
            memcpy(values, packed, sizeof *packed * count);
            packed += count;
        } else {
            const uint64_t room =
                stream_words - (uint64_t)(values - stream); /* what is later is written later */
            psc_pack(x + first, bitmap, block.elems, count, room, values);
        }
        at = end_of(&block);
    }
}

/* What is wrong with bitmaps, the first of each kind. */
struct wrong_bits {
    uint32_t count, found, size, place;
};

static void check_bits(const struct sub_block *block, const uint32_t *stream, struct wrong_bits *wrong)
{
    const uint32_t *bitmap = stream + block->at;
    const uint32_t found = (uint32_t)psc_sparse_count(bitmap, block->bitmap_words);
    const uint32_t rest = block->elems % WORD, last = bitmap[block->bitmap_words - 1];
    if (rest && last >> rest) {
        wrong->size = block->elems;
        wrong->place = block->elems - rest + WORD - (uint32_t)__builtin_clz(last);
    }
    if (found != block->count && !wrong->count) {
        wrong->count = block->count;
        wrong->found = found;
    }
}

static struct psc_sparse_verdict refused(enum psc_sparse_fault fault, uint64_t expected, uint64_t got)
{
    return (struct psc_sparse_verdict){fault, expected, got, 0};
}

static struct psc_sparse_verdict check(const uint32_t *stream, uint64_t words, uint64_t elems)
{
    uint64_t at = 1, values = 0, later = (elems + SUB_BLOCK - 1) / SUB_BLOCK;
    struct wrong_bits wrong = {0};
    if (words == 0 || stream[0] != elems)
        return refused(PSC_SPARSE_ELEMENTS, elems, words ? stream[0] : 0);
    for (uint64_t first = 0; first < elems; first += SUB_BLOCK, later--) {
        if (at >= words)
            return refused(PSC_SPARSE_LENGTH, at + later, words);
        const struct sub_block block = sub_block_of(elems - first, stream[at], at);
        if (block.count > block.elems)
            return refused(PSC_SPARSE_TOO_MANY, block.elems, block.count);
        at = end_of(&block);
        if (at > words)
            return refused(PSC_SPARSE_LENGTH, at + later - 1, words);
        for (uint64_t line = block.at + block.bitmap_words; line < at; line += LINE_WORDS)
            __builtin_prefetch(stream + line); /* the values, which are taken next */
        if (block.bitmap_words)
            check_bits(&block, stream, &wrong);
        values += block.count;
    }
    if (at != words)
        return refused(PSC_SPARSE_LENGTH, at, words);
    if (wrong.place)
        return refused(PSC_SPARSE_BEYOND, wrong.size, wrong.place);
    if (wrong.count)
        return refused(PSC_SPARSE_COUNT, wrong.count, wrong.found);
    return (struct psc_sparse_verdict){PSC_SPARSE_GOOD, 0, 0, values};
}

void psc_sparse_stream_check(const uint32_t *stream, uint64_t words, uint64_t elems,
                             struct psc_sparse_verdict *verdict)
{
    *verdict = check(stream, words, elems);
}

void psc_sparse_stream_values(const uint32_t *stream, uint64_t elems, uint32_t *packed)
{
    uint64_t at = 1;
    for (uint64_t first = 0; first < elems; first += SUB_BLOCK) {
        const struct sub_block block = sub_block_of(elems - first, stream[at], at);
        memcpy(packed, stream + block.at + block.bitmap_words, sizeof *packed * block.count);
        packed += block.count;
        at = end_of(&block);
    }
}

void psc_sparse_stream_unpack(const uint32_t *stream, uint64_t stream_words, const uint32_t *packed,
                              uint64_t count, uint64_t elems, uint32_t *values)
{
    const uint32_t *end = packed ? packed + count : stream + stream_words;
    const bool past_cache = psc_unpacks_past_cache(values, elems);
    uint64_t at = 1;
    for (uint64_t first = 0; first < elems; first += SUB_BLOCK) {
        const struct sub_block block = sub_block_of(elems - first, stream[at], at);
        const uint32_t *from = packed ? packed : stream + block.at + block.bitmap_words;
        psc_unpack(from, (uint64_t)(end - from), bitmap_of(&block, stream), block.elems, past_cache,
                   values + first);
        if (packed)
            packed += block.count;
        at = end_of(&block);
    }
    psc_unpacked(past_cache);
}
