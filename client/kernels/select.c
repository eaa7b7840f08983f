/* Which variant this CPU runs: decided at run time, because one binary serves old and emulated CPUs too. */
#include <stdatomic.h>
#include <string.h>

#include "variants.h"

static const struct psc_kernels_variant *const variants[] = {
#ifdef __x86_64__
    &psc_kernels_avx512, &psc_kernels_avx2,
#endif
    &psc_kernels_scalar, /* last: runs everywhere */
};

static _Atomic(const struct psc_kernels_variant *) current;

static const struct psc_kernels_variant *best(void)
{
    size_t i = 0;
    while (!variants[i]->runs_here())
        i++;
    return variants[i];
}

const struct psc_kernels_variant *psc_kernels_current(void)
{
    const struct psc_kernels_variant *variant = atomic_load_explicit(&current, memory_order_relaxed);
    if (!variant) {
        variant = best();
        atomic_store_explicit(&current, variant, memory_order_relaxed);
    }
    return variant;
}

const char *psc_kernels_variant(void)
{
    return psc_kernels_current()->name;
}

static const struct psc_kernels_variant *named(const char *name)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (strcmp(variants[i]->name, name) == 0 && variants[i]->runs_here())
            return variants[i];
    return NULL;
}

const char *psc_kernels_compiler(void)
{
    return __VERSION__;
}

bool psc_kernels_runs(const char *name)
{
    return named(name) != NULL;
}

bool psc_kernels_choose(const char *name)
{
    const struct psc_kernels_variant *variant = named(name);
    if (variant)
        atomic_store_explicit(&current, variant, memory_order_relaxed);
    return variant != NULL;
}
