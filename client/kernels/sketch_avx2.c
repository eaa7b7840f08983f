/* The codec lhc for AVX2. A block of 32 lanes is four vectors; it is rotated through memory, written twice in
 * a row and read from where it begins; a row of counts is one vector. The pragma, not a flag of the whole
 * file, so that nothing from a header is ever compiled to instructions that the CPU may lack. */
#ifdef __x86_64__
#include <immintrin.h>

#include "sketch.h"
#include "variants.h"

#pragma GCC target("avx2,fma")

#define INLINE static inline __attribute__((always_inline))

enum { PARTS = LHC_LANES / 8, AHEAD = 1024 /* elements by which reading runs ahead of sketching */ };

/* ---- Hash: Philox states in the 64-bit lanes, of which it uses the low half ---- */

INLINE void philox(__m256i c0, const struct psc_lhc_hash *hash, uint32_t stream, __m256i words[4])
{
    const __m256i m0 = _mm256_set1_epi64x(PHILOX_M0), m1 = _mm256_set1_epi64x(PHILOX_M1);
    uint32_t k0 = (uint32_t)hash->seed, k1 = (uint32_t)(hash->seed >> 32);
    __m256i c1 = _mm256_set1_epi64x(hash->chunk), c2 = _mm256_set1_epi64x(hash->sequence),
            c3 = _mm256_set1_epi64x(stream);
#pragma GCC unroll 7
    for (uint32_t round = 0; round < ROUNDS; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        __m256i product0 = _mm256_mul_epu32(c0, m0), product1 = _mm256_mul_epu32(c2, m1);
        c0 = _mm256_srli_epi64(product1, 32) ^ c1 ^ _mm256_set1_epi64x(k0);
        c2 = _mm256_srli_epi64(product0, 32) ^ c3 ^ _mm256_set1_epi64x(k1);
        c1 = product1;
        c3 = product0;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* The low halves of the 64-bit lanes. */
INLINE void store_words(uint32_t *at, __m256i a)
{
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    _mm_storeu_si128((__m128i *)at, _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(a, even)));
}

static void hash_group(const struct psc_lhc_hash *hash, uint32_t first, struct psc_lhc_group *group)
{
    for (uint32_t i = 0; i < LHC_GROUP; i += 4) {
        __m256i words[4], signs[4];
        __m256i q = _mm256_add_epi64(_mm256_set1_epi64x(first + i), _mm256_setr_epi64x(0, 1, 2, 3));
        philox(q, hash, PSC_LHC_STREAM_PLACES, words);
        philox(q, hash, PSC_LHC_STREAM_SIGNS, signs);
        for (uint32_t j = 0; j < LHC_TABLES; j++) {
            __m256i row = _mm256_srli_epi64(_mm256_mul_epu32(words[j], _mm256_set1_epi64x(hash->rows)), 32);
            row = _mm256_slli_epi64(
                _mm256_add_epi64(row, _mm256_set1_epi64x((long long)(j * (uint64_t)hash->rows))), 5);
            __m256i rotation = _mm256_srli_epi64(words[3], (int)(5 * j)) & _mm256_set1_epi64x(31);
            store_words(group->place[j] + i, row | rotation);
            store_words(group->sign[j] + i, signs[j]);
        }
    }
}

/* ---- Sketch ---- */

/* All ones where a bit of lanes 8 * part .. 8 * part + 7 is 1. */
INLINE __m256i where(uint32_t bits, uint32_t part)
{
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_set1_epi32((int)(bits >> 8 * part)) & each, each);
}

static void sketch(const struct psc_lhc_group *group, const uint32_t live[LHC_GROUP], uint32_t blocks,
                   const float *values, struct psc_lhc_scale scale, int32_t *table)
{
    const __m256 first = _mm256_set1_ps(scale.first), rest = _mm256_set1_ps(scale.rest);
    for (uint32_t i = 0; i < blocks; i++, values += LHC_LANES) {
        int32_t twice[2 * LHC_LANES];
        __m256i any = _mm256_setzero_si256();
        /* The hardware's prefetch ends with the page. */
        _mm_prefetch((const char *)(values + AHEAD), _MM_HINT_T0);
        _mm_prefetch((const char *)(values + AHEAD + 16), _MM_HINT_T0);
        for (uint32_t part = 0; part < PARTS; part++) {
            __m256 x = _mm256_maskload_ps(values + 8 * part, where(live[i], part));
            any |= _mm256_castps_si256(x);
            __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_mul_ps(x, first), rest));
            _mm256_storeu_si256((__m256i *)(twice + 8 * part), v);
            _mm256_storeu_si256((__m256i *)(twice + LHC_LANES + 8 * part), v);
        }
        if (_mm256_testz_si256(any, any))
            continue;
        for (uint32_t j = 0; j < LHC_TABLES; j++) {
            uint32_t place = group->place[j][i], sign = group->sign[j][i];
            uint32_t begin = -place & 31;
            sign = sign >> begin | sign << (-begin & 31);
            for (uint32_t part = 0; part < PARTS; part++) {
                __m256i *row = (__m256i *)(table + (place & ~31u)) + part;
                __m256i v = _mm256_loadu_si256((const __m256i *)(twice + begin + 8 * part));
                __m256i minus = where(sign, part);
                v = _mm256_sub_epi32(v ^ minus, minus);
                _mm256_storeu_si256(row, _mm256_add_epi32(_mm256_loadu_si256(row), v));
            }
        }
    }
}

/* ---- Counts ---- */

typedef __m256i counts;

INLINE counts counts_load(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

INLINE void counts_store(uint8_t *at, counts a)
{
    _mm256_storeu_si256((__m256i *)at, a);
}

INLINE uint32_t counts_alone(counts a)
{
    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, _mm256_set1_epi8(1)));
}

/* All ones in the bytes whose bit is 1. */
INLINE __m256i bytes_of(uint32_t bits)
{
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    return _mm256_cmpeq_epi8(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), byte) & bit, bit);
}

INLINE counts counts_more(counts a, uint32_t lanes)
{
    return _mm256_adds_epu8(a, bytes_of(lanes) & _mm256_set1_epi8(1));
}

INLINE counts counts_fewer(counts a, uint32_t lanes)
{
    __m256i crowded = _mm256_cmpeq_epi8(a, _mm256_set1_epi8((char)LHC_CROWDED));
    return _mm256_add_epi8(a, _mm256_andnot_si256(crowded, bytes_of(lanes)));
}

#define VARIANT psc_lhc_avx2
#include "sketch_blocks.h"

#endif
