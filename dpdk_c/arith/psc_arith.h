/* arith/: the ops over arrays of 4-byte elements. Scalar reference and vector kernels chosen once at run
 * time. Knows neither slots nor packets. Step of the story: "slot added". */
#ifndef PSC_ARITH_H
#define PSC_ARITH_H

#include <stdint.h>

#include "psc_wire.h"

/* accumulator[i] = accumulator[i] op value[i]. `value` may have any alignment (it points into a packet);
 * `accumulator` is 4-byte aligned. They never overlap. */
typedef void psc_combine_fn(void *accumulator, const void *value, uint32_t elems);
/* accumulator[i] = op applied to nothing and value[i]: a copy, for MAX with the sign cleared. */
typedef void psc_first_fn(void *accumulator, const void *value, uint32_t elems);

struct psc_op_row {
    psc_combine_fn *combine; /* NULL: not an op that writes to a slot */
    psc_first_fn *first;
    uint8_t elem_bytes;
};
/* Rows by enum psc_op; the best variant that this CPU runs. */
const struct psc_op_row *psc_op_rows(void);
/* Name of the variant in use: "scalar", "avx2", "avx512". */
const char *psc_arith_variant(void);

#endif
