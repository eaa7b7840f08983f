/* The CRC: its reference (slicing), what the folding variants multiply by, which variant runs, and the
 * combination of two registers. psc_crc32 is the one door to it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"

#define X_TO_THE_0 0x80000000u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "slicing loads 8 bytes as two little-endian words");

/* Slicing-by-8 (Kounavis and Berry, 2005): slices[k][v] is the register v after k + 1 zero bytes. 8 KiB, so
 * it stays in L1 beside a packet. */
static uint32_t slices[8][256];
uint64_t psc_crc_fold[PSC_CRC_FOLDS][2], psc_crc_end[2];

static void fill_slices(void)
{
    for (uint32_t v = 0; v < 256; v++) {
        uint32_t crc = v;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? PSC_CRC_POLYNOMIAL : 0);
        slices[0][v] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t v = 0; v < 256; v++)
            slices[k][v] = slices[k - 1][v] >> 8 ^ slices[0][slices[k - 1][v] & 0xff];
}

static uint32_t slicing(uint32_t seed, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint32_t crc = seed;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= crc;
        crc = slices[7][low & 0xff] ^ slices[6][low >> 8 & 0xff] ^ slices[5][low >> 16 & 0xff] ^
              slices[4][low >> 24] ^ slices[3][high & 0xff] ^ slices[2][high >> 8 & 0xff] ^
              slices[1][high >> 16 & 0xff] ^ slices[0][high >> 24];
    }
    for (; bytes > 0; bytes--, at++)
        crc = crc >> 8 ^ slices[0][(crc ^ *at) & 0xff];
    return crc;
}

static uint32_t slicing_masked(uint32_t seed, const uint8_t mask[static PSC_CRC_MASK_BYTES], const void *data,
                               size_t bytes)
{
    uint8_t head[PSC_CRC_MASK_BYTES];
    size_t head_bytes = bytes < sizeof head ? bytes : sizeof head;

    memcpy(head, data, head_bytes);
    for (size_t i = 0; i < head_bytes; i++)
        head[i] |= mask[i];
    return slicing(slicing(seed, head, head_bytes), (const uint8_t *)data + head_bytes, bytes - head_bytes);
}

static bool always(void)
{
    return true;
}

const struct psc_crc_variant psc_crc_slicing = {"slicing", always, slicing, slicing_masked, NULL};

/* ---- Powers of x. ---- */

/* a * b modulo the polynomial, both reflected. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = X_TO_THE_0; bit != 0; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b >> 1 ^ (b & 1 ? PSC_CRC_POLYNOMIAL : 0);
    }
    return product;
}

/* x^exponent, by square and multiply. */
static uint32_t power(size_t exponent)
{
    uint32_t result = X_TO_THE_0;
    for (uint32_t square = X_TO_THE_0 >> 1; exponent != 0; exponent >>= 1) {
        if (exponent & 1)
            result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

/* A product of two reflected 64-bit halves has 127 bits and stands one place too far down, which is a factor
 * of x: so each power is one less than the way. The low half is 64 bits further from the end. */
static void fill_folds(void)
{
    for (uint32_t i = 0; i < PSC_CRC_FOLDS - 1; i++) {
        size_t bits = (size_t)128 * (PSC_CRC_FOLDS - 1 - i);
        psc_crc_fold[i][0] = (uint64_t)power(bits + 63) << 32;
        psc_crc_fold[i][1] = (uint64_t)power(bits - 1) << 32;
    }
    psc_crc_end[0] = (uint64_t)power(95) << 32;
    psc_crc_end[1] = (uint64_t)power(63) << 32;
}

/* A zero byte multiplies the register by x^8, so `bytes` of them multiply it by x^(8 * bytes); linearity
 * fills the table from that factor's products with the 32 single bits. */
void psc_crc32_shift_init(struct psc_crc32_shift *shift, size_t bytes)
{
    uint32_t factor = power(8 * bytes);
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t *table = shift->table[k];
        table[0] = 0;
        for (uint32_t v = 1; v < 256; v++) {
            uint32_t lowest_bit = v & (0 - v);
            table[v] =
                v == lowest_bit ? multiply(factor, v << 8 * k) : table[v ^ lowest_bit] ^ table[lowest_bit];
        }
    }
}

uint32_t psc_crc32_combine(const struct psc_crc32_shift *shift, uint32_t a, uint32_t b)
{
    return shift->table[0][a & 0xff] ^ shift->table[1][a >> 8 & 0xff] ^ shift->table[2][a >> 16 & 0xff] ^
           shift->table[3][a >> 24] ^ b;
}

/* ---- Which variant runs. ---- */

static const struct psc_crc_variant *const variants[] = {&psc_crc_vpclmul, &psc_crc_vpclmul_each,
                                                         &psc_crc_pclmul, &psc_crc_slicing};
const struct psc_crc_variant *psc_crc_chosen = &psc_crc_slicing;
static const char *refused;

bool psc_crc_choose(const char *name)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (strcmp(variants[i]->name, name) == 0 && variants[i]->runs_here()) {
            psc_crc_chosen = variants[i];
            return true;
        }
    return false;
}

/* Once, when the library is loaded: under a hypervisor CPUID is an exit. */
__attribute__((constructor)) static void start(void)
{
    const char *forced = getenv("PASCALINE_CRC");

    fill_slices();
    fill_folds();
    __builtin_cpu_init();
    for (size_t i = 0; !psc_crc_choose(variants[i]->name);)
        i++;
    if (forced && !psc_crc_choose(forced))
        refused = forced;
}

const char *psc_crc_variant(void)
{
    return psc_crc_chosen->name;
}

const char *psc_crc_refused(void)
{
    return refused;
}

uint32_t psc_crc32(uint32_t seed, const void *data, size_t bytes)
{
    return psc_crc_chosen->crc(seed, data, bytes);
}
