/* The doors of codec sparse: whole words to the instruction set in use, a shorter last one here. */
#include <string.h>

#include "pack.h"
#include "variants.h"

enum {
    WORD = 32,
    LINE_BYTES = 64,
    STREAMED = 16384, /* values whose 64 KiB the caller will not find in a first-level cache anyway */
};

static const struct psc_pack_kernels *kernels(void)
{
#ifdef __x86_64__
    const struct psc_kernels_variant *variant = psc_kernels_current();
    if (variant == &psc_kernels_avx512)
        return &psc_pack_avx512;
    if (variant == &psc_kernels_avx2)
        return &psc_pack_avx2;
#endif
    return &psc_pack_scalar;
}

uint64_t psc_sparse_count(const uint32_t *bitmap, uint64_t words)
{
    return kernels()->count(bitmap, words);
}

uint64_t psc_sparse_mark(const float *x, uint64_t elems, uint32_t least, uint32_t *bitmap)
{
    const uint64_t words = elems / WORD, rest = elems % WORD;
    uint64_t count = kernels()->mark((const uint32_t *)x, words, least, bitmap);
    if (rest) {
        uint32_t last[WORD] = {0};
        memcpy(last, x + words * WORD, rest * sizeof *last);
        count += psc_pack_scalar.mark(last, 1, least, bitmap + words);
    }
    return count;
}

void psc_pack(const uint32_t *x, const uint32_t *chosen, uint64_t elems, uint64_t count, uint64_t room,
              uint32_t *packed)
{
    const uint64_t words = elems / WORD, rest = elems % WORD;
    kernels()->pack(x, chosen, words, room, packed);
    if (rest) {
        uint32_t last[WORD] = {0};
        const uint64_t of_last = psc_sparse_count(chosen + words, 1);
        memcpy(last, x + words * WORD, rest * sizeof *last);
        psc_pack_scalar.pack(last, chosen + words, 1, of_last, packed + count - of_last);
    }
}

void psc_sparse_pack(const uint32_t *x, const uint32_t *chosen, uint64_t elems, uint64_t count,
                     uint32_t *packed)
{
    psc_pack(x, chosen, elems, count, count, packed);
}

void psc_unpack(const uint32_t *packed, uint64_t room, const uint32_t *chosen, uint64_t elems, bool stream,
                uint32_t *values)
{
    const uint64_t words = elems / WORD, rest = elems % WORD;
    const uint64_t taken = kernels()->unpack(packed, room, chosen, words, stream, values);
    if (rest) {
        uint32_t last[WORD];
        psc_pack_scalar.unpack(packed + taken, room - taken, chosen + words, 1, false, last);
        memcpy(values + words * WORD, last, rest * sizeof *last);
    }
}

bool psc_unpacks_past_cache(const uint32_t *values, uint64_t elems)
{
    return elems >= STREAMED && (uintptr_t)values % LINE_BYTES == 0;
}

void psc_unpacked(bool stream)
{
    if (stream)
        kernels()->fence();
}

void psc_sparse_unpack(const uint32_t *packed, uint64_t count, const uint32_t *chosen, uint64_t elems,
                       uint32_t *values)
{
    const bool stream = psc_unpacks_past_cache(values, elems);
    psc_unpack(packed, count, chosen, elems, stream, values);
    psc_unpacked(stream);
}
