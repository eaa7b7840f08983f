/* Which variant of the ops this CPU runs: decided at run time, because one binary serves old and emulated
 * CPUs too. */
#include <cpuid.h>
#include <stdlib.h>
#include <string.h>

#include "variants.h"

static bool runs_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul");
}

/* F16C is older than AVX2, but an emulated CPU may have either alone. Not by __builtin_cpu_supports: not
 * every compiler knows its name. */
static bool runs_avx2(void)
{
    uint32_t eax, ebx, ecx = 0, edx;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static bool always(void)
{
    return true;
}

const struct psc_arith_variant psc_arith_variants[PSC_ARITH_VARIANTS] = {
    {"avx512", psc_op_rows_avx512, &psc_sparse_avx512, psc_first_checked_avx512, runs_avx512},
    {"avx2", psc_op_rows_avx2, &psc_sparse_avx2, NULL, runs_avx2},
    {"scalar", psc_op_rows_scalar, &psc_sparse_scalar, NULL, always},
};

static const struct psc_arith_variant *chosen = &psc_arith_variants[PSC_ARITH_VARIANTS - 1];
static const char *refused;

bool psc_arith_choose(const char *name)
{
    for (uint32_t i = 0; i < PSC_ARITH_VARIANTS; i++)
        if (strcmp(psc_arith_variants[i].name, name) == 0 && psc_arith_variants[i].runs_here()) {
            chosen = &psc_arith_variants[i];
            return true;
        }
    return false;
}

/* Once, when the library is loaded: under a hypervisor CPUID is an exit. */
__attribute__((constructor)) static void start(void)
{
    const char *forced = getenv("PASCALINE_ARITH");

    __builtin_cpu_init();
    for (uint32_t i = 0; !psc_arith_choose(psc_arith_variants[i].name);)
        i++;
    if (forced && !psc_arith_choose(forced))
        refused = forced;
}

const struct psc_op_row *psc_op_rows(void)
{
    return chosen->rows;
}

const struct psc_sparse_row *psc_sparse_row(void)
{
    return chosen->sparse;
}

/* A planted error comes after the other kernels alone. */
psc_first_checked_fn *psc_first_checked(enum psc_op op)
{
    return chosen->first_checked && !PSC_PLANTED_ERROR ? chosen->first_checked[op] : NULL;
}

const char *psc_arith_variant(void)
{
    return chosen->name;
}

const char *psc_arith_refused(void)
{
    return refused;
}
