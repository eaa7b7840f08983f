/* Which variant of expanding and packing this CPU runs: decided at run time, like the ops'. */
#include "sparse_variants.h"

bool psc_cpu_has_avx2_bmi2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
}

bool psc_cpu_has_avx512f(void)
{
    return __builtin_cpu_supports("avx512f");
}

static const struct psc_sparse_row *chosen = &psc_sparse_scalar;

/* When the library is loaded: under a hypervisor CPUID is an exit. */
__attribute__((constructor)) static void choose(void)
{
    __builtin_cpu_init();
    if (psc_cpu_has_avx512f())
        chosen = &psc_sparse_avx512;
    else if (psc_cpu_has_avx2_bmi2())
        chosen = &psc_sparse_avx2;
}

const struct psc_sparse_row *psc_sparse_row(void)
{
    return chosen;
}
