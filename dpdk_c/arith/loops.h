/* The loops of every op, private to arith/. This text is compiled once per variant, each time for another
 * instruction set: scalar.c is the reference, avx2.c the same loops vectorised by the compiler, so they
 * cannot differ in meaning. No header may be included from here: what it defines would be compiled for the
 * variant's instruction set too. */

/* The suites' own test: a data plane that adds one too much must make them fail. */
#ifdef PSC_PLANTED_FAULT_ADD_ONE
#ifdef NDEBUG
#error "a planted fault cannot go into a release build"
#endif
#define PLANTED_ERROR 1
#else
#define PLANTED_ERROR 0
#endif

#define SIGN_CLEARED 0x7fffffffu

/* A value points into a packet, at any alignment; this compiles to a plain move. */
static inline uint32_t load_u32(const void *array, uint32_t i)
{
    uint32_t element;
    memcpy(&element, (const char *)array + (size_t)4 * i, 4);
    return element;
}

static inline float load_f32(const void *array, uint32_t i)
{
    float element;
    memcpy(&element, (const char *)array + (size_t)4 * i, 4);
    return element;
}

/* Modulo 2^32: unsigned, so that wrapping is defined. */
static void sum_i32(void *restrict accumulator, const void *restrict value, uint32_t elems)
{
    uint32_t *sum = accumulator;
    for (uint32_t i = 0; i < elems; i++)
        sum[i] += load_u32(value, i);
    if (PLANTED_ERROR && elems > 0)
        sum[0] += PLANTED_ERROR;
}

/* One IEEE addition per element and nothing else: no contraction, no reassociation, in no variant. */
static void sum_f32(void *restrict accumulator, const void *restrict value, uint32_t elems)
{
    float *sum = accumulator;
    for (uint32_t i = 0; i < elems; i++)
        sum[i] += load_f32(value, i);
    if (PLANTED_ERROR && elems > 0)
        sum[0] += PLANTED_ERROR;
}

/* Bits of |x| compare as integers like the floats do, Inf above the finite ones; NaN, which no float
 * comparison orders, comes out above Inf. */
static void max_f32(void *restrict accumulator, const void *restrict value, uint32_t elems)
{
    uint32_t *max = accumulator;
    for (uint32_t i = 0; i < elems; i++) {
        uint32_t magnitude = load_u32(value, i) & SIGN_CLEARED;
        uint32_t greatest = max[i] & SIGN_CLEARED;
        max[i] = magnitude > greatest ? magnitude : greatest;
    }
}

static void first_copy(void *restrict accumulator, const void *restrict value, uint32_t elems)
{
    memcpy(accumulator, value, (size_t)4 * elems);
}

static void first_max_f32(void *restrict accumulator, const void *restrict value, uint32_t elems)
{
    uint32_t *max = accumulator;
    for (uint32_t i = 0; i < elems; i++)
        max[i] = load_u32(value, i) & SIGN_CLEARED;
}

const struct psc_op_row PSC_VARIANT_ROWS[PSC_OP_COUNT] = {
    [PSC_OP_PROBE] = {NULL, NULL, 4},
    [PSC_OP_SUM_I32] = {sum_i32, first_copy, 4},
    [PSC_OP_SUM_F32] = {sum_f32, first_copy, 4},
    [PSC_OP_MAX_F32] = {max_f32, first_max_f32, 4},
};
