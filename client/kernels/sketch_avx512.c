/* The codec lhc for AVX-512. A block of 32 lanes is two vectors, a row of counts is half of one, and a
 * rotation of 32 lanes is two permutations, or one instruction for a mask. The pragma, not a flag of the
 * whole file, so that nothing from a header is ever compiled to instructions that the CPU may lack. */
#ifdef __x86_64__
#include <immintrin.h>

#include "sketch.h"
#include "variants.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,bmi,bmi2,popcnt")

#define INLINE static inline __attribute__((always_inline))

enum { AHEAD = 1024 }; /* elements by which reading runs ahead of sketching */

struct lanes {
    __m512i low, high;
};

INLINE struct lanes lanes_load(const int32_t *at)
{
    return (struct lanes){_mm512_loadu_si512(at), _mm512_loadu_si512(at + 16)};
}

INLINE void lanes_store(int32_t *at, struct lanes a)
{
    _mm512_storeu_si512(at, a.low);
    _mm512_storeu_si512(at + 16, a.high);
}

/* Lane l from lane l + by, modulo 32. */
INLINE struct lanes lanes_from(struct lanes a, uint32_t by)
{
    const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i at = _mm512_add_epi32(iota, _mm512_set1_epi32((int)by)); /* its low five bits count */
    __m512i further = _mm512_add_epi32(at, _mm512_set1_epi32(16));
    return (struct lanes){_mm512_permutex2var_epi32(a.low, at, a.high),
                          _mm512_permutex2var_epi32(a.low, further, a.high)};
}

INLINE struct lanes lanes_negate(struct lanes a, uint32_t where)
{
    const __m512i zero = _mm512_setzero_si512();
    return (struct lanes){_mm512_mask_sub_epi32(a.low, (__mmask16)where, zero, a.low),
                          _mm512_mask_sub_epi32(a.high, (__mmask16)(where >> 16), zero, a.high)};
}

/* ---- Hash: Philox states in the 64-bit lanes, of which it uses the low half ---- */

INLINE void philox(__m512i c0, const struct psc_lhc_hash *hash, uint32_t stream, __m512i words[4])
{
    const __m512i m0 = _mm512_set1_epi64(PHILOX_M0), m1 = _mm512_set1_epi64(PHILOX_M1);
    uint32_t k0 = (uint32_t)hash->seed, k1 = (uint32_t)(hash->seed >> 32);
    __m512i c1 = _mm512_set1_epi64(hash->chunk), c2 = _mm512_set1_epi64(hash->sequence),
            c3 = _mm512_set1_epi64(stream);
#pragma GCC unroll 7
    for (uint32_t round = 0; round < ROUNDS; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        __m512i product0 = _mm512_mul_epu32(c0, m0), product1 = _mm512_mul_epu32(c2, m1);
        c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), c1, _mm512_set1_epi64(k0), 0x96);
        c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), c3, _mm512_set1_epi64(k1), 0x96);
        c1 = product1;
        c3 = product0;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* The low halves of the 64-bit lanes of a, then of b. */
INLINE void store_words(uint32_t at[LHC_GROUP], __m512i a, __m512i b)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    _mm512_storeu_si512(at, _mm512_permutex2var_epi32(a, even, b));
}

INLINE __m512i place_of(__m512i word, __m512i rotations, uint32_t j, uint32_t rows)
{
    __m512i row = _mm512_srli_epi64(_mm512_mul_epu32(word, _mm512_set1_epi64(rows)), 32);
    row = _mm512_slli_epi64(_mm512_add_epi64(row, _mm512_set1_epi64(j * (uint64_t)rows)), 5);
    __m512i rotation = _mm512_and_si512(_mm512_srli_epi64(rotations, 5 * j), _mm512_set1_epi64(31));
    return _mm512_or_si512(row, rotation);
}

static void hash_group(const struct psc_lhc_hash *hash, uint32_t first, struct psc_lhc_group *group)
{
    __m512i rows[2][4], signs[2][4];
    __m512i q = _mm512_add_epi64(_mm512_set1_epi64(first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    for (uint32_t half = 0; half < 2; half++) {
        philox(q, hash, PSC_LHC_STREAM_PLACES, rows[half]);
        philox(q, hash, PSC_LHC_STREAM_SIGNS, signs[half]);
        q = _mm512_add_epi64(q, _mm512_set1_epi64(8));
    }
    for (uint32_t j = 0; j < LHC_TABLES; j++) {
        store_words(group->place[j], place_of(rows[0][j], rows[0][3], j, hash->rows),
                    place_of(rows[1][j], rows[1][3], j, hash->rows));
        store_words(group->sign[j], signs[0][j], signs[1][j]);
    }
}

/* ---- Sketch ---- */

INLINE __m512i fixed(__m512 x, struct psc_lhc_scale scale)
{
    x = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(scale.first)), _mm512_set1_ps(scale.rest));
    return _mm512_cvtps_epi32(x);
}

static void sketch(const struct psc_lhc_group *group, const uint32_t live[LHC_GROUP], uint32_t blocks,
                   const float *values, struct psc_lhc_scale scale, int32_t *table)
{
    for (uint32_t i = 0; i < blocks; i++, values += LHC_LANES) {
        /* The hardware's prefetch ends with the page. */
        _mm_prefetch((const char *)(values + AHEAD), _MM_HINT_T0);
        _mm_prefetch((const char *)(values + AHEAD + 16), _MM_HINT_T0);
        __m512 low = _mm512_maskz_loadu_ps((__mmask16)live[i], values);
        __m512 high = _mm512_maskz_loadu_ps((__mmask16)(live[i] >> 16), values + 16);
        __m512i any = _mm512_or_si512(_mm512_castps_si512(low), _mm512_castps_si512(high));
        if (!_mm512_test_epi32_mask(any, any))
            continue;
        struct lanes block = {fixed(low, scale), fixed(high, scale)};
#pragma GCC unroll 3
        for (uint32_t j = 0; j < LHC_TABLES; j++) {
            uint32_t place = group->place[j][i];
            struct lanes add = lanes_from(lanes_negate(block, group->sign[j][i]), -place);
            struct lanes row = lanes_load(table + (place & ~31u));
            row.low = _mm512_add_epi32(row.low, add.low);
            row.high = _mm512_add_epi32(row.high, add.high);
            lanes_store(table + (place & ~31u), row);
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
    return _mm256_cmpeq_epi8_mask(a, _mm256_set1_epi8(1));
}

INLINE counts counts_more(counts a, uint32_t where)
{
    return _mm256_mask_adds_epu8(a, where, a, _mm256_set1_epi8(1));
}

INLINE counts counts_fewer(counts a, uint32_t where)
{
    __mmask32 may = _mm256_mask_cmpneq_epi8_mask(where, a, _mm256_set1_epi8((char)LHC_CROWDED));
    return _mm256_mask_sub_epi8(a, may, a, _mm256_set1_epi8(1));
}

#define VARIANT psc_lhc_avx512
#include "sketch_blocks.h"

#endif
