/* agg/: reading, adding and packing streams of sub-blocks. One short function for each kind of word. */
#include "psc_expand.h"

#include <string.h>

_Static_assert(PSC_SUB_BLOCK_ELEMS == PSC_SUB_BLOCK_EXPAND_SUM_I32 &&
                   PSC_SUB_BLOCK_ELEMS == PSC_SUB_BLOCK_EXPAND_SUM_F32,
               "one size for both ops");

/* PLACE of sub-block b: SPARE + b * (bits and elements of a whole one). The result's sub-blocks before b take
 * at most as many words as their places, since none has more than its elements and its bits, and its count
 * only where it lacks an element or the bits; with the number of elements in front, b is packed from at most
 * 1 + b * STRIDE on. Its k-th value goes to at most 1 + b * STRIDE + 1 + bits + k, and comes from SPARE + b *
 * STRIDE + bits + i, where i >= k: to the left. */
#define SPARE  (PSC_SUB_BLOCK_SPARE_BYTES / 4)
#define STRIDE (PSC_SUB_BLOCK_WORDS + PSC_SUB_BLOCK_ELEMS)
_Static_assert(SPARE >= 2, "what is packed moves to the left");

static uint32_t elements_of(const struct psc_expand_sum *sum, uint32_t sub_block)
{
    uint32_t rest = sum->elements - sub_block * PSC_SUB_BLOCK_ELEMS;

    return rest < PSC_SUB_BLOCK_ELEMS ? rest : PSC_SUB_BLOCK_ELEMS;
}

static uint32_t bitmap_words(uint32_t elements)
{
    return (elements + 31) / 32;
}

static uint32_t *united_of(const struct psc_expand_slot *slot, uint32_t sub_block)
{
    return slot->words + SPARE + (size_t)sub_block * STRIDE;
}

static uint32_t load(const uint8_t *payload)
{
    uint32_t word;

    memcpy(&word, payload, 4);
    return word;
}

/* Bits of the last word that are elements. */
static uint32_t last_bits(uint32_t elements)
{
    return elements % 32 == 0 ? UINT32_MAX : (1u << elements % 32) - 1;
}

/* ---- Slot full: a sub-block of the result. ---- */

static void pack(const struct psc_expand_slot *slot, uint32_t sub_block)
{
    const struct psc_sparse_row *row = psc_sparse_row();
    uint32_t elements = elements_of(slot->sum, sub_block), words = bitmap_words(elements);
    const uint32_t *united = united_of(slot, sub_block), *values = united + words;
    uint32_t *out = slot->words + slot->sum->result_words, bitmap[PSC_SUB_BLOCK_WORDS];
    uint32_t count = row->count(united, words);

    memcpy(bitmap, united, 4 * words); /* the result may be written over it */
    *out++ = count;
    if (count == elements) {
        memmove(out, values, (size_t)4 * elements);
        out += elements;
    } else if (count > 0) {
        memcpy(out, bitmap, 4 * words);
        out += words;
        out += row->pack(out, values, bitmap, words);
    }
    slot->sum->result_words = (uint32_t)(out - slot->words);
    slot->sum->packed_sub_blocks++;
}

/* ---- A rank's words. ---- */

/* The least that its message can have, by what it has said. */
static uint32_t least_bytes(const struct psc_expand_reader *reader, const struct psc_expand_sum *sum)
{
    uint32_t later = psc_expand_sub_blocks(sum->elements) - reader->sub_block; /* this one included */

    switch (reader->due) {
    case PSC_DUE_ELEMENTS:
        return reader->read_bytes + 8;
    case PSC_DUE_COUNT:
        return reader->read_bytes + 4 * later;
    case PSC_DUE_BITMAP:
        return reader->read_bytes +
               4 * (bitmap_words(elements_of(sum, reader->sub_block)) - reader->word + reader->values) +
               4 * (later - 1);
    case PSC_DUE_VALUE:
        return reader->read_bytes + 4 * reader->values + 4 * (later - 1);
    case PSC_DUE_NOTHING:
        break;
    }
    return reader->read_bytes;
}

/* The rank has had its last word about this sub-block. */
static bool pass(struct psc_expand_reader *reader, const struct psc_expand_slot *slot,
                 struct psc_refusal *refusal)
{
    uint32_t sub_block = reader->sub_block++;

    reader->due = PSC_DUE_COUNT;
    if (reader->sub_block == psc_expand_sub_blocks(slot->sum->elements)) {
        reader->due = PSC_DUE_NOTHING;
        if (reader->read_bytes != reader->length_bytes)
            return psc_refuse(refusal, PSC_FAULT_STREAM_LENGTH, reader->read_bytes, reader->length_bytes);
    }
    /* Each rank's come in order, so the one that all ranks have passed is the next to be packed. */
    if (++slot->arrived[sub_block] == slot->world_size)
        pack(slot, sub_block);
    return true;
}

static bool read_elements(struct psc_expand_reader *reader, const struct psc_expand_slot *slot,
                          uint32_t elements, struct psc_refusal *refusal)
{
    struct psc_expand_sum *sum = slot->sum;

    if (elements == 0 || elements > slot->elements_max)
        return psc_refuse(refusal, PSC_FAULT_ELEMENTS_RANGE, slot->elements_max, elements);
    if (sum->elements == 0) {
        sum->elements = slot->words[0] = elements;
        sum->result_words = 1;
        memset(slot->arrived, 0, psc_expand_sub_blocks(elements));
    }
    if (sum->elements != elements)
        return psc_refuse(refusal, PSC_FAULT_ELEMENTS_MISMATCH, sum->elements, elements);
    reader->due = PSC_DUE_COUNT;
    return true;
}

/* All elements without a bitmap, as it would be. */
static void fill_bitmap(struct psc_expand_reader *reader, uint32_t elements)
{
    uint32_t words = bitmap_words(elements);

    memset(reader->bitmap, 0xff, 4 * words);
    reader->bitmap[words - 1] = last_bits(elements);
}

static bool read_count(struct psc_expand_reader *reader, const struct psc_expand_slot *slot, uint32_t count,
                       struct psc_refusal *refusal)
{
    uint32_t elements = elements_of(slot->sum, reader->sub_block);

    if (count > elements)
        return psc_refuse(refusal, PSC_FAULT_SUB_BLOCK, elements, count);
    if (reader->sub_block == slot->sum->begun_sub_blocks) {
        memset(united_of(slot, reader->sub_block), 0, 4 * bitmap_words(elements));
        slot->sum->begun_sub_blocks++;
    }
    reader->values = count;
    reader->word = 0;
    if (count == 0)
        return pass(reader, slot, refusal);
    reader->due = PSC_DUE_BITMAP;
    if (count == elements) {
        fill_bitmap(reader, elements);
        reader->due = PSC_DUE_VALUE;
    }
    return true;
}

/* As many of its words as there are; they are checked when all are. */
static bool read_bitmap(struct psc_expand_reader *reader, const struct psc_expand_slot *slot,
                        const uint8_t *payload, uint32_t words, struct psc_refusal *refusal)
{
    uint32_t elements = elements_of(slot->sum, reader->sub_block), all = bitmap_words(elements);

    memcpy(&reader->bitmap[reader->word], payload, 4 * words);
    reader->word += words;
    if (reader->word < all)
        return true;
    uint32_t beyond = reader->bitmap[all - 1] & ~last_bits(elements);
    if (beyond)
        return psc_refuse(refusal, PSC_FAULT_SUB_BLOCK, elements, 32 * all - (uint32_t)__builtin_clz(beyond));
    uint32_t bits = psc_sparse_row()->count(reader->bitmap, all);
    if (bits != reader->values)
        return psc_refuse(refusal, PSC_FAULT_SUB_BLOCK, reader->values, bits);
    reader->word = 0;
    reader->due = PSC_DUE_VALUE;
    return true;
}

/* Leaves the first `count` of its bits. */
static uint32_t first_bits(uint32_t bits, uint32_t count)
{
    uint32_t rest = bits;

    while (count-- > 0)
        rest &= rest - 1;
    return bits & ~rest;
}

static psc_expand_fn *expand_of(enum psc_op op)
{
    const struct psc_sparse_row *row = psc_sparse_row();

    return op == PSC_OP_EXPAND_SUM_F32 ? row->expand_f32 : row->expand_i32;
}

/* Adds the next `count` values of the sub-block: all that are still to come, or fewer where a packet ends. */
static void add(struct psc_expand_reader *reader, const struct psc_expand_slot *slot, const uint8_t *payload,
                uint32_t count)
{
    uint32_t *united = united_of(slot, reader->sub_block), *bitmap = reader->bitmap;
    uint32_t words = bitmap_words(elements_of(slot->sum, reader->sub_block)), begin = reader->word,
             end = begin;
    uint32_t *elements = united + words, left = count, bits;
    psc_expand_fn *expand = expand_of(slot->op);

    reader->values -= count;
    if (reader->values == 0) {
        expand(elements + 32 * begin, united + begin, bitmap + begin, words - begin, payload);
        return;
    }
    /* Some word has more bits than values are left for. */
    while ((bits = (uint32_t)__builtin_popcount(bitmap[end])) <= left) {
        left -= bits;
        end++;
    }
    expand(elements + 32 * begin, united + begin, bitmap + begin, end - begin, payload);
    uint32_t part = first_bits(bitmap[end], left);
    expand(elements + 32 * end, united + end, &part, 1, payload + 4 * (count - left));
    bitmap[end] &= ~part;
    reader->word = end;
}

/* ---- A packet. ---- */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Reads what is due: a word, or as many as there are of a bitmap or of values. */
static bool read_due(struct psc_expand_reader *reader, const struct psc_expand_slot *slot,
                     const uint8_t *payload, uint32_t words, struct psc_refusal *refusal)
{
    uint32_t taken = 1;

    switch (reader->due) {
    case PSC_DUE_ELEMENTS:
        reader->read_bytes += 4;
        return read_elements(reader, slot, load(payload), refusal);
    case PSC_DUE_COUNT:
        reader->read_bytes += 4;
        return read_count(reader, slot, load(payload), refusal);
    case PSC_DUE_BITMAP:
        taken = least(words, bitmap_words(elements_of(slot->sum, reader->sub_block)) - reader->word);
        reader->read_bytes += 4 * taken;
        return read_bitmap(reader, slot, payload, taken, refusal);
    case PSC_DUE_VALUE:
        taken = least(words, reader->values);
        reader->read_bytes += 4 * taken;
        add(reader, slot, payload, taken);
        return reader->values > 0 || pass(reader, slot, refusal);
    case PSC_DUE_NOTHING: /* cannot be: pass() has refused a message that goes on */
        break;
    }
    return psc_refuse(refusal, PSC_FAULT_STREAM_LENGTH, reader->read_bytes, reader->length_bytes);
}

void psc_expand_begin(struct psc_expand_reader *reader, uint32_t length_bytes)
{
    reader->due = PSC_DUE_ELEMENTS;
    reader->length_bytes = length_bytes;
    reader->read_bytes = 0;
    reader->sub_block = 0;
}

bool psc_expand_read(struct psc_expand_reader *reader, const struct psc_expand_slot *slot,
                     const uint8_t *payload, uint32_t bytes, struct psc_refusal *refusal)
{
    uint32_t end_bytes = reader->read_bytes + bytes;

    while (reader->read_bytes < end_bytes) {
        uint32_t before_bytes = reader->read_bytes;
        if (!read_due(reader, slot, payload, (end_bytes - before_bytes) / 4, refusal))
            return false;
        payload += reader->read_bytes - before_bytes;
    }
    if (end_bytes < reader->length_bytes || reader->due == PSC_DUE_NOTHING)
        return true;
    return psc_refuse(refusal, PSC_FAULT_STREAM_LENGTH, least_bytes(reader, slot->sum), reader->length_bytes);
}
