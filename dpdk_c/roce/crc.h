/* The variants of the CRC, for roce/ and its tests, and what arith/ takes to fold sums as it makes them. Call
 * a variant only on a CPU that has it. */
#ifndef PSC_ROCE_CRC_H
#define PSC_ROCE_CRC_H

#include "psc_roce.h"

#define PSC_CRC_POLYNOMIAL 0xedb88320u /* 04C11DB7, reflected: bit 31 is the coefficient of x^0 */

/* Bytes at the start of a packet of which some read as ones. */
#define PSC_CRC_MASK_BYTES 64

/* Messages whose CRCs are checked in one (psc_icrc_check). */
#define PSC_CRC_TOGETHER 4

/* A message and the register that somebody claims it leaves. */
struct psc_crc_message {
    const uint8_t
        *mask; /* PSC_CRC_MASK_BYTES that its first bytes are read with, as many zeros behind them */
    const uint8_t *data;
    uint32_t bytes; /* a multiple of 4 */
    uint32_t claimed;
};

struct psc_crc_variant {
    const char *name;
    bool (*runs_here)(void);
    uint32_t (*crc)(uint32_t seed, const void *data, size_t bytes);
    /* The same over data | mask, where the mask ends before the data does. */
    uint32_t (*masked)(uint32_t seed, const uint8_t mask[static PSC_CRC_MASK_BYTES], const void *data,
                       size_t bytes);
    /* NULL, or what is left of PSC_CRC_TOGETHER claims: the sum of the differences between what a message,
     * seeded with `seed`, leaves and what is claimed; each but the last moved by PSC_CRC_STEP bytes against
     * the next. 0 if all are right. The messages are of equally many steps, at least PSC_CRC_STEPS_MIN. */
    uint32_t (*together)(uint32_t seed, const struct psc_crc_message messages[static PSC_CRC_TOGETHER]);
};

/* Whole steps of a message behind its first 4 to 64 bytes. */
#define PSC_CRC_STEP      64
#define PSC_CRC_STEPS_MIN 8
static inline uint32_t psc_crc_steps(uint32_t bytes)
{
    return (bytes - 4) / PSC_CRC_STEP;
}

extern const struct psc_crc_variant psc_crc_slicing, psc_crc_pclmul, psc_crc_vpclmul, psc_crc_vpclmul_each;
extern const struct psc_crc_variant *psc_crc_chosen;

/* Folding (Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ", 2009): what the two
 * halves of a block of 128 bits are multiplied by, without carries, to move it by a multiple of 128 bits: by
 * 32 - i of them in row i, so that a vector of blocks finds its own rows in memory. The last row is 0. */
#define PSC_CRC_FOLDS 33
extern uint64_t psc_crc_fold[PSC_CRC_FOLDS][2];
static inline const uint64_t *psc_crc_fold_by(uint32_t bits)
{
    return psc_crc_fold[PSC_CRC_FOLDS - 1 - bits / 128];
}

/* The same for the end: from 128 bits to 96, and to 64. */
extern uint64_t psc_crc_end[2];

/* Barrett's reduction of 64 bits (the same paper): the polynomial, and x^64 divided by it, as 33 bits each.
 */
#define PSC_CRC_P33 0x1db710641
#define PSC_CRC_MU  0x1f7011641

#endif
