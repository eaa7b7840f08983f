/* The reference variant: every op's loop for the baseline instruction set, and many values one by one. Step
 * of the story: "slot added". */
#include <string.h>

#include "variants.h"

#define SIGN_CLEARED 0x7fffffffu

/* A value points into a packet, at any alignment; this compiles to a plain move. */
static inline uint32_t load_u32(const void *array, uint32_t i)
{
    uint32_t element;
    memcpy(&element, (const char *)array + (size_t)4 * i, 4);
    return element;
}

static inline uint16_t load_u16(const void *array, uint32_t i)
{
    uint16_t element;
    memcpy(&element, (const char *)array + (size_t)2 * i, 2);
    return element;
}

static inline float float_of(uint32_t bits)
{
    float element;
    memcpy(&element, &bits, 4);
    return element;
}

/* ---- 4-byte elements, one in a unit. ---- */

/* Modulo 2^32: unsigned, so that wrapping is defined. */
static void sum_i32(void *restrict accumulator, const void *restrict value, uint32_t units,
                    const uint8_t *table)
{
    uint32_t *sum = accumulator;
    (void)table;
    for (uint32_t i = 0; i < units; i++)
        sum[i] += load_u32(value, i);
    if (PSC_PLANTED_ERROR && units > 0)
        sum[0] += PSC_PLANTED_ERROR;
}

/* One IEEE addition per element and nothing else: no contraction, no reassociation, in no variant. */
static void sum_f32(void *restrict accumulator, const void *restrict value, uint32_t units,
                    const uint8_t *table)
{
    float *sum = accumulator;
    (void)table;
    for (uint32_t i = 0; i < units; i++)
        sum[i] += float_of(load_u32(value, i));
    if (PSC_PLANTED_ERROR && units > 0)
        sum[0] += PSC_PLANTED_ERROR;
}

/* Bits of |x| compare as integers like the floats do, Inf above the finite ones; NaN, which no float
 * comparison orders, comes out above Inf. */
static void max_f32(void *restrict accumulator, const void *restrict value, uint32_t units,
                    const uint8_t *table)
{
    uint32_t *max = accumulator;
    (void)table;
    for (uint32_t i = 0; i < units; i++) {
        uint32_t magnitude = load_u32(value, i) & SIGN_CLEARED;
        uint32_t greatest = max[i] & SIGN_CLEARED;
        max[i] = magnitude > greatest ? magnitude : greatest;
    }
}

static void or_u32(void *restrict accumulator, const void *restrict value, uint32_t units,
                   const uint8_t *table)
{
    uint32_t *bits = accumulator;
    (void)table;
    for (uint32_t i = 0; i < units; i++)
        bits[i] |= load_u32(value, i);
}

static void first_copy(void *restrict accumulator, const void *restrict value, uint32_t units,
                       const uint8_t *table)
{
    (void)table;
    memcpy(accumulator, value, (size_t)4 * units);
}
#define first_sum_i32 first_copy
#define first_sum_f32 first_copy
#define first_or_u32  first_copy

static void first_max_f32(void *restrict accumulator, const void *restrict value, uint32_t units,
                          const uint8_t *table)
{
    uint32_t *max = accumulator;
    (void)table;
    for (uint32_t i = 0; i < units; i++)
        max[i] = load_u32(value, i) & SIGN_CLEARED;
}

/* ---- 2-byte floats, two in a unit, widened to 4 bytes. ---- */

static inline float widen_bf16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

static void sum_bf16(void *restrict accumulator, const void *restrict value, uint32_t units,
                     const uint8_t *table)
{
    float *sum = accumulator;
    (void)table;
    for (uint32_t i = 0; i < 2 * units; i++)
        sum[i] += widen_bf16(load_u16(value, i));
}

/* As integers, so that a signalling NaN passes as it is, like any f32's. */
static void first_sum_bf16(void *restrict accumulator, const void *restrict value, uint32_t units,
                           const uint8_t *table)
{
    uint32_t *sum = accumulator;
    (void)table;
    for (uint32_t i = 0; i < 2 * units; i++)
        sum[i] = (uint32_t)load_u16(value, i) << 16;
}

/* Bits of the binary32 that equals a binary16: exponents are 112 apart, a subnormal is so many times 2^-24
 * and normal here. Of a NaN what IEEE 754 and the CPU's own conversion make: quiet, its payload on the left.
 */
static inline uint32_t widen_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fffu;
    float subnormal = (float)(int32_t)magnitude * 0x1p-24f;
    uint32_t wide = (magnitude << 13) + (112u << 23), subnormal_bits;

    memcpy(&subnormal_bits, &subnormal, 4);
    wide = magnitude < 0x0400 ? subnormal_bits : wide;
    wide = magnitude >= 0x7c00 ? 0x7f800000u | magnitude << 13 : wide;
    wide = magnitude > 0x7c00 ? wide | 0x00400000u : wide;
    return sign | wide;
}

static void sum_f16(void *restrict accumulator, const void *restrict value, uint32_t units,
                    const uint8_t *table)
{
    float *sum = accumulator;
    (void)table;
    for (uint32_t i = 0; i < 2 * units; i++)
        sum[i] += float_of(widen_f16(load_u16(value, i)));
}

static void first_sum_f16(void *restrict accumulator, const void *restrict value, uint32_t units,
                          const uint8_t *table)
{
    uint32_t *sum = accumulator;
    (void)table;
    for (uint32_t i = 0; i < 2 * units; i++)
        sum[i] = widen_f16(load_u16(value, i));
}

/* ---- Look-ups: 64 bytes in a unit, each of 8/n indices of n bits. ---- */

#define UNIT_BYTES 64u

/* Index `part` of byte j of a unit is the unit's index 64 * part + j, and so is its sum. */
/* `before`: what the sum was. */
#define LOOK_UP(name, type, bits, before)                                                                    \
    static void name(void *restrict accumulator, const void *restrict value, uint32_t units,                 \
                     const uint8_t *restrict table)                                                          \
    {                                                                                                        \
        type *restrict sum = accumulator;                                                                    \
        const uint8_t *restrict packed = value;                                                              \
        for (uint32_t unit = 0; unit < units; unit++, packed += UNIT_BYTES)                                  \
            for (uint32_t part = 0; part < 8 / (bits); part++)                                               \
                for (uint32_t j = 0; j < UNIT_BYTES; j++, sum++) {                                           \
                    uint32_t index = (uint32_t)packed[j] >> (bits)*part & ((1u << (bits)) - 1);              \
                    *sum = (type)((before) + table[index]);                                                  \
                }                                                                                            \
    }

LOOK_UP(lut4_u8, uint8_t, 4, *sum)
LOOK_UP(first_lut4_u8, uint8_t, 4, 0)
LOOK_UP(lut4_u16, uint16_t, 4, *sum)
LOOK_UP(first_lut4_u16, uint16_t, 4, 0)
LOOK_UP(lut2_u8, uint8_t, 2, *sum)
LOOK_UP(first_lut2_u8, uint8_t, 2, 0)
LOOK_UP(lut2_u16, uint16_t, 2, *sum)
LOOK_UP(first_lut2_u16, uint16_t, 2, 0)
LOOK_UP(lut8_u16, uint16_t, 8, *sum)
LOOK_UP(first_lut8_u16, uint16_t, 8, 0)

/* ---- Many, one by one. ---- */

#define MANY(name)                                                                                           \
    static void many_##name(void *accumulator, const void *const *values, uint32_t count, uint32_t units,    \
                            const uint8_t *table)                                                            \
    {                                                                                                        \
        for (uint32_t k = 0; k < count; k++)                                                                 \
            name(accumulator, values[k], units, table);                                                      \
    }                                                                                                        \
    static void first_many_##name(void *accumulator, const void *const *values, uint32_t count,              \
                                  uint32_t units, const uint8_t *table)                                      \
    {                                                                                                        \
        first_##name(accumulator, values[0], units, table);                                                  \
        many_##name(accumulator, values + 1, count - 1, units, table);                                       \
    }

MANY(sum_i32)
MANY(sum_f32)
MANY(max_f32)
MANY(or_u32)
MANY(sum_f16)
MANY(sum_bf16)
MANY(lut4_u8)
MANY(lut4_u16)
MANY(lut2_u8)
MANY(lut2_u16)
MANY(lut8_u16)

const struct psc_op_row psc_op_rows_scalar[PSC_OP_COUNT] = PSC_OP_ROWS;
