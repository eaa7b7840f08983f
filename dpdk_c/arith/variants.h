/* The variants of the op table, private to arith/ and its tests. Call a variant only on a CPU that has it. */
#ifndef PSC_ARITH_VARIANTS_H
#define PSC_ARITH_VARIANTS_H

#include "psc_arith.h"

extern const struct psc_op_row psc_op_rows_scalar[PSC_OP_COUNT];
extern const struct psc_op_row psc_op_rows_avx2[PSC_OP_COUNT];

/* What the AVX2 variant wants. */
bool psc_cpu_has_avx2_f16c(void);

#endif
