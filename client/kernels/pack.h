/* The kernels of codec sparse, private to this room: one instruction set's. Call them only on a CPU that has
 * it. */
#ifndef PSC_PACK_H
#define PSC_PACK_H

#include "psc_kernels.h"

/* As the doors of the same names in psc_kernels.def.h; `words` of 32 elements each, all of them whole. */
struct psc_pack_kernels {
    uint64_t (*count)(const uint32_t *bitmap, uint64_t words);
    uint64_t (*mark)(const uint32_t *x, uint64_t words, uint32_t least, uint32_t *bitmap);
    void (*pack)(const uint32_t *x, const uint32_t *own, const uint32_t *chosen, uint64_t words,
                 uint64_t count, uint32_t *packed);
    /* Returns the values that it has taken. stream: `values` is on a 64-byte boundary, and written past the
     * cache. */
    uint64_t (*unpack)(const uint32_t *packed, uint64_t count, const uint32_t *chosen, uint64_t words,
                       bool stream, uint32_t *values);
};

/* psc_sparse_unpack of a part of an array, for all of which psc_unpacks_past_cache says whether to `stream`.
 * Parts of whole lines. */
bool psc_unpacks_past_cache(const uint32_t *values, uint64_t elems);
void psc_unpack(const uint32_t *packed, uint64_t count, const uint32_t *chosen, uint64_t elems, bool stream,
                uint32_t *values);

extern const struct psc_pack_kernels psc_pack_scalar;
#ifdef __x86_64__
extern const struct psc_pack_kernels psc_pack_avx2;
extern const struct psc_pack_kernels psc_pack_avx512;
#endif

#endif
