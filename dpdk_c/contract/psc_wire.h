/* C's way into the wire contract: guards, the file that cffi reads, and what cffi cannot parse. */
#ifndef PSC_WIRE_H
#define PSC_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "psc_wire.def.h"

_Static_assert(PSC_MAX_CHUNK_BYTES <= 1 << PSC_VA_ROUND_SHIFT, "a slot's bytes fit below the round");
_Static_assert(PSC_MAX_OPS < 1 << (62 - PSC_VA_WINDOW_SHIFT), "op windows fit above the round");

/* What the enums of psc_wire.def.h say about one op; no table: table_entries = 0, no sub-blocks:
 * sub_block_elems = 0. */
struct psc_op_form {
    uint8_t unit_bytes;
    uint8_t expansion;
    uint16_t table_entries;
    uint16_t sum_max;
    uint16_t sub_block_elems;
};
/* clang-format off */
#define PSC_OP_FORM(name)       {PSC_UNIT_##name, PSC_EXPANSION_##name, 0, 0, 0}
#define PSC_OP_TABLE_FORM(name) {PSC_UNIT_##name, PSC_EXPANSION_##name, PSC_TABLE_##name, PSC_SUM_MAX_##name, 0}
#define PSC_OP_SUB_BLOCK_FORM(name) {PSC_UNIT_##name, PSC_EXPANSION_##name, 0, 0, PSC_SUB_BLOCK_##name}
/* clang-format on */

/* Of an op below PSC_OP_COUNT. */
static inline const struct psc_op_form *psc_op_form(uint32_t op)
{
    static const struct psc_op_form forms[PSC_OP_COUNT] = {
        [PSC_OP_PROBE] = {4, 1, 0, 0, 0},
        [PSC_OP_SUM_I32] = PSC_OP_FORM(SUM_I32),
        [PSC_OP_SUM_F32] = PSC_OP_FORM(SUM_F32),
        [PSC_OP_MAX_F32] = PSC_OP_FORM(MAX_F32),
        [PSC_OP_SUM_F16] = PSC_OP_FORM(SUM_F16),
        [PSC_OP_SUM_BF16] = PSC_OP_FORM(SUM_BF16),
        [PSC_OP_LUT4_U8] = PSC_OP_TABLE_FORM(LUT4_U8),
        [PSC_OP_LUT4_U16] = PSC_OP_TABLE_FORM(LUT4_U16),
        [PSC_OP_LUT2_U8] = PSC_OP_TABLE_FORM(LUT2_U8),
        [PSC_OP_LUT2_U16] = PSC_OP_TABLE_FORM(LUT2_U16),
        [PSC_OP_LUT8_U16] = PSC_OP_TABLE_FORM(LUT8_U16),
        [PSC_OP_OR_U32] = PSC_OP_FORM(OR_U32),
        [PSC_OP_EXPAND_SUM_I32] = PSC_OP_SUB_BLOCK_FORM(EXPAND_SUM_I32),
        [PSC_OP_EXPAND_SUM_F32] = PSC_OP_SUB_BLOCK_FORM(EXPAND_SUM_F32),
    };
    return &forms[op];
}
#undef PSC_OP_FORM
#undef PSC_OP_TABLE_FORM
#undef PSC_OP_SUB_BLOCK_FORM

/* The most elements that a slot takes of an op with sub-blocks: 4 * (n + ceil(n / 32)) + the spare bytes are
 * within it. */
static inline uint32_t psc_sub_block_elems_max(uint32_t chunk_bytes)
{
    return (uint32_t)((uint64_t)((chunk_bytes - PSC_SUB_BLOCK_SPARE_BYTES) / 4) * 32 / 33);
}

/* A table as it must be: begins with 0, does not fall, and says something. */
static inline bool psc_table_ok(const struct psc_op_form *form, const uint8_t *table)
{
    for (uint32_t i = 1; i < form->table_entries; i++)
        if (table[i] < table[i - 1])
            return false;
    return table[0] == 0 && table[form->table_entries - 1] > 0;
}

/* The greatest sum that these ranks can make with this table: at most form->sum_max is safe. */
static inline uint32_t psc_table_sum(const struct psc_op_form *form, const uint8_t *table, uint32_t ranks)
{
    return table[form->table_entries - 1] * ranks;
}

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
