/* qp/: arithmetic of 24-bit packet sequence numbers. PSNs are compared here and nowhere else. Pure. */
#ifndef PSC_PSN_H
#define PSC_PSN_H

#include <stdint.h>

#include "psc_roce.h"

static inline uint32_t psc_psn_add(uint32_t psn, uint32_t packets)
{
    return (psn + packets) & PSC_PSN_MASK;
}

/* Signed 24-bit distance a - b, -2^23 .. 2^23-1: positive when a comes after b. Half the circle away counts
 * as past, so a PSN that could be either is never executed. (A shift to the right keeps the sign in every
 * compiler that we use; a division takes three instructions more.) */
static inline int32_t psc_psn_distance(uint32_t a, uint32_t b)
{
    return (int32_t)((a - b) << 8) >> 8;
}

#endif
