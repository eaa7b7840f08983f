/* The CRC by VPCLMULQDQ on AVX-512: sixteen blocks of 128 bits at a time, and no byte by itself: what fills
 * no vector is loaded under a mask and turned to the vector's end, because zeros before a message change
 * nothing. */
#include <immintrin.h>

#include "crc.h"

/* The pragma, not a flag of the whole file, so that nothing from a header is ever compiled to instructions
 * that the CPU may lack. */
#ifdef __clang__
#pragma clang attribute push(                                                                                \
    __attribute__((target("pclmul,sse4.1,avx512f,avx512bw,avx512vl,avx512vbmi,vpclmulqdq"))),                \
    apply_to = function)
#else
#pragma GCC target("pclmul,sse4.1,avx512f,avx512bw,avx512vl,avx512vbmi,vpclmulqdq")
#endif

#include "crc_reduce.h"

#define VECTOR_BYTES 64
#define FOUR_BYTES   (4 * VECTOR_BYTES)
#define SEED_BYTES   4

static bool runs_here(void)
{
    return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("pclmul");
}

static inline __m512i load(const void *from)
{
    return _mm512_loadu_si512(from);
}

/* The first `bytes` < 64 at `from`, zeros behind them. */
static inline __m512i load_part(const void *from, size_t bytes)
{
    return _mm512_maskz_loadu_epi8(((__mmask64)1 << bytes) - 1, from);
}

static inline __m512i xor_3(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}

static inline __m512i moved(uint32_t bits)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)psc_crc_fold_by(bits)));
}

/* What a vector comes to at the place where it meets the next one. */
static inline __m512i fold(__m512i vector, __m512i by, __m512i next)
{
    return xor_3(_mm512_clmulepi64_epi128(vector, by, 0x00), _mm512_clmulepi64_epi128(vector, by, 0x11),
                 next);
}

/* Byte i of the result is byte (i + bytes) % 64 of the vector. */
static inline __m512i turn(__m512i vector, size_t bytes)
{
    const __m512i counting =
        _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43,
                        42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22,
                        21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);

    return _mm512_permutexvar_epi8(_mm512_add_epi8(counting, _mm512_set1_epi8((char)bytes)), vector);
}

/* 0 < bytes < 64 more: as many leave the vector at its front, and are folded into what it is then. */
static inline __m512i append(__m512i vector, const uint8_t *at, size_t bytes)
{
    const __mmask64 stays = ~(__mmask64)0 >> bytes;
    __m512i turned = turn(vector, bytes);
    __m512i next = _mm512_mask_mov_epi8(turn(load_part(at, bytes), bytes), stays, turned);

    return fold(_mm512_maskz_mov_epi8(~stays, turned), moved(512), next);
}

/* To 128 bits: three blocks move onto the last one, each by its own distance. */
static inline __m128i join(__m512i vector)
{
    const __m512i by = load(psc_crc_fold_by(384));
    __m512i last = _mm512_maskz_mov_epi64(0xc0, vector);
    __m512i blocks = fold(vector, by, last);
    __m256i two = _mm256_xor_si256(_mm512_castsi512_si256(blocks), _mm512_extracti64x4_epi64(blocks, 1));

    return _mm_xor_si128(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}

static inline __attribute__((always_inline)) uint32_t from_first(__m512i first, const uint8_t *at,
                                                                 size_t bytes)
{
    __m512i vector = first;

    if (bytes >= FOUR_BYTES - VECTOR_BYTES) {
        const __m512i by = moved(2048);
        __m512i v1 = load(at), v2 = load(at + VECTOR_BYTES), v3 = load(at + 2 * VECTOR_BYTES);
        at += FOUR_BYTES - VECTOR_BYTES;
        bytes -= FOUR_BYTES - VECTOR_BYTES;
        for (; bytes >= FOUR_BYTES; bytes -= FOUR_BYTES, at += FOUR_BYTES) {
            vector = fold(vector, by, load(at));
            v1 = fold(v1, by, load(at + VECTOR_BYTES));
            v2 = fold(v2, by, load(at + 2 * VECTOR_BYTES));
            v3 = fold(v3, by, load(at + 3 * VECTOR_BYTES));
        }
        vector = fold(vector, moved(1536), fold(v1, moved(1024), fold(v2, moved(512), v3)));
    }
    for (; bytes >= VECTOR_BYTES; bytes -= VECTOR_BYTES, at += VECTOR_BYTES)
        vector = fold(vector, moved(512), load(at));
    if (bytes > 0)
        vector = append(vector, at, bytes);
    return reduce(join(vector));
}

/* `seed` is the message's first four bytes' to bear. */
static inline __m512i seeded(__m512i first, uint32_t seed)
{
    return _mm512_xor_si512(first, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)seed)));
}

static uint32_t crc(uint32_t seed, const void *data, size_t bytes)
{
    const uint8_t *at = data;

    if (bytes >= VECTOR_BYTES)
        return from_first(seeded(load(at), seed), at + VECTOR_BYTES, bytes - VECTOR_BYTES);
    if (bytes < SEED_BYTES)
        return psc_crc_slicing.crc(seed, data, bytes);
    return reduce(join(turn(seeded(load_part(at, bytes), seed), bytes)));
}

static uint32_t masked(uint32_t seed, const uint8_t mask[static PSC_CRC_MASK_BYTES], const void *data,
                       size_t bytes)
{
    const uint8_t *at = data;
    __m512i first_mask = load(mask);

    _Static_assert(PSC_CRC_MASK_BYTES == VECTOR_BYTES, "one mask covers the first vector");
    if (bytes >= VECTOR_BYTES)
        return from_first(seeded(_mm512_or_si512(load(at), first_mask), seed), at + VECTOR_BYTES,
                          bytes - VECTOR_BYTES);
    return reduce(join(turn(seeded(_mm512_or_si512(load_part(at, bytes), first_mask), seed), bytes)));
}

const struct psc_crc_variant psc_crc_vpclmul = {"vpclmul", runs_here, crc, masked};

#ifdef __clang__
#pragma clang attribute pop
#endif
