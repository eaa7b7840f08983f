/* The variants of the CRC, for roce/ and its tests, and what arith/ takes to fold sums as it makes them. Call
 * a variant only on a CPU that has it. */
#ifndef PSC_ROCE_CRC_H
#define PSC_ROCE_CRC_H

#include "psc_roce.h"

#define PSC_CRC_POLYNOMIAL 0xedb88320u /* 04C11DB7, reflected: bit 31 is the coefficient of x^0 */

/* Bytes at the start of a packet of which some read as ones. */
#define PSC_CRC_MASK_BYTES 64

struct psc_crc_variant {
    const char *name;
    bool (*runs_here)(void);
    uint32_t (*crc)(uint32_t seed, const void *data, size_t bytes);
    /* The same over data | mask, where the mask ends before the data does. */
    uint32_t (*masked)(uint32_t seed, const uint8_t mask[static PSC_CRC_MASK_BYTES], const void *data,
                       size_t bytes);
    /* NULL, or what is left of the claims of PSC_CRC_TOGETHER messages whose payloads are of equal length, a
     * multiple of PSC_CRC_TURN_BYTES: the sum of the differences between what a message leaves, seeded with
     * `seed`, and what it claims; each but the last moved by 64 bytes against the next. 0 if all are right.
     */
    uint32_t (*together)(uint32_t seed, const struct psc_crc_message messages[static PSC_CRC_TOGETHER],
                         size_t payload_bytes);
};

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
