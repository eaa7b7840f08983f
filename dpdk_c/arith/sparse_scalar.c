/* The reference: one set bit after the other. Step of the story: "slot added". */
#include <string.h>

#include "variants.h"

static uint32_t add_i32(uint32_t element, uint32_t value)
{
    return element + value;
}

static uint32_t add_f32(uint32_t element, uint32_t value)
{
    float a, b;

    memcpy(&a, &element, 4);
    memcpy(&b, &value, 4);
    a += b;
    memcpy(&element, &a, 4);
    return element;
}

static inline __attribute__((always_inline)) void expand(uint32_t *accumulator, uint32_t *united,
                                                         const uint32_t *bitmap, uint32_t words,
                                                         const char *values,
                                                         uint32_t (*add)(uint32_t, uint32_t))
{
    for (uint32_t w = 0; w < words; w++) {
        for (uint32_t bits = bitmap[w]; bits; bits &= bits - 1, values += 4) {
            uint32_t bit = (uint32_t)__builtin_ctz(bits), value;
            uint32_t *element = &accumulator[32 * w + bit];
            memcpy(&value, values, 4);
            *element = united[w] >> bit & 1 ? add(*element, value) : value;
        }
        united[w] |= bitmap[w];
    }
}

static void expand_i32(uint32_t *accumulator, uint32_t *united, const uint32_t *bitmap, uint32_t words,
                       const void *values)
{
    expand(accumulator, united, bitmap, words, values, add_i32);
}

static void expand_f32(uint32_t *accumulator, uint32_t *united, const uint32_t *bitmap, uint32_t words,
                       const void *values)
{
    expand(accumulator, united, bitmap, words, values, add_f32);
}

static uint32_t pack(uint32_t *out, const uint32_t *values, const uint32_t *bitmap, uint32_t words)
{
    uint32_t count = 0;

    for (uint32_t w = 0; w < words; w++)
        for (uint32_t bits = bitmap[w]; bits; bits &= bits - 1)
            out[count++] = values[32 * w + (uint32_t)__builtin_ctz(bits)];
    return count;
}

static uint32_t count(const uint32_t *bitmap, uint32_t words)
{
    uint32_t bits = 0;

    for (uint32_t w = 0; w < words; w++)
        bits += (uint32_t)__builtin_popcount(bitmap[w]);
    return bits;
}

const struct psc_sparse_row psc_sparse_scalar = {expand_i32, expand_f32, pack, count};
