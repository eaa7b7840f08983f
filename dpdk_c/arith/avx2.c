/* The AVX2 variant: 32 bytes are a vector, F16C widens 8 binary16 at a time, and a table of up to 16 entries
 * is in a register. Step of the story: "slot added". */
#include <immintrin.h>
#include <string.h>

#include "variants.h"

/* The pragma, not a flag of the whole file, so that nothing from a header is ever compiled to instructions
 * that the CPU may lack. */
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#define VEC_BYTES 32
typedef __m256i vec;

static inline vec load(const void *from)
{
    return _mm256_loadu_si256(from);
}

static inline void store(void *to, vec vector)
{
    _mm256_storeu_si256(to, vector);
}

/* As many elements of 4 bytes as `elems` < 8 says; the others are neither read nor written, and zero. */
static inline vec mask_of(uint32_t elems)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)elems), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vec load_part(const void *from, uint32_t elems)
{
    return _mm256_maskload_epi32(from, mask_of(elems));
}

static inline void store_part(void *to, uint32_t elems, vec vector)
{
    _mm256_maskstore_epi32(to, mask_of(elems), vector);
}

static inline __m128i load_half(const void *from)
{
    return _mm_loadu_si128(from);
}

static inline __m128i load_half_part(const void *from, uint32_t elems)
{
    return _mm_maskload_epi32(from, _mm256_castsi256_si128(mask_of(elems)));
}

static inline vec set1_u32(uint32_t element)
{
    return _mm256_set1_epi32((int)element);
}

static inline vec set1_f32(float element)
{
    return _mm256_castps_si256(_mm256_set1_ps(element));
}

static inline vec zero(void)
{
    return _mm256_setzero_si256();
}

static inline vec add_u8(vec a, vec b)
{
    return _mm256_add_epi8(a, b);
}

static inline vec add_u16(vec a, vec b)
{
    return _mm256_add_epi16(a, b);
}

static inline vec add_u32(vec a, vec b)
{
    return _mm256_add_epi32(a, b);
}

static inline vec add_f32(vec a, vec b)
{
    return _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)));
}

static inline vec or_u32_vec(vec a, vec b)
{
    return _mm256_or_si256(a, b);
}

static inline vec magnitude(vec a)
{
    return _mm256_and_si256(a, _mm256_set1_epi32(0x7fffffff));
}

static inline vec greater_u32(vec a, vec b)
{
    return _mm256_max_epu32(a, b);
}

static inline vec widened_f16(__m128i half)
{
    return _mm256_castps_si256(_mm256_cvtph_ps(half));
}

static inline vec widened_bf16(__m128i half)
{
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}

/* The lower and the upper half's bytes as 16 bits each. */
static inline vec low_u16(vec bytes)
{
    return _mm256_cvtepu8_epi16(_mm256_castsi256_si128(bytes));
}

static inline vec high_u16(vec bytes)
{
    return _mm256_cvtepu8_epi16(_mm256_extracti128_si256(bytes, 1));
}

/* ---- A table of up to 16 entries is in a register, twice: each half's shuffle is its own. One of 256 is in
 * 16 rows in memory. ---- */

struct lut {
    vec entries;
    const uint8_t *table;
};

static inline vec row_of(const uint8_t *table)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
}

static inline struct lut lut_of(uint32_t bits, const uint8_t *table)
{
    struct lut lut = {.table = table};
    int32_t four;

    if (bits == 2) {
        memcpy(&four, table, 4);
        lut.entries = _mm256_set1_epi32(four);
    } else
        lut.entries = row_of(table);
    return lut;
}

/* A shuffle gives 0 where an index's top bit is set: each row answers for its own 16 indices. */
static inline vec looked_up_in_rows(const uint8_t *table, vec index)
{
    vec found = _mm256_setzero_si256();

    for (int row = 0; row < 16; row++) {
        vec own = _mm256_adds_epu8(_mm256_sub_epi8(index, _mm256_set1_epi8((char)(16 * row))),
                                   _mm256_set1_epi8(0x70));
        found = _mm256_or_si256(found, _mm256_shuffle_epi8(row_of(table + 16 * row), own));
    }
    return found;
}

/* The entries for index `part` of each byte. Bits that a shift brings over from a neighbour are masked too.
 */
static inline vec looked_up(const struct lut *lut, uint32_t bits, vec packed, uint32_t part)
{
    if (bits == 8)
        return looked_up_in_rows(lut->table, packed);
    vec index = _mm256_and_si256(_mm256_srli_epi16(packed, (int)(bits * part)),
                                 _mm256_set1_epi8((char)((1 << bits) - 1)));
    return _mm256_shuffle_epi8(lut->entries, index);
}

#define PSC_VARIANT_ROWS psc_op_rows_avx2
#include "vector.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
