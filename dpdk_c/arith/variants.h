/* The variants of the op table, private to arith/ and its tests. Call a variant only on a CPU that has it. */
#ifndef PSC_ARITH_VARIANTS_H
#define PSC_ARITH_VARIANTS_H

#include "psc_arith.h"
#include "psc_roce.h"
#include "psc_sparse.h"

struct psc_arith_variant {
    const char *name;
    const struct psc_op_row *rows;
    const struct psc_sparse_row *sparse;
    psc_first_checked_fn *const *first_checked; /* by enum psc_op; NULL: none */
    bool (*runs_here)(void);
};

/* The best first; the last one, scalar, is the reference and runs everywhere. */
#define PSC_ARITH_VARIANTS 3
extern const struct psc_arith_variant psc_arith_variants[PSC_ARITH_VARIANTS];

extern const struct psc_op_row psc_op_rows_scalar[PSC_OP_COUNT];
extern const struct psc_op_row psc_op_rows_avx2[PSC_OP_COUNT];
extern const struct psc_op_row psc_op_rows_avx512[PSC_OP_COUNT];
extern psc_first_checked_fn *const psc_first_checked_avx512[PSC_OP_COUNT];
extern const struct psc_sparse_row psc_sparse_scalar, psc_sparse_avx2, psc_sparse_avx512;

/* CRC of the sums that `units` have made, for a variant that does not fold them as it makes them. */
static inline uint32_t psc_crc_of_sums(enum psc_op op, const void *accumulator, uint32_t units)
{
    const struct psc_op_form *form = psc_op_form(op);
    return psc_crc32(0, accumulator, (size_t)units * form->unit_bytes * form->expansion);
}

/* A variant's table, of functions that are called alike in all. */
#define PSC_OP_ROW(name)                                                                                     \
    {                                                                                                        \
        name, first_##name, many_##name, first_many_##name, crc_many_##name, crc_first_many_##name           \
    }
#define PSC_OP_ROWS                                                                                          \
    {                                                                                                        \
        [PSC_OP_PROBE] = {NULL, NULL, NULL, NULL, NULL, NULL}, [PSC_OP_SUM_I32] = PSC_OP_ROW(sum_i32),       \
        [PSC_OP_SUM_F32] = PSC_OP_ROW(sum_f32), [PSC_OP_MAX_F32] = PSC_OP_ROW(max_f32),                      \
        [PSC_OP_SUM_F16] = PSC_OP_ROW(sum_f16), [PSC_OP_SUM_BF16] = PSC_OP_ROW(sum_bf16),                    \
        [PSC_OP_LUT4_U8] = PSC_OP_ROW(lut4_u8), [PSC_OP_LUT4_U16] = PSC_OP_ROW(lut4_u16),                    \
        [PSC_OP_LUT2_U8] = PSC_OP_ROW(lut2_u8), [PSC_OP_LUT2_U16] = PSC_OP_ROW(lut2_u16),                    \
        [PSC_OP_LUT8_U16] = PSC_OP_ROW(lut8_u16), [PSC_OP_OR_U32] = PSC_OP_ROW(or_u32),                      \
    }

/* The suites' own test: a data plane that adds one too much must make them fail. */
#ifdef PSC_PLANTED_FAULT_ADD_ONE
#ifdef NDEBUG
#error "a planted fault cannot go into a release build"
#endif
#define PSC_PLANTED_ERROR 1
#else
#define PSC_PLANTED_ERROR 0
#endif

#endif
