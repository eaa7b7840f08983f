/* arith/: values of which only some are there: added to where they belong, and packed again. Step of the
 * story: "slot added", for the ops with sub-blocks. Knows bitmaps and arrays, neither streams nor slots.
 *
 * Element e of an array has bit e mod 32 of word e / 32 of a bitmap. */
#ifndef PSC_SPARSE_H
#define PSC_SPARSE_H

#include <stdint.h>

/* The element of each bit of `bitmap`, in order, takes the next of `values`: it is added, the element first,
 * where `united` has the bit too, and stored, every bit of it, where it has not. Then `united` has the bit.
 * So an element that nobody has added to may hold anything, and -0.0 stays what it is. `values` may have any
 * alignment (it points into a packet) and is as long as the bitmap has bits; no element without its bit is
 * read or written. Nothing overlaps. */
typedef void psc_expand_fn(uint32_t *accumulator, uint32_t *united, const uint32_t *bitmap, uint32_t words,
                           const void *values);
/* The elements that have their bit, one behind the other; returns how many. `out` may begin at `values` or
 * anywhere before: what is written was read before. */
typedef uint32_t psc_pack_fn(uint32_t *out, const uint32_t *values, const uint32_t *bitmap, uint32_t words);
/* How many bits are set. */
typedef uint32_t psc_count_fn(const uint32_t *bitmap, uint32_t words);

struct psc_sparse_row {
    psc_expand_fn *expand_i32; /* modulo 2^32 */
    psc_expand_fn *expand_f32; /* one IEEE addition */
    psc_pack_fn *pack;
    psc_count_fn *count;
};
/* Of the variant in use (psc_arith.h). */
const struct psc_sparse_row *psc_sparse_row(void);

#endif
