/* The AVX-512 variant (F, BW, VL, VBMI, and VPCLMULQDQ: Ice Lake, Zen 4 and later): 64 bytes are a vector, a
 * mask stands for the last elements, and even a table of 256 entries is in registers. Step of the story:
 * "slot added". */
#include <immintrin.h>
#include <string.h>

#include "crc.h"
#include "variants.h"

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

#define VEC_BYTES 64
typedef __m512i vec;

static inline vec load(const void *from)
{
    return _mm512_loadu_si512(from);
}

static inline void store(void *to, vec vector)
{
    _mm512_storeu_si512(to, vector);
}

/* As many elements of 4 bytes as `elems` < 16 says; the others are neither read nor written, and zero. */
static inline __mmask16 mask_of(uint32_t elems)
{
    return (__mmask16)((1u << elems) - 1);
}

static inline vec load_part(const void *from, uint32_t elems)
{
    return _mm512_maskz_loadu_epi32(mask_of(elems), from);
}

static inline void store_part(void *to, uint32_t elems, vec vector)
{
    _mm512_mask_storeu_epi32(to, mask_of(elems), vector);
}

static inline __m256i load_half(const void *from)
{
    return _mm256_loadu_si256(from);
}

static inline __m256i load_half_part(const void *from, uint32_t elems)
{
    return _mm256_maskz_loadu_epi32((__mmask8)mask_of(elems), from);
}

static inline vec set1_u32(uint32_t element)
{
    return _mm512_set1_epi32((int)element);
}

static inline vec set1_f32(float element)
{
    return _mm512_castps_si512(_mm512_set1_ps(element));
}

static inline vec zero(void)
{
    return _mm512_setzero_si512();
}

static inline vec add_u8(vec a, vec b)
{
    return _mm512_add_epi8(a, b);
}

static inline vec add_u16(vec a, vec b)
{
    return _mm512_add_epi16(a, b);
}

static inline vec add_u32(vec a, vec b)
{
    return _mm512_add_epi32(a, b);
}

static inline vec add_f32(vec a, vec b)
{
    return _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
}

static inline vec or_u32_vec(vec a, vec b)
{
    return _mm512_or_si512(a, b);
}

static inline vec magnitude(vec a)
{
    return _mm512_and_si512(a, _mm512_set1_epi32(0x7fffffff));
}

static inline vec greater_u32(vec a, vec b)
{
    return _mm512_max_epu32(a, b);
}

static inline vec widened_f16(__m256i half)
{
    return _mm512_castps_si512(_mm512_cvtph_ps(half));
}

static inline vec widened_bf16(__m256i half)
{
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}

/* The lower and the upper half's bytes as 16 bits each. */
static inline vec low_u16(vec bytes)
{
    return _mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes));
}

static inline vec high_u16(vec bytes)
{
    return _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(bytes, 1));
}

/* ---- A permutation looks only at the low 6 bits of an index: a table of 4 or 16 entries is repeated to 64,
 * so that the bits above an index's own do not matter. ---- */

struct lut {
    vec entries[4];
};

static inline struct lut lut_of(uint32_t bits, const uint8_t *table)
{
    struct lut lut = {.entries = {_mm512_setzero_si512()}};
    int32_t four;

    if (bits == 2) {
        memcpy(&four, table, 4);
        lut.entries[0] = _mm512_set1_epi32(four);
    } else if (bits == 4)
        lut.entries[0] = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
    else
        for (uint32_t i = 0; i < 4; i++)
            lut.entries[i] = load(table + (size_t)64 * i);
    return lut;
}

/* The entries for index `part` of each byte; of 256 entries, a permutation of two registers finds 128. */
static inline vec looked_up(const struct lut *lut, uint32_t bits, vec packed, uint32_t part)
{
    const uint16_t down = (uint16_t)(bits * part); /* of a type that int and unsigned both hold */

    if (bits < 8)
        return _mm512_permutexvar_epi8(_mm512_srli_epi16(packed, down), lut->entries[0]);
    vec lower = _mm512_permutex2var_epi8(lut->entries[0], packed, lut->entries[1]);
    vec upper = _mm512_permutex2var_epi8(lut->entries[2], packed, lut->entries[3]);
    return _mm512_mask_mov_epi8(lower, _mm512_movepi8_mask(packed), upper);
}

/* ---- The CRC of sums while they are in registers: as many folds side by side as a step stores vectors. ----
 */

#define PSC_VARIANT_DIGESTS
struct digest {
    vec parts[8];
    vec by;
    uint32_t vectors;
};

static inline __attribute__((always_inline)) struct digest digest_of(uint32_t vectors)
{
    struct digest
        digest; /* the parts that no fold needs stay as they are: clearing all of them takes longer */

    digest.by = crc_moved(512 * vectors);
    digest.vectors = vectors;
    for (uint32_t i = 0; i < vectors; i++)
        digest.parts[i] = zero();
    return digest;
}

static inline __attribute__((always_inline)) void digest_vector(struct digest *digest, uint32_t i, vec vector)
{
    digest->parts[i] = crc_fold(digest->parts[i], digest->by, vector);
}

static inline __attribute__((always_inline)) uint32_t digested(const struct digest *digest)
{
    vec vector = digest->parts[0];

    for (uint32_t i = 1; i < digest->vectors; i++)
        vector = crc_fold(vector, crc_moved(512), digest->parts[i]);
    return crc_reduce(crc_join(vector));
}

#define PSC_VARIANT_ROWS psc_op_rows_avx512
#include "vector.h"

/* ---- The first four values of a range, added in the turns in which their packets are checked: what the
 * check reads is in registers. In the order of the messages, so that the bits are first_many's. ---- */

static ALWAYS_INLINE void store_sum(enum element element, uint8_t *sums, uint32_t i, vec a, vec b, vec c,
                                    vec d, struct digest *digest)
{
    vec two = met(element, held(element, a), held(element, b));
    vec sum = met(element, met(element, two, held(element, c)), held(element, d));

    store(sums + (size_t)i * VEC_BYTES, sum);
    digest_vector(digest, i, sum);
}

static ALWAYS_INLINE uint32_t checked_elements(enum element element, uint8_t *sums,
                                               const struct psc_crc_message *messages, size_t payload_bytes,
                                               uint32_t *crcs)
{
    struct crc_check check = crc_check_begin(PSC_ICRC_SEED, messages);
    struct digest digest = digest_of(CRC_TURN_VECTORS);

    for (size_t at = 0; at < payload_bytes; at += PSC_CRC_TURN_BYTES) {
        const struct crc_turn a = crc_load_turn(messages[0].payload + at),
                              b = crc_load_turn(messages[1].payload + at),
                              c = crc_load_turn(messages[2].payload + at),
                              d = crc_load_turn(messages[3].payload + at);
        crc_check_turn(&check, a, b, c, d);
        store_sum(element, sums + at, 0, a.v0, b.v0, c.v0, d.v0, &digest);
        store_sum(element, sums + at, 1, a.v1, b.v1, c.v1, d.v1, &digest);
        store_sum(element, sums + at, 2, a.v2, b.v2, c.v2, d.v2, &digest);
        store_sum(element, sums + at, 3, a.v3, b.v3, c.v3, d.v3, &digest);
    }
    crcs[0] = digested(&digest);
    return crc_check_left(&check, messages);
}

/* A vector of packed bytes of each value: sums of both parts. */
static ALWAYS_INLINE void store_looked_up(const struct lut *lut, uint8_t *sums, vec a, vec b, vec c, vec d,
                                          struct digest *digest)
{
    for (uint32_t part = 0; part < 2; part++) {
        vec sum = add_u8(add_u8(looked_up(lut, 4, a, part), looked_up(lut, 4, b, part)),
                         add_u8(looked_up(lut, 4, c, part), looked_up(lut, 4, d, part)));
        store(sums + (size_t)part * UNIT_BYTES, sum);
        digest_vector(digest, part, sum);
    }
}

static uint32_t checked_lut4_u8(void *accumulator, const struct psc_crc_message *messages,
                                size_t payload_bytes, const uint8_t *table, uint32_t *crcs)
{
    const struct lut lut = lut_of(4, table);
    struct crc_check check = crc_check_begin(PSC_ICRC_SEED, messages);
    uint8_t *sums = accumulator;
    size_t at = 0;

    for (uint32_t packet = 0; packet < 2; packet++) {
        struct digest digest = digest_of(2);
        for (size_t end = at + payload_bytes / 2; at < end;
             at += PSC_CRC_TURN_BYTES, sums += 8 * UNIT_BYTES) {
            const struct crc_turn a = crc_load_turn(messages[0].payload + at),
                                  b = crc_load_turn(messages[1].payload + at),
                                  c = crc_load_turn(messages[2].payload + at),
                                  d = crc_load_turn(messages[3].payload + at);
            crc_check_turn(&check, a, b, c, d);
            store_looked_up(&lut, sums, a.v0, b.v0, c.v0, d.v0, &digest);
            store_looked_up(&lut, sums + 2 * UNIT_BYTES, a.v1, b.v1, c.v1, d.v1, &digest);
            store_looked_up(&lut, sums + 4 * UNIT_BYTES, a.v2, b.v2, c.v2, d.v2, &digest);
            store_looked_up(&lut, sums + 6 * UNIT_BYTES, a.v3, b.v3, c.v3, d.v3, &digest);
        }
        crcs[packet] = digested(&digest);
    }
    return crc_check_left(&check, messages);
}

#define CHECKED(name, element)                                                                               \
    static uint32_t checked_##name(void *accumulator, const struct psc_crc_message *messages,                \
                                   size_t payload_bytes, const uint8_t *table, uint32_t *crcs)               \
    {                                                                                                        \
        (void)table;                                                                                         \
        return checked_elements(element, accumulator, messages, payload_bytes, crcs);                        \
    }
CHECKED(sum_i32, I32)
CHECKED(sum_f32, F32)
CHECKED(max_f32, MAX_F32)
CHECKED(or_u32, OR_U32)
#undef CHECKED

psc_first_checked_fn *const psc_first_checked_avx512[PSC_OP_COUNT] = {
    [PSC_OP_SUM_I32] = checked_sum_i32, [PSC_OP_SUM_F32] = checked_sum_f32,
    [PSC_OP_MAX_F32] = checked_max_f32, [PSC_OP_OR_U32] = checked_or_u32,
    [PSC_OP_LUT4_U8] = checked_lut4_u8,
};

#ifdef __clang__
#pragma clang attribute pop
#endif
