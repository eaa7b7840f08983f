/* The kernels of codec sparse, private to this room: one instruction set's. Call them only on a CPU that has
 * it. */
#ifndef PSC_PACK_H
#define PSC_PACK_H

#include "psc_kernels.h"

/* As the doors of the same names in psc_kernels.def.h; `words` of 32 elements each, all of them whole. */
struct psc_pack_kernels {
    uint64_t (*count)(const uint32_t *bitmap, uint64_t words);
    uint64_t (*mark)(const uint32_t *x, uint64_t words, uint32_t least, uint32_t *bitmap);
    /* room: words at `packed`. Those beyond what is packed may be written too. */
    void (*pack)(const uint32_t *x, const uint32_t *chosen, uint64_t words, uint64_t room, uint32_t *packed);
    /* Returns the values that it has taken. room: words at `packed`. stream: `values` is on a 64-byte
     * boundary, and written past the cache; the caller fences. */
    uint64_t (*unpack)(const uint32_t *packed, uint64_t room, const uint32_t *chosen, uint64_t words,
                       bool stream, uint32_t *values);
    void (*fence)(void);
};

/* An array, or a part of one that begins with a whole vector. `room` as above, `count` values or more. */
void psc_pack(const uint32_t *x, const uint32_t *chosen, uint64_t elems, uint64_t count, uint64_t room,
              uint32_t *packed);
void psc_unpack(const uint32_t *packed, uint64_t room, const uint32_t *chosen, uint64_t elems, bool stream,
                uint32_t *values);
/* Whether to `stream` all of an array, and what to call when all of it is written. */
bool psc_unpacks_past_cache(const uint32_t *values, uint64_t elems);
void psc_unpacked(bool stream);

extern const struct psc_pack_kernels psc_pack_scalar;
#ifdef __x86_64__
extern const struct psc_pack_kernels psc_pack_avx2;
extern const struct psc_pack_kernels psc_pack_avx512;
#endif

#endif
