/* Which variant of the ops this CPU runs: decided at run time, because one binary serves old and emulated
 * CPUs too. */
#include "variants.h"

#include <cpuid.h>

static const struct variant {
    const char *name;
    const struct psc_op_row *rows;
} scalar = {"scalar", psc_op_rows_scalar}, avx2 = {"avx2", psc_op_rows_avx2};

/* F16C is older than AVX2, but an emulated CPU may have either alone. Not by __builtin_cpu_supports: not
 * every compiler knows its name. */
bool psc_cpu_has_avx2_f16c(void)
{
    uint32_t eax, ebx, ecx = 0, edx;

    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

/* Asked once, when the library is loaded: under a hypervisor CPUID is an exit. */
static const struct variant *chosen = &scalar;

__attribute__((constructor)) static void choose(void)
{
    __builtin_cpu_init();
    if (psc_cpu_has_avx2_f16c())
        chosen = &avx2;
}

const struct psc_op_row *psc_op_rows(void)
{
    return chosen->rows;
}

const char *psc_arith_variant(void)
{
    return chosen->name;
}
