/* The AVX-512 variant (F, BW, VL and VBMI: Ice Lake, Zen 4 and later): 64 bytes are a vector, a mask stands
 * for the last elements, and even a table of 256 entries is in registers. Step of the story: "slot added". */
#include <immintrin.h>
#include <string.h>

#include "variants.h"

/* The pragma, not a flag of the whole file, so that nothing from a header is ever compiled to instructions
 * that the CPU may lack. */
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi"))),                \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vbmi")
#endif

#define VEC_BYTES 64
typedef __m512i vec;

static inline vec load(const void *from)
{
    return _mm512_loadu_si512(from);
}

static inline void store(void *to, vec vector)
{
    _mm512_storeu_si512(to, vector);
}

/* As many elements of 4 bytes as `elems` < 16 says; the others are neither read nor written, and zero. */
static inline __mmask16 mask_of(uint32_t elems)
{
    return (__mmask16)((1u << elems) - 1);
}

static inline vec load_part(const void *from, uint32_t elems)
{
    return _mm512_maskz_loadu_epi32(mask_of(elems), from);
}

static inline void store_part(void *to, uint32_t elems, vec vector)
{
    _mm512_mask_storeu_epi32(to, mask_of(elems), vector);
}

static inline __m256i load_half(const void *from)
{
    return _mm256_loadu_si256(from);
}

static inline __m256i load_half_part(const void *from, uint32_t elems)
{
    return _mm256_maskz_loadu_epi32((__mmask8)mask_of(elems), from);
}

static inline vec set1_u32(uint32_t element)
{
    return _mm512_set1_epi32((int)element);
}

static inline vec set1_f32(float element)
{
    return _mm512_castps_si512(_mm512_set1_ps(element));
}

static inline vec zero(void)
{
    return _mm512_setzero_si512();
}

static inline vec add_u8(vec a, vec b)
{
    return _mm512_add_epi8(a, b);
}

static inline vec add_u16(vec a, vec b)
{
    return _mm512_add_epi16(a, b);
}

static inline vec add_u32(vec a, vec b)
{
    return _mm512_add_epi32(a, b);
}

static inline vec add_f32(vec a, vec b)
{
    return _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
}

static inline vec or_u32_vec(vec a, vec b)
{
    return _mm512_or_si512(a, b);
}

static inline vec magnitude(vec a)
{
    return _mm512_and_si512(a, _mm512_set1_epi32(0x7fffffff));
}

static inline vec greater_u32(vec a, vec b)
{
    return _mm512_max_epu32(a, b);
}

static inline vec widened_f16(__m256i half)
{
    return _mm512_castps_si512(_mm512_cvtph_ps(half));
}

static inline vec widened_bf16(__m256i half)
{
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}

/* The lower and the upper half's bytes as 16 bits each. */
static inline vec low_u16(vec bytes)
{
    return _mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes));
}

static inline vec high_u16(vec bytes)
{
    return _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(bytes, 1));
}

/* ---- A permutation looks only at the low 6 bits of an index: a table of 4 or 16 entries is repeated to 64,
 * so that the bits above an index's own do not matter. ---- */

struct lut {
    vec entries[4];
};

static inline struct lut lut_of(uint32_t bits, const uint8_t *table)
{
    struct lut lut = {.entries = {_mm512_setzero_si512()}};
    int32_t four;

    if (bits == 2) {
        memcpy(&four, table, 4);
        lut.entries[0] = _mm512_set1_epi32(four);
    } else if (bits == 4)
        lut.entries[0] = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
    else
        for (uint32_t i = 0; i < 4; i++)
            lut.entries[i] = load(table + (size_t)64 * i);
    return lut;
}

/* The entries for index `part` of each byte; of 256 entries, a permutation of two registers finds 128. */
static inline vec looked_up(const struct lut *lut, uint32_t bits, vec packed, uint32_t part)
{
    const uint16_t down = (uint16_t)(bits * part); /* of a type that int and unsigned both hold */

    if (bits < 8)
        return _mm512_permutexvar_epi8(_mm512_srli_epi16(packed, down), lut->entries[0]);
    vec lower = _mm512_permutex2var_epi8(lut->entries[0], packed, lut->entries[1]);
    vec upper = _mm512_permutex2var_epi8(lut->entries[2], packed, lut->entries[3]);
    return _mm512_mask_mov_epi8(lower, _mm512_movepi8_mask(packed), upper);
}

#define PSC_VARIANT_ROWS psc_op_rows_avx512
#include "vector.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
