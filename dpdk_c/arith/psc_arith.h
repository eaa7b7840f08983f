/* arith/: the ops over arrays. Scalar reference and vector kernels, chosen once at run time. Knows neither
 * slots nor packets. Step of the story: "slot added".
 *
 * What a unit is, and how many bytes it adds to, is the wire contract's: psc_op_form. */
#ifndef PSC_ARITH_H
#define PSC_ARITH_H

#include <stdint.h>

#include "psc_roce.h"
#include "psc_wire.h"

/* The accumulator's elements = they op the value's, `units` units of it. `value` may have any alignment (it
 * points into a packet); `accumulator` is 4-byte aligned and `expansion` times as long. They never overlap.
 * `table` is the op's own, of form.table_entries and as psc_table_ok wants it, or NULL for an op that has
 * none. */
typedef void psc_combine_fn(void *accumulator, const void *value, uint32_t units, const uint8_t *table);
/* The accumulator's elements = op applied to nothing and the value's: a copy, a widening, a look-up; for MAX
 * with the sign cleared. */
typedef psc_combine_fn psc_first_fn;

/* The same with 1 to PSC_COMBINE_MAX values, in their order, in one pass over the accumulator: the bits are
 * those that one after the other makes. */
typedef void psc_combine_many_fn(void *accumulator, const void *const *values, uint32_t count, uint32_t units,
                                 const uint8_t *table);
#define PSC_COMBINE_MAX 8
/* The same; returns the CRC (psc_crc32's register, seeded with 0) of what the accumulator is then. */
typedef uint32_t psc_combine_many_crc_fn(void *accumulator, const void *const *values, uint32_t count,
                                         uint32_t units, const uint8_t *table);

/* first_many of the payloads of PSC_CRC_TOGETHER packets, while these are checked: returns what is left of
 * their claims, 0 if all are right (psc_icrc_checked). crcs[i]: the CRC of part i of as many equal ones as
 * the op expands to. payload_bytes: a multiple of PSC_CRC_TURN_BYTES for each of them. */
typedef uint32_t psc_first_checked_fn(void *accumulator, const struct psc_crc_message *messages,
                                      size_t payload_bytes, const uint8_t *table, uint32_t *crcs);

struct psc_op_row {
    psc_combine_fn *combine; /* NULL: not an op that writes to a slot */
    psc_first_fn *first;
    psc_combine_many_fn *combine_many;
    psc_combine_many_fn *first_many; /* the first value's `first`, then the others */
    psc_combine_many_crc_fn *combine_many_crc;
    psc_combine_many_crc_fn *first_many_crc;
};
/* Rows by enum psc_op of the variant in use: the best that this CPU runs, or what PASCALINE_ARITH names when
 * the library is loaded. */
const struct psc_op_row *psc_op_rows(void);
/* NULL: this variant has none for the op. */
psc_first_checked_fn *psc_first_checked(enum psc_op op);
/* Its name: "scalar", "avx2" or "avx512". */
const char *psc_arith_variant(void);
/* Another one, for tests and measurements, before any lane runs. False if there is none of that name or this
 * CPU does not run it: nothing has changed then. */
bool psc_arith_choose(const char *name);
/* What PASCALINE_ARITH named in vain, or NULL. */
const char *psc_arith_refused(void);

#endif
