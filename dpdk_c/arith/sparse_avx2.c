/* The AVX2 variant: 8 elements at a time, whose places PDEP and PEXT make of 8 bits, with no table. Lanes
 * without their bit are neither read nor written. Step of the story: "slot added". */
#include <immintrin.h>

#include "variants.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi2,popcnt")
#endif

#define BYTES_0_TO_7 UINT64_C(0x0706050403020100)

/* 0xff in byte i if bit i is set. */
static inline uint64_t bytes_of(uint32_t bits)
{
    return _pdep_u64(bits, UINT64_C(0x0101010101010101)) * 0xff;
}

static inline __m256i lanes_of(uint64_t bytes)
{
    return _mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)bytes));
}

static inline uint32_t count_of(uint32_t bits)
{
    return (uint32_t)__builtin_popcount(bits);
}

static inline __attribute__((always_inline)) uint32_t expand_8(uint32_t *accumulator, uint32_t there,
                                                               uint32_t had, const char *values, bool floats)
{
    uint64_t bytes = bytes_of(there);
    __m256i mask = lanes_of(bytes), added = lanes_of(bytes_of(had));
    __m256i packed =
        _mm256_maskload_epi32((const void *)values, lanes_of(bytes_of((1u << count_of(there)) - 1)));
    __m256i value = _mm256_permutevar8x32_epi32(packed, lanes_of(_pdep_u64(BYTES_0_TO_7, bytes)));
    __m256i before = _mm256_maskload_epi32((const void *)accumulator, added);
    __m256i sum =
        floats ? _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(before), _mm256_castsi256_ps(value)))
               : _mm256_add_epi32(before, value);

    _mm256_maskstore_epi32((void *)accumulator, mask, _mm256_blendv_epi8(value, sum, added));
    return 4 * count_of(there);
}

static inline __attribute__((always_inline)) void expand(uint32_t *accumulator, uint32_t *united,
                                                         const uint32_t *bitmap, uint32_t words,
                                                         const char *values, bool floats)
{
    for (uint32_t w = 0; w < words; w++, accumulator += 32) {
        uint32_t there = bitmap[w], had = there & united[w];
        for (uint32_t i = 0; i < 32; i += 8)
            if (there >> i & 0xff)
                values += expand_8(accumulator + i, there >> i & 0xff, had >> i & 0xff, values, floats);
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

static inline uint32_t pack_8(uint32_t *out, const uint32_t *values, uint32_t there)
{
    uint32_t count = count_of(there);
    uint64_t bytes = bytes_of(there);
    __m256i value = _mm256_maskload_epi32((const void *)values, lanes_of(bytes));
    __m256i packed = _mm256_permutevar8x32_epi32(value, lanes_of(_pext_u64(BYTES_0_TO_7, bytes)));

    _mm256_maskstore_epi32((void *)out, lanes_of(bytes_of((1u << count) - 1)), packed);
    return count;
}

static uint32_t pack(uint32_t *out, const uint32_t *values, const uint32_t *bitmap, uint32_t words)
{
    uint32_t count = 0;

    for (uint32_t w = 0; w < words; w++, values += 32)
        for (uint32_t i = 0; i < 32; i += 8)
            if (bitmap[w] >> i & 0xff)
                count += pack_8(out + count, values + i, bitmap[w] >> i & 0xff);
    return count;
}

static uint32_t count(const uint32_t *bitmap, uint32_t words)
{
    uint32_t bits = 0;

    for (uint32_t w = 0; w < words; w++)
        bits += (uint32_t)__builtin_popcount(bitmap[w]);
    return bits;
}

const struct psc_sparse_row psc_sparse_avx2 = {expand_i32, expand_f32, pack, count};

#ifdef __clang__
#pragma clang attribute pop
#endif
