/* Codec sparse in AVX2: a vector of 8 is permuted by a row of a table that 8 bits of the bitmap choose. */
#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

#include "pack.h"

#pragma GCC target("avx2,fma,popcnt")

enum { WORD = 32, LANES = 8, AHEAD = 512 };

/* PLACE(b, k): which of the bits of b is its k-th one from below; 0 beyond the last. RANK(b, i): how many of
 * its bits lie below bit i. A row is 8 bytes: the permutation that compresses, and the one that expands. */
#define BIT(b, i)   ((b) >> (i)&1)
#define RANK(b, i)  __builtin_popcount((b) & ((1 << (i)) - 1))
#define IS(b, k, i) (BIT(b, i) && RANK(b, i) == (k) ? (i) : 0)
#define PLACE(b, k)                                                                                          \
    (IS(b, k, 0) + IS(b, k, 1) + IS(b, k, 2) + IS(b, k, 3) + IS(b, k, 4) + IS(b, k, 5) + IS(b, k, 6) +       \
     IS(b, k, 7))
#define EIGHT(f, b)                                                                                          \
    {                                                                                                        \
        f(b, 0), f(b, 1), f(b, 2), f(b, 3), f(b, 4), f(b, 5), f(b, 6), f(b, 7)                               \
    }
#define ROWS4(f, b)  EIGHT(f, b), EIGHT(f, b + 1), EIGHT(f, b + 2), EIGHT(f, b + 3)
#define ROWS16(f, b) ROWS4(f, b), ROWS4(f, b + 4), ROWS4(f, b + 8), ROWS4(f, b + 12)
#define ROWS64(f, b) ROWS16(f, b), ROWS16(f, b + 16), ROWS16(f, b + 32), ROWS16(f, b + 48)
#define ROWS256(f)                                                                                           \
    {                                                                                                        \
        ROWS64(f, 0), ROWS64(f, 64), ROWS64(f, 128), ROWS64(f, 192)                                          \
    }

static const uint8_t to_front[256][8] = ROWS256(PLACE);
static const uint8_t to_place[256][8] = ROWS256(RANK);

static inline __m256i row(const uint8_t table[256][8], uint32_t bits)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)table[bits]));
}

/* All ones in the lanes of `bits`. */
static inline __m256i lanes_of(uint32_t bits)
{
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), each), each);
}

static uint64_t count_bits(const uint32_t *bitmap, uint64_t words)
{
    uint64_t count = 0;
    for (uint64_t w = 0; w < words; w++)
        count += (uint32_t)_mm_popcnt_u32(bitmap[w]);
    return count;
}

static uint64_t mark(const uint32_t *x, uint64_t words, uint32_t least, uint32_t *bitmap)
{
    /* Without their signs both sides are below 2^31, so that a signed comparison will do. */
    const __m256i sign_off = _mm256_set1_epi32(0x7fffffff), below = _mm256_set1_epi32((int)least - 1);
    uint64_t count = 0;
    for (uint64_t w = 0; w < words; w++, x += WORD) {
        uint32_t bits = 0;
        _mm_prefetch((const char *)(x + AHEAD), _MM_HINT_T0);
        _mm_prefetch((const char *)(x + AHEAD + 16), _MM_HINT_T0);
        for (uint32_t i = 0; i < WORD; i += LANES) {
            __m256i size = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), sign_off);
            __m256i is_above = _mm256_cmpgt_epi32(size, below);
            bits |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(is_above)) << i;
        }
        bitmap[w] = bits;
        count += (uint32_t)_mm_popcnt_u32(bits);
    }
    return count;
}

static void pack(const uint32_t *x, const uint32_t *chosen, uint64_t words, uint64_t room, uint32_t *packed)
{
    const uint32_t *end = packed + room;
    for (uint64_t w = 0; w < words; w++, x += WORD) {
        if (!chosen[w])
            continue;
        for (uint32_t i = 0; i < WORD; i += LANES) {
            uint32_t bits = chosen[w] >> i & 0xff, kept = (uint32_t)_mm_popcnt_u32(bits);
            __m256i values = _mm256_loadu_si256((const __m256i *)(x + i));
            __m256i front = _mm256_permutevar8x32_epi32(values, row(to_front, bits));
            if (end - packed >= LANES)
                _mm256_storeu_si256((__m256i *)packed, front);
            else
                _mm256_maskstore_epi32((int *)packed, lanes_of((1u << kept) - 1), front);
            packed += kept;
        }
    }
}

static inline uint64_t unpack_words(const uint32_t *packed, uint64_t room, const uint32_t *chosen,
                                    uint64_t words, bool stream, uint32_t *values)
{
    const uint32_t *at = packed, *end = packed + room;
    for (uint64_t w = 0; w < words; w++, values += WORD)
        for (uint32_t i = 0; i < WORD; i += LANES) {
            uint32_t bits = chosen[w] >> i & 0xff, kept = (uint32_t)_mm_popcnt_u32(bits);
            __m256i front;
            if (end - at >= LANES)
                front = _mm256_loadu_si256((const __m256i *)at);
            else
                front = _mm256_maskload_epi32((const int *)at, lanes_of((1u << (end - at)) - 1));
            __m256i spread = _mm256_permutevar8x32_epi32(front, row(to_place, bits));
            spread = _mm256_and_si256(spread, lanes_of(bits));
            if (stream)
                _mm256_stream_si256((__m256i *)(values + i), spread);
            else
                _mm256_storeu_si256((__m256i *)(values + i), spread);
            at = end - at >= kept ? at + kept : end;
        }
    return (uint64_t)(at - packed);
}

static uint64_t unpack(const uint32_t *packed, uint64_t room, const uint32_t *chosen, uint64_t words,
                       bool stream, uint32_t *values)
{
    return stream ? unpack_words(packed, room, chosen, words, true, values)
                  : unpack_words(packed, room, chosen, words, false, values);
}

static void fence(void)
{
    _mm_sfence();
}

const struct psc_pack_kernels psc_pack_avx2 = {count_bits, mark, pack, unpack, fence};
#endif
