/* arith/: the ops over arrays. Scalar reference and vector kernels chosen once at run time. Knows neither
 * slots nor packets. Step of the story: "slot added".
 *
 * What a unit is, and how many bytes it adds to, is the wire contract's: psc_op_form. */
#ifndef PSC_ARITH_H
#define PSC_ARITH_H

#include <stdint.h>

#include "psc_wire.h"

/* The accumulator's elements = they op the value's, `units` units of it. `value` may have any alignment (it
 * points into a packet); `accumulator` is 4-byte aligned and `expansion` times as long. They never overlap.
 * `table` is the op's own, of form.table_entries, or NULL for an op that has none. */
typedef void psc_combine_fn(void *accumulator, const void *value, uint32_t units, const uint8_t *table);
/* The accumulator's elements = op applied to nothing and the value's: a copy, a widening, a look-up; for MAX
 * with the sign cleared. */
typedef psc_combine_fn psc_first_fn;

struct psc_op_row {
    psc_combine_fn *combine; /* NULL: not an op that writes to a slot */
    psc_first_fn *first;
};
/* Rows by enum psc_op; the best variant that this CPU runs. */
const struct psc_op_row *psc_op_rows(void);
/* Name of the variant in use: "scalar", "avx2". */
const char *psc_arith_variant(void);

#endif
