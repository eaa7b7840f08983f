/* C's way into the wire contract: guards, the file that cffi reads, and what cffi cannot parse. */
#ifndef PSC_WIRE_H
#define PSC_WIRE_H

#include <stdint.h>

#include "psc_wire.def.h"

_Static_assert(PSC_MAX_CHUNK_BYTES <= 1 << PSC_VA_ROUND_SHIFT, "a slot's bytes fit below the round");
_Static_assert(PSC_MAX_OPS < 1 << (62 - PSC_VA_WINDOW_SHIFT), "op windows fit above the round");

/* Offset of a remote address from its QP's va_base, taken apart. Any 64-bit value is legal input. */
static inline uint32_t psc_va_window(uint64_t offset)
{
    return (uint32_t)(offset >> PSC_VA_WINDOW_SHIFT);
}
static inline uint32_t psc_va_round(uint64_t offset)
{
    return (uint32_t)(offset >> PSC_VA_ROUND_SHIFT);
}
static inline uint32_t psc_va_byte(uint64_t offset)
{
    return (uint32_t)offset & ((1u << PSC_VA_ROUND_SHIFT) - 1);
}
static inline uint64_t psc_va_offset(uint32_t window, uint32_t round)
{
    return (uint64_t)window << PSC_VA_WINDOW_SHIFT | (uint64_t)round << PSC_VA_ROUND_SHIFT;
}

#endif
