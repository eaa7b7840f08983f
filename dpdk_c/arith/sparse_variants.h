/* The variants of expanding and packing, private to arith/ and its tests. Call a variant only on a CPU that
 * has it. */
#ifndef PSC_ARITH_SPARSE_VARIANTS_H
#define PSC_ARITH_SPARSE_VARIANTS_H

#include <stdbool.h>

#include "psc_sparse.h"

extern const struct psc_sparse_row psc_sparse_scalar, psc_sparse_avx2, psc_sparse_avx512;

/* What the variants want. */
bool psc_cpu_has_avx2_bmi2(void);
bool psc_cpu_has_avx512f(void);

#endif
