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

#include "crc_fold512.h"
#include "crc_reduce.h"

#include "crc_check512.h"

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

/* 0 < bytes < 64 more: as many leave the vector at its front, and are folded into what it is then. */
static inline __m512i append(__m512i vector, const uint8_t *at, size_t bytes)
{
    const __mmask64 stays = ~(__mmask64)0 >> bytes;
    __m512i turned = crc_turned(vector, bytes);
    __m512i next = _mm512_mask_mov_epi8(crc_turned(load_part(at, bytes), bytes), stays, turned);

    return crc_fold(_mm512_maskz_mov_epi8(~stays, turned), crc_moved(512), next);
}

static inline __attribute__((always_inline)) uint32_t from_first(__m512i first, const uint8_t *at,
                                                                 size_t bytes)
{
    __m512i vector = first;

    if (bytes >= FOUR_BYTES - VECTOR_BYTES) {
        const __m512i by = crc_moved(2048);
        __m512i v1 = load(at), v2 = load(at + VECTOR_BYTES), v3 = load(at + 2 * VECTOR_BYTES);
        at += FOUR_BYTES - VECTOR_BYTES;
        bytes -= FOUR_BYTES - VECTOR_BYTES;
        for (; bytes >= FOUR_BYTES; bytes -= FOUR_BYTES, at += FOUR_BYTES) {
            vector = crc_fold(vector, by, load(at));
            v1 = crc_fold(v1, by, load(at + VECTOR_BYTES));
            v2 = crc_fold(v2, by, load(at + 2 * VECTOR_BYTES));
            v3 = crc_fold(v3, by, load(at + 3 * VECTOR_BYTES));
        }
        vector = crc_fold(vector, crc_moved(1536),
                          crc_fold(v1, crc_moved(1024), crc_fold(v2, crc_moved(512), v3)));
    }
    for (; bytes >= VECTOR_BYTES; bytes -= VECTOR_BYTES, at += VECTOR_BYTES)
        vector = crc_fold(vector, crc_moved(512), load(at));
    if (bytes > 0)
        vector = append(vector, at, bytes);
    return crc_reduce(crc_join(vector));
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
    return crc_reduce(crc_join(crc_turned(seeded(load_part(at, bytes), seed), bytes)));
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
    return crc_reduce(
        crc_join(crc_turned(seeded(_mm512_or_si512(load_part(at, bytes), first_mask), seed), bytes)));
}

/* ---- Four messages in one. ---- */

static uint32_t together(uint32_t seed, const struct psc_crc_message messages[static PSC_CRC_TOGETHER],
                         size_t payload_bytes)
{
    struct crc_check check = crc_check_begin(seed, messages);

    _Static_assert(FOUR_BYTES == PSC_CRC_TURN_BYTES && PSC_CRC_TOGETHER == 4,
                   "a turn is four vectors of each");
    for (size_t at = 0; at < payload_bytes; at += FOUR_BYTES)
        crc_check_turn(&check, crc_load_turn(messages[0].payload + at),
                       crc_load_turn(messages[1].payload + at), crc_load_turn(messages[2].payload + at),
                       crc_load_turn(messages[3].payload + at));
    return crc_check_left(&check, messages);
}

const struct psc_crc_variant psc_crc_vpclmul = {"vpclmul", runs_here, crc, masked, together};
/* The same, but each packet by itself. */
const struct psc_crc_variant psc_crc_vpclmul_each = {"vpclmul_each", runs_here, crc, masked, NULL};

#ifdef __clang__
#pragma clang attribute pop
#endif
