/* IEEE arithmetic whatever the caller's thread has chosen, private to this room. */
#ifndef PSC_KERNELS_IEEE_H
#define PSC_KERNELS_IEEE_H

#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* The caller's thread may flush denormals or round otherwise (torch.set_flush_denormal): the bits of a result
 * must not depend on it. */
static inline unsigned psc_begin_ieee(void)
{
#ifdef __SSE__
    unsigned saved = _mm_getcsr();
    _mm_setcsr(_MM_MASK_MASK);
    return saved;
#else
    return 0;
#endif
}

static inline void psc_end_ieee(unsigned saved)
{
#ifdef __SSE__
    _mm_setcsr(saved);
#else
    (void)saved;
#endif
}

#endif
