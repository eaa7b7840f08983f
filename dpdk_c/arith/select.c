/* Which variant of the ops this CPU runs: decided at run time, because one binary serves old and emulated
 * CPUs too. */
#include "variants.h"

static const struct variant {
    const char *name;
    const struct psc_op_row *rows;
} scalar = {"scalar", psc_op_rows_scalar}, avx2 = {"avx2", psc_op_rows_avx2};

static const struct variant *best_variant(void)
{
    return __builtin_cpu_supports("avx2") ? &avx2 : &scalar;
}

const struct psc_op_row *psc_op_rows(void)
{
    return best_variant()->rows;
}

const char *psc_arith_variant(void)
{
    return best_variant()->name;
}
