/* The CRC by PCLMULQDQ, for CPUs without its wide form: four blocks of 128 bits at a time. */
#include <immintrin.h>
#include <string.h>

#include "crc.h"

/* The pragma, not a flag of the whole file, so that nothing from a header is ever compiled to instructions
 * that the CPU may lack. */
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("pclmul,sse4.1"))), apply_to = function)
#else
#pragma GCC target("pclmul,sse4.1")
#endif

#include "crc_reduce.h"

#define BLOCK_BYTES 16
#define FOUR_BYTES  (4 * BLOCK_BYTES)

static bool runs_here(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

static inline __m128i load(const void *from)
{
    return _mm_loadu_si128(from);
}

/* What a block comes to at the place where it meets the next one. */
static inline __m128i fold(__m128i block, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(block, by, 0x00), high = _mm_clmulepi64_si128(block, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* The rest of at least 0 bytes behind four blocks. Whole blocks, and what is left of less than one. */
static inline uint32_t from_four(__m128i blocks[static 4], const uint8_t *at, size_t bytes)
{
    const __m128i by_four = load(psc_crc_fold_by(512)), by_one = load(psc_crc_fold_by(128));
    __m128i b0 = blocks[0], b1 = blocks[1], b2 = blocks[2], b3 = blocks[3];

    for (; bytes >= FOUR_BYTES; bytes -= FOUR_BYTES, at += FOUR_BYTES) {
        b0 = fold(b0, by_four, load(at));
        b1 = fold(b1, by_four, load(at + BLOCK_BYTES));
        b2 = fold(b2, by_four, load(at + 2 * BLOCK_BYTES));
        b3 = fold(b3, by_four, load(at + 3 * BLOCK_BYTES));
    }
    __m128i block = fold(fold(fold(b0, by_one, b1), by_one, b2), by_one, b3);
    for (; bytes >= BLOCK_BYTES; bytes -= BLOCK_BYTES, at += BLOCK_BYTES)
        block = fold(block, by_one, load(at));
    return psc_crc_slicing.crc(crc_reduce(block), at, bytes);
}

static uint32_t crc(uint32_t seed, const void *data, size_t bytes)
{
    const uint8_t *at = data;

    if (bytes >= FOUR_BYTES) {
        __m128i blocks[4];
        for (uint32_t i = 0; i < 4; i++)
            blocks[i] = load(at + i * BLOCK_BYTES);
        blocks[0] = _mm_xor_si128(blocks[0], _mm_cvtsi32_si128((int)seed));
        return from_four(blocks, at + FOUR_BYTES, bytes - FOUR_BYTES);
    }
    if (bytes < BLOCK_BYTES)
        return psc_crc_slicing.crc(seed, data, bytes);
    const __m128i by_one = load(psc_crc_fold_by(128));
    __m128i block = _mm_xor_si128(load(at), _mm_cvtsi32_si128((int)seed));
    for (at += BLOCK_BYTES, bytes -= BLOCK_BYTES; bytes >= BLOCK_BYTES;
         bytes -= BLOCK_BYTES, at += BLOCK_BYTES)
        block = fold(block, by_one, load(at));
    return psc_crc_slicing.crc(crc_reduce(block), at, bytes);
}

static uint32_t masked(uint32_t seed, const uint8_t mask[static PSC_CRC_MASK_BYTES], const void *data,
                       size_t bytes)
{
    const uint8_t *at = data;
    __m128i blocks[4];

    _Static_assert(PSC_CRC_MASK_BYTES == FOUR_BYTES, "one mask covers the first four blocks");
    if (bytes < FOUR_BYTES) {
        uint8_t head[FOUR_BYTES];
        memcpy(head, data, bytes);
        for (uint32_t i = 0; i < 4; i++) {
            void *part = head + i * BLOCK_BYTES;
            _mm_storeu_si128(part, _mm_or_si128(load(part), load(mask + i * BLOCK_BYTES)));
        }
        return crc(seed, head, bytes);
    }
    for (uint32_t i = 0; i < 4; i++)
        blocks[i] = _mm_or_si128(load(at + i * BLOCK_BYTES), load(mask + i * BLOCK_BYTES));
    blocks[0] = _mm_xor_si128(blocks[0], _mm_cvtsi32_si128((int)seed));
    return from_four(blocks, at + FOUR_BYTES, bytes - FOUR_BYTES);
}

const struct psc_crc_variant psc_crc_pclmul = {"pclmul", runs_here, crc, masked, NULL};

#ifdef __clang__
#pragma clang attribute pop
#endif
