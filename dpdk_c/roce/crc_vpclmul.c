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
    return crc_reduce(crc_join(turn(seeded(load_part(at, bytes), seed), bytes)));
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
    return crc_reduce(crc_join(turn(seeded(_mm512_or_si512(load_part(at, bytes), first_mask), seed), bytes)));
}

/* ---- Several messages in one: the vectors of their sum are folded, so there is one multiplication where
 * there were N. Each message is moved by a vector against the one before it; but for that all end together,
 * so that it is their first vectors, of 4 to 64 bytes, that may differ in length. ---- */

#define N            PSC_CRC_TOGETHER
#define TURN_VECTORS 4
#define FRONT        (2 * TURN_VECTORS)
_Static_assert(N == 4 && PSC_CRC_STEP == VECTOR_BYTES, "whole_turn has four, and a step is a vector");
_Static_assert(FRONT > TURN_VECTORS - 1 + N, "the front holds zeros and all vectors under masks");
_Static_assert(TURN_VECTORS >= N, "the back holds what no longer comes from all messages");
_Static_assert(PSC_CRC_STEPS_MIN + N >= FRONT + TURN_VECTORS, "front and back do not meet");

struct part {
    __m512i first, second;  /* under their masks; the first behind zeros */
    const uint8_t *vectors; /* number i, from 1 on, at 64 i */
    uint32_t claimed;       /* the register that the message's CRC says it leaves */
};

static inline struct part part_of(uint32_t seed, const struct psc_crc_message *message)
{
    size_t head_bytes = (message->bytes - SEED_BYTES) % VECTOR_BYTES + SEED_BYTES;
    const uint8_t *behind = message->data + head_bytes;
    __mmask64 in_head = ~(__mmask64)0 >> (VECTOR_BYTES - head_bytes);
    __m512i head = _mm512_or_si512(_mm512_maskz_loadu_epi8(in_head, message->data),
                                   _mm512_maskz_loadu_epi8(in_head, message->mask));

    return (struct part){.first = turn(seeded(head, seed), head_bytes),
                         .second = _mm512_or_si512(load(behind), load(message->mask + head_bytes)),
                         .vectors = behind - VECTOR_BYTES,
                         .claimed = message->claimed};
}

/* What stands at vector `at` of the sum, if part 0 begins at 0. */
static inline __attribute__((always_inline)) __m512i sum_at(const struct part parts[static N], int32_t at,
                                                            int32_t steps)
{
    __m512i sum = _mm512_setzero_si512();

#pragma GCC unroll 4
    for (int32_t j = 0; j < N; j++) {
        int32_t i = at - j;
        if (i == 0)
            sum = _mm512_xor_si512(sum, parts[j].first);
        else if (i == 1)
            sum = _mm512_xor_si512(sum, parts[j].second);
        else if (i > 1 && i <= steps)
            sum = _mm512_xor_si512(sum, load(parts[j].vectors + (size_t)i * VECTOR_BYTES));
        else if (i == steps + 1)
            sum = seeded(sum, parts[j].claimed);
    }
    return sum;
}

/* A turn where every part has a plain vector of its own. */
static inline __attribute__((always_inline)) void whole_turn(__m512i vectors[static TURN_VECTORS],
                                                             const struct part parts[static N], size_t offset)
{
    const __m512i by = crc_moved(512 * TURN_VECTORS);

#pragma GCC unroll 4
    for (size_t k = 0; k < TURN_VECTORS; k++, offset += VECTOR_BYTES) {
        __m512i three = xor_3(load(parts[1].vectors + offset - VECTOR_BYTES),
                              load(parts[2].vectors + offset - 2 * VECTOR_BYTES),
                              load(parts[3].vectors + offset - 3 * VECTOR_BYTES));
        vectors[k] = crc_fold(vectors[k], by, _mm512_xor_si512(three, load(parts[0].vectors + offset)));
    }
}

/* `zeros` vectors before the sum make whole turns of it. */
static inline __attribute__((always_inline)) uint32_t sum_left(const struct part parts[static N],
                                                               int32_t steps, int32_t zeros)
{
    const __m512i by = crc_moved(512 * TURN_VECTORS);
    __m512i vectors[TURN_VECTORS];
    int32_t at = FRONT - zeros;

#pragma GCC unroll 4
    for (int32_t k = 0; k < TURN_VECTORS; k++)
        vectors[k] =
            crc_fold(sum_at(parts, k - zeros, steps), by, sum_at(parts, k - zeros + TURN_VECTORS, steps));
    for (; at < steps; at += TURN_VECTORS)
        whole_turn(vectors, parts, (size_t)at * VECTOR_BYTES);
#pragma GCC unroll 4
    for (int32_t k = 0; k < TURN_VECTORS; k++)
        vectors[k] = crc_fold(vectors[k], by, sum_at(parts, steps + k, steps));
    __m512i last =
        crc_fold(vectors[0], crc_moved(1536),
                 crc_fold(vectors[1], crc_moved(1024), crc_fold(vectors[2], crc_moved(512), vectors[3])));
    return crc_reduce(crc_join(last)) ^ parts[N - 1].claimed;
}

static uint32_t together(uint32_t seed, const struct psc_crc_message messages[static N])
{
    const int32_t steps = (int32_t)psc_crc_steps(messages[0].bytes);
    struct part parts[N];

    for (uint32_t j = 0; j < N; j++)
        parts[j] = part_of(seed, &messages[j]);
    /* Full packets of IPv4 need no zeros: constants then stand for most of what sum_at asks. */
    if (steps % TURN_VECTORS == 0)
        return sum_left(parts, steps, 0);
    return sum_left(parts, steps, TURN_VECTORS - steps % TURN_VECTORS);
}

const struct psc_crc_variant psc_crc_vpclmul = {"vpclmul", runs_here, crc, masked, together};
/* The same, but each packet by itself. */
const struct psc_crc_variant psc_crc_vpclmul_each = {"vpclmul_each", runs_here, crc, masked, NULL};

#ifdef __clang__
#pragma clang attribute pop
#endif
