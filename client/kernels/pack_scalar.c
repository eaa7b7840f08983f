/* Codec sparse for any instruction set: the reference in C. */
#include "pack.h"

enum { WORD = 32 };

static uint64_t count_bits(const uint32_t *bitmap, uint64_t words)
{
    uint64_t count = 0;
    for (uint64_t w = 0; w < words; w++)
        count += (uint32_t)__builtin_popcount(bitmap[w]);
    return count;
}

static uint64_t mark(const uint32_t *x, uint64_t words, uint32_t least, uint32_t *bitmap)
{
    uint64_t count = 0;
    for (uint64_t w = 0; w < words; w++, x += WORD) {
        uint32_t bits = 0;
        for (uint32_t i = 0; i < WORD; i++)
            bits |= (uint32_t)((x[i] & 0x7fffffffu) >= least) << i;
        bitmap[w] = bits;
        count += (uint32_t)__builtin_popcount(bits);
    }
    return count;
}

static void pack(const uint32_t *x, const uint32_t *chosen, uint64_t words, uint64_t room, uint32_t *packed)
{
    (void)room;
    for (uint64_t w = 0; w < words; w++, x += WORD)
        for (uint32_t left = chosen[w]; left; left &= left - 1)
            *packed++ = x[__builtin_ctz(left)];
}

static uint64_t unpack(const uint32_t *packed, uint64_t room, const uint32_t *chosen, uint64_t words,
                       bool stream, uint32_t *values)
{
    (void)stream;
    uint64_t taken = 0;
    for (uint64_t w = 0; w < words; w++, values += WORD)
        for (uint32_t i = 0; i < WORD; i++)
            values[i] = chosen[w] >> i & 1 && taken < room ? packed[taken++] : 0;
    return taken;
}

static void fence(void) {}

const struct psc_pack_kernels psc_pack_scalar = {count_bits, mark, pack, unpack, fence};
