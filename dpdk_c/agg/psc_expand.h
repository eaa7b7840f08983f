/* agg/: contributions that come in sub-blocks (PSC_OP_EXPAND_SUM_x): how a rank's stream is read packet by
 * packet, added to a slot, and packed again into the result. The format, to the bit: docs/expand-sum.md. Step
 * of the story: "slot added".
 *
 * Nothing here trusts a payload. What a stream says about itself is checked when it has said it and before
 * anything is added by it; a stream that is refused in its middle leaves a slot behind whose round is void.
 *
 * A slot during a round, in words of 4 bytes: 16 that are spare, then for each sub-block the bits of the
 * elements that some rank has brought (the union) and room for all its elements, which hold something where
 * there is a bit. A sub-block that all ranks have passed is packed at once, to the left, behind the last one:
 * the result is never ahead of what is still to be packed (psc_expand.c, at PLACE), so it needs no memory of
 * its own. */
#ifndef PSC_EXPAND_H
#define PSC_EXPAND_H

#include <stdbool.h>
#include <stdint.h>

#include "psc_refusal.h"
#include "psc_sparse.h"
#include "psc_wire.h"

#define PSC_SUB_BLOCK_ELEMS 2048u
#define PSC_SUB_BLOCK_WORDS (PSC_SUB_BLOCK_ELEMS / 32) /* of its bitmap */

/* What the next word of a stream is. */
enum psc_expand_due { PSC_DUE_ELEMENTS, PSC_DUE_COUNT, PSC_DUE_BITMAP, PSC_DUE_VALUE, PSC_DUE_NOTHING };

/* Where one rank's contribution stands, between two of its packets. One a rank: it contributes to one round
 * at a time. */
struct psc_expand_reader {
    enum psc_expand_due due;
    uint32_t length_bytes; /* of the message */
    uint32_t read_bytes;   /* of it */
    uint32_t sub_block;    /* its number */
    uint32_t values;       /* of it: first all, then those still to come */
    uint32_t word;         /* of its bitmap: the next to be read; then, the first that has values to come */
    uint32_t reserved[10];
    uint32_t bitmap[PSC_SUB_BLOCK_WORDS]; /* of the values still to come */
};

/* What a slot knows of its sub-blocks. */
struct psc_expand_sum {
    uint32_t elements;          /* as the round's first contributor said; 0: nobody has */
    uint32_t begun_sub_blocks;  /* leading ones, by the rank that is furthest along */
    uint32_t packed_sub_blocks; /* leading ones, which all ranks have passed */
    uint32_t result_words;      /* so far */
};

/* What reading works on. */
struct psc_expand_slot {
    struct psc_expand_sum *sum;
    uint32_t *words;  /* the slot's bytes */
    uint8_t *arrived; /* per sub-block: ranks that have passed it */
    enum psc_op op;
    uint32_t elements_max, world_size;
};

static inline uint32_t psc_expand_sub_blocks(uint32_t elements)
{
    return (elements + PSC_SUB_BLOCK_ELEMS - 1) / PSC_SUB_BLOCK_ELEMS;
}

void psc_expand_begin(struct psc_expand_reader *reader, uint32_t length_bytes);
/* Reads the payload of the contribution's next packet, whole words. False: refused, for ever. */
bool psc_expand_read(struct psc_expand_reader *reader, const struct psc_expand_slot *slot,
                     const uint8_t *payload, uint32_t bytes, struct psc_refusal *refusal);
/* All ranks have passed all sub-blocks: the first 4 * result_words bytes of the slot are the result. */
static inline bool psc_expand_whole(const struct psc_expand_sum *sum)
{
    return sum->elements != 0 && sum->packed_sub_blocks == psc_expand_sub_blocks(sum->elements);
}

#endif
