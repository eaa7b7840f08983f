/* Codec sparse in AVX-512: a vector of 16 is compressed or expanded by 16 bits of the bitmap. In registers:
 * with a memory operand that instruction is microcode on Zen 4, ten times slower. */
#ifdef __x86_64__
#include <immintrin.h>

#include "pack.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,popcnt,bmi2")

enum { WORD = 32, LANES = 16, AHEAD = 512 };

static uint64_t count_bits(const uint32_t *bitmap, uint64_t words)
{
    uint64_t count = 0;
    for (uint64_t w = 0; w < words; w++)
        count += (uint32_t)_mm_popcnt_u32(bitmap[w]);
    return count;
}

static uint64_t mark(const uint32_t *x, uint64_t words, uint32_t least, uint32_t *bitmap)
{
    const __m512i sign_off = _mm512_set1_epi32(0x7fffffff), limit = _mm512_set1_epi32((int)least);
    uint64_t count = 0;
    for (uint64_t w = 0; w < words; w++, x += WORD) {
        _mm_prefetch((const char *)(x + AHEAD), _MM_HINT_T0);
        _mm_prefetch((const char *)(x + AHEAD + LANES), _MM_HINT_T0);
        __m512i low = _mm512_and_si512(_mm512_loadu_si512(x), sign_off);
        __m512i high = _mm512_and_si512(_mm512_loadu_si512(x + LANES), sign_off);
        uint32_t bits = (uint32_t)_mm512_cmpge_epu32_mask(low, limit) |
                        (uint32_t)_mm512_cmpge_epu32_mask(high, limit) << LANES;
        bitmap[w] = bits;
        count += (uint32_t)_mm_popcnt_u32(bits);
    }
    return count;
}

/* One vector to `packed`; whole while 16 are left there, since what follows writes over the rest. */
static inline uint32_t *pack_half(__m512i x, uint32_t chosen, uint32_t *packed, const uint32_t *end)
{
    uint32_t kept = (uint32_t)_mm_popcnt_u32(chosen);
    __m512i front = _mm512_maskz_compress_epi32((__mmask16)chosen, x);
    if (end - packed >= LANES)
        _mm512_storeu_si512(packed, front);
    else
        _mm512_mask_storeu_epi32(packed, (__mmask16)((1u << kept) - 1), front);
    return packed + kept;
}

static void pack(const uint32_t *x, const uint32_t *chosen, uint64_t words, uint64_t room, uint32_t *packed)
{
    const uint32_t *end = packed + room;
    for (uint64_t w = 0; w < words; w++, x += WORD) {
        uint32_t bits = chosen[w];
        if (!bits)
            continue;
        packed = pack_half(_mm512_loadu_si512(x), bits & 0xffff, packed, end);
        packed = pack_half(_mm512_loadu_si512(x + LANES), bits >> LANES, packed, end);
    }
}

static inline void put(uint32_t *values, __m512i x, bool stream)
{
    if (stream)
        _mm512_stream_si512((__m512i *)values, x);
    else
        _mm512_storeu_si512(values, x);
}

/* Of a vector's 16 values those that the bitmap has, from `packed`, which ends at `end`. */
static inline const uint32_t *unpack_half(const uint32_t *packed, const uint32_t *end, uint32_t chosen,
                                          bool stream, uint32_t *values)
{
    uint32_t kept = (uint32_t)_mm_popcnt_u32(chosen);
    __m512i front;
    if (end - packed >= LANES)
        front = _mm512_loadu_si512(packed);
    else
        front = _mm512_maskz_loadu_epi32((__mmask16)((1u << (end - packed)) - 1), packed);
    put(values, _mm512_maskz_expand_epi32((__mmask16)chosen, front), stream);
    return end - packed >= kept ? packed + kept : end;
}

static inline uint64_t unpack_words(const uint32_t *packed, uint64_t room, const uint32_t *chosen,
                                    uint64_t words, bool stream, uint32_t *values)
{
    const uint32_t *at = packed, *end = packed + room;
    for (uint64_t w = 0; w < words; w++, values += WORD) {
        uint32_t bits = chosen[w];
        at = unpack_half(at, end, bits & 0xffff, stream, values);
        at = unpack_half(at, end, bits >> LANES, stream, values + LANES);
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

const struct psc_pack_kernels psc_pack_avx512 = {count_bits, mark, pack, unpack, fence};
#endif
