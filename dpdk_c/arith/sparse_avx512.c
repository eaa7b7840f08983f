/* The AVX-512 variant: instructions that expand and compress 16 elements at a time. Masked lanes are neither
 * read nor written, so nothing beyond a packet or a slot is touched. Step of the story: "slot added". */
#include <immintrin.h>

#include "variants.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,popcnt")
#endif

static inline __attribute__((always_inline)) uint32_t
expand_16(uint32_t *accumulator, __mmask16 there, __mmask16 had, const char *values, bool floats)
{
    __m512i value = _mm512_maskz_expandloadu_epi32(there, values);
    __m512i before = _mm512_maskz_loadu_epi32(had, accumulator);

    if (floats)
        value = _mm512_castps_si512(_mm512_mask_add_ps(
            _mm512_castsi512_ps(value), had, _mm512_castsi512_ps(before), _mm512_castsi512_ps(value)));
    else
        value = _mm512_mask_add_epi32(value, had, before, value);
    _mm512_mask_storeu_epi32(accumulator, there, value);
    return 4 * (uint32_t)__builtin_popcount(there);
}

static inline __attribute__((always_inline)) void expand(uint32_t *accumulator, uint32_t *united,
                                                         const uint32_t *bitmap, uint32_t words,
                                                         const char *values, bool floats)
{
    for (uint32_t w = 0; w < words; w++, accumulator += 32) {
        uint32_t there = bitmap[w], had = there & united[w];
        if (!there)
            continue;
        values += expand_16(accumulator, (__mmask16)there, (__mmask16)had, values, floats);
        values +=
            expand_16(accumulator + 16, (__mmask16)(there >> 16), (__mmask16)(had >> 16), values, floats);
        united[w] |= there;
    }
}

static void expand_i32(uint32_t *accumulator, uint32_t *united, const uint32_t *bitmap, uint32_t words,
                       const void *values)
{
    expand(accumulator, united, bitmap, words, values, false);
}

static void expand_f32(uint32_t *accumulator, uint32_t *united, const uint32_t *bitmap, uint32_t words,
                       const void *values)
{
    expand(accumulator, united, bitmap, words, values, true);
}

/* Compressed in a register and stored by a mask: the one instruction for both is microcoded on Zen 4. */
static inline __attribute__((always_inline)) uint32_t pack_16(uint32_t *out, const uint32_t *values,
                                                              __mmask16 there)
{
    uint32_t count = (uint32_t)__builtin_popcount(there);
    __m512i packed = _mm512_maskz_compress_epi32(there, _mm512_maskz_loadu_epi32(there, values));

    _mm512_mask_storeu_epi32(out, (__mmask16)((1u << count) - 1), packed);
    return count;
}

static uint32_t pack(uint32_t *out, const uint32_t *values, const uint32_t *bitmap, uint32_t words)
{
    uint32_t count = 0;

    for (uint32_t w = 0; w < words; w++, values += 32) {
        if (!bitmap[w])
            continue;
        count += pack_16(out + count, values, (__mmask16)bitmap[w]);
        count += pack_16(out + count, values + 16, (__mmask16)(bitmap[w] >> 16));
    }
    return count;
}

static uint32_t count(const uint32_t *bitmap, uint32_t words)
{
    uint32_t bits = 0;

    for (uint32_t w = 0; w < words; w++)
        bits += (uint32_t)__builtin_popcount(bitmap[w]);
    return bits;
}

const struct psc_sparse_row psc_sparse_avx512 = {expand_i32, expand_f32, pack, count};

#ifdef __clang__
#pragma clang attribute pop
#endif
