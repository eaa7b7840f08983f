/* The AVX2 variant: the same loops for wider registers, and two of its own: F16C widens 8 binary16 at a time,
 * and a shuffle looks 32 indices up at a time, since a table of 16 entries fits a register. Step of the
 * story: "slot added". */
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

#define PSC_VARIANT_WIDENS_F16
#define PSC_VARIANT_LOOKS_UP

static inline __m256i load(const void *from)
{
    return _mm256_loadu_si256(from);
}

/* ---- binary16. A unit is two of them: what does not fill a register is widened in one of its own. ---- */

static inline __m256 widen_8(const void *value, uint32_t i)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const char *)value + (size_t)2 * i)));
}

/* The last n < 8, the others zero. */
static inline void widen_rest(const void *value, uint32_t i, uint32_t n, float *rest)
{
    uint16_t halves[8] = {0};

    memcpy(halves, (const char *)value + (size_t)2 * i, (size_t)2 * n);
    _mm256_storeu_ps(rest, widen_8(halves, 0));
}

static void sum_f16(void *restrict accumulator, const void *restrict value, uint32_t units,
                    const uint8_t *table)
{
    float *sum = accumulator, rest[8];
    uint32_t i = 0, elems = 2 * units;

    (void)table;
    for (; i + 8 <= elems; i += 8)
        _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), widen_8(value, i)));
    widen_rest(value, i, elems - i, rest);
    for (uint32_t k = 0; i < elems; i++, k++)
        sum[i] += rest[k];
}

static void first_f16(void *restrict accumulator, const void *restrict value, uint32_t units,
                      const uint8_t *table)
{
    float *sum = accumulator, rest[8];
    uint32_t i = 0, elems = 2 * units;

    (void)table;
    for (; i + 8 <= elems; i += 8)
        _mm256_storeu_ps(sum + i, widen_8(value, i));
    widen_rest(value, i, elems - i, rest);
    memcpy(sum + i, rest, (size_t)4 * (elems - i));
}

/* ---- Look-ups in up to 16 entries. ---- */

/* The table twice, one for each half of a register, whose shuffles are their own. */
static inline __m256i table_of_16(const uint8_t *table)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
}

static inline __m256i table_of_4(const uint8_t *table)
{
    int32_t entries;
    memcpy(&entries, table, 4);
    return _mm256_set1_epi32(entries);
}

/* 32 sums, of 8 bits or of 16. `first`: there is nothing to add to. */
static inline uint8_t *put_u8(uint8_t *sum, __m256i added, bool first)
{
    _mm256_storeu_si256((void *)sum, first ? added : _mm256_add_epi8(load(sum), added));
    return sum + 32;
}

static inline uint8_t *put_u16(uint8_t *sum, __m256i added, bool first)
{
    __m256i low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(added));
    __m256i high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(added, 1));

    _mm256_storeu_si256((void *)sum, first ? low : _mm256_add_epi16(load(sum), low));
    _mm256_storeu_si256((void *)(sum + 32), first ? high : _mm256_add_epi16(load(sum + 32), high));
    return sum + 64;
}

/* Index `part` of the unit's bytes, masked: of a shuffle's index byte only the low four bits count, the top
 * one must be 0. Bits that a shift brings over from a neighbouring byte are masked too. */
static inline __attribute__((always_inline)) void look_up(uint8_t *sum, const uint8_t *packed, uint32_t units,
                                                          __m256i table, int bits, bool wide, bool first)
{
    const __m256i mask = _mm256_set1_epi8((char)((1 << bits) - 1));

    for (uint32_t unit = 0; unit < units; unit++, packed += 64) {
        __m256i bytes[2] = {load(packed), load(packed + 32)};
        for (int part = 0; part < 8 / bits; part++)
            for (int half = 0; half < 2; half++) {
                __m256i index = _mm256_and_si256(_mm256_srli_epi16(bytes[half], bits * part), mask);
                __m256i added = _mm256_shuffle_epi8(table, index);
                sum = wide ? put_u16(sum, added, first) : put_u8(sum, added, first);
            }
    }
}

#define SHUFFLE(name, bits, wide, first, table_of)                                                           \
    static void name(void *restrict accumulator, const void *restrict value, uint32_t units,                 \
                     const uint8_t *restrict table)                                                          \
    {                                                                                                        \
        look_up(accumulator, value, units, table_of(table), bits, wide, first);                              \
    }

SHUFFLE(lut4_u8, 4, false, false, table_of_16)
SHUFFLE(first_lut4_u8, 4, false, true, table_of_16)
SHUFFLE(lut4_u16, 4, true, false, table_of_16)
SHUFFLE(first_lut4_u16, 4, true, true, table_of_16)
SHUFFLE(lut2_u8, 2, false, false, table_of_4)
SHUFFLE(first_lut2_u8, 2, false, true, table_of_4)
SHUFFLE(lut2_u16, 2, true, false, table_of_4)
SHUFFLE(first_lut2_u16, 2, true, true, table_of_4)

#define PSC_VARIANT_ROWS psc_op_rows_avx2
#include "loops.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
