/* The ops over vectors, private to arith/. This text is compiled once per vector variant, which before it
 * says what a vector is and does: avx2.c and avx512.c cannot differ in meaning. No header may be included
 * from here: what it defines would be compiled for the variant's instruction set too.
 *
 * A tile is the part of the accumulator that fits a few registers. It is read and written once, whatever the
 * number of values: outside L1 the accumulator's bytes are what an addition costs. Per element the additions
 * are made in the order of the values, one by one, so that a float sum has the same bits. */

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Four are enough for the latency of an addition, and few enough for 16 registers. */
#define TILE_VECTORS 4

/* What the 4-byte accumulator's element is made of. */
enum element { I32, F32, MAX_F32, OR_U32, F16, BF16 };

/* ---- Elements. Their values' and their accumulator's bytes, and how they come and meet. ---- */

static ALWAYS_INLINE uint32_t expansion_of(enum element element)
{
    return element == F16 || element == BF16 ? 2 : 1;
}

/* As much of a value as makes one vector of accumulator. */
static ALWAYS_INLINE vec taken(enum element element, const uint8_t *value)
{
    switch (element) {
    case MAX_F32:
        return magnitude(load(value));
    case F16:
        return widened_f16(load_half(value));
    case BF16:
        return widened_bf16(load_half(value));
    default:
        return load(value);
    }
}

/* The last units, fewer than that. */
static ALWAYS_INLINE vec taken_part(enum element element, const uint8_t *value, uint32_t units)
{
    switch (element) {
    case MAX_F32:
        return magnitude(load_part(value, units));
    case F16:
        return widened_f16(load_half_part(value, units));
    case BF16:
        return widened_bf16(load_half_part(value, units));
    default:
        return load_part(value, units);
    }
}

/* What the accumulator holds: anything, but from here on MAX's is a magnitude. */
static ALWAYS_INLINE vec held(enum element element, vec sum)
{
    return element == MAX_F32 ? magnitude(sum) : sum;
}

static ALWAYS_INLINE vec met(enum element element, vec sum, vec added)
{
    switch (element) {
    case I32:
        return add_u32(sum, added);
    case MAX_F32:
        /* Bits of |x| compare as integers like the floats do, Inf above the finite ones, NaN above Inf. */
        return greater_u32(sum, added);
    case OR_U32:
        return or_u32_vec(sum, added);
    default:
        return add_f32(sum, added);
    }
}

/* ---- One pass over the accumulator. ---- */

/* `at`: offset in the values. `first`: what the accumulator held does not count. */
static ALWAYS_INLINE void combine_tile(enum element element, bool first, uint32_t vectors,
                                       uint8_t *accumulator, const void *const *values, uint32_t count,
                                       size_t at)
{
    const uint32_t step = VEC_BYTES / expansion_of(element);
    uint8_t *sums = accumulator + at * expansion_of(element);
    vec tile[TILE_VECTORS];

    for (uint32_t i = 0; i < vectors; i++)
        tile[i] = first ? taken(element, (const uint8_t *)values[0] + at + (size_t)i * step)
                        : held(element, load(sums + (size_t)i * VEC_BYTES));
    for (uint32_t k = first; k < count; k++) {
        const uint8_t *value = (const uint8_t *)values[k] + at;
        for (uint32_t i = 0; i < vectors; i++)
            tile[i] = met(element, tile[i], taken(element, value + (size_t)i * step));
    }
    for (uint32_t i = 0; i < vectors; i++)
        store(sums + (size_t)i * VEC_BYTES, tile[i]);
}

/* The last units, fewer than make a vector. */
static ALWAYS_INLINE void combine_part(enum element element, bool first, uint8_t *accumulator,
                                       const void *const *values, uint32_t count, size_t at, uint32_t units)
{
    const uint32_t elems = units * expansion_of(element);
    uint8_t *sums = accumulator + at * expansion_of(element);
    vec sum = first ? taken_part(element, (const uint8_t *)values[0] + at, units)
                    : held(element, load_part(sums, elems));

    for (uint32_t k = first; k < count; k++)
        sum = met(element, sum, taken_part(element, (const uint8_t *)values[k] + at, units));
    store_part(sums, elems, sum);
}

/* See variants.h. */
static ALWAYS_INLINE void plant(enum element element, uint8_t *accumulator)
{
    const vec error = element == I32 ? set1_u32(PSC_PLANTED_ERROR) : set1_f32(PSC_PLANTED_ERROR);

    if (element == I32 || element == F32)
        store_part(accumulator, 1, met(element, load_part(accumulator, 1), error));
}

static ALWAYS_INLINE void combine_elements(enum element element, bool first, uint8_t *accumulator,
                                           const void *const *values, uint32_t count, uint32_t units,
                                           const uint8_t *table)
{
    const size_t step = VEC_BYTES / expansion_of(element), bytes = (size_t)4 * units;
    size_t at = 0;

    (void)table;
    for (; at + TILE_VECTORS * step <= bytes; at += TILE_VECTORS * step)
        combine_tile(element, first, TILE_VECTORS, accumulator, values, count, at);
    for (; at + step <= bytes; at += step)
        combine_tile(element, first, 1, accumulator, values, count, at);
    if (at < bytes)
        combine_part(element, first, accumulator, values, count, at, (uint32_t)(bytes - at) / 4);
    if (PSC_PLANTED_ERROR && units > 0)
        plant(element, accumulator);
}

/* ---- Look-ups: a unit is 64 bytes, each of 8 / bits indices, index `part` of byte j is the unit's index
 * 64 * part + j, and so is its sum. ---- */

#define UNIT_BYTES 64u

/* Sums of 16 bits are made in bytes first, for as many values as cannot overflow one, so that most widening
 * is done once for all of them. */
static ALWAYS_INLINE uint32_t values_per_byte(uint32_t bits, const uint8_t *table, uint32_t count)
{
    uint32_t greatest = table[(1u << bits) - 1]; /* a table does not fall */

    return greatest * count <= UINT8_MAX ? count : UINT8_MAX / greatest;
}

/* Sums in bytes of the values from `k` to `end`, of which there is one at least. */
static ALWAYS_INLINE void look_up_narrow(uint32_t bits, vec narrow[8 / 2], const void *const *values,
                                         uint32_t k, uint32_t end, size_t at, const struct lut *lut)
{
    vec packed = load((const uint8_t *)values[k] + at);

    for (uint32_t part = 0; part < 8 / bits; part++)
        narrow[part] = looked_up(lut, bits, packed, part);
    for (k++; k < end; k++) {
        packed = load((const uint8_t *)values[k] + at);
        for (uint32_t part = 0; part < 8 / bits; part++)
            narrow[part] = add_u8(narrow[part], looked_up(lut, bits, packed, part));
    }
}

/* One vector of packed bytes of each value; the sums of each part stand UNIT_BYTES elements behind those of
 * the part before. */
static ALWAYS_INLINE void look_up_u8(uint32_t bits, bool first, uint8_t *sums, const void *const *values,
                                     uint32_t count, size_t at, const struct lut *lut)
{
    vec narrow[8 / 2];

    look_up_narrow(bits, narrow, values, 0, count, at, lut);
    for (uint32_t part = 0; part < 8 / bits; part++, sums += UNIT_BYTES)
        store(sums, first ? narrow[part] : add_u8(load(sums), narrow[part]));
}

static ALWAYS_INLINE void look_up_u16(uint32_t bits, bool first, uint8_t *sums, const void *const *values,
                                      uint32_t count, uint32_t per_byte, size_t at, const struct lut *lut)
{
    vec narrow[8 / 2], low[8 / 2], high[8 / 2];

    for (uint32_t part = 0; part < 8 / bits; part++) {
        const uint8_t *held = sums + (size_t)part * 2 * UNIT_BYTES;
        low[part] = first ? zero() : load(held);
        high[part] = first ? zero() : load(held + VEC_BYTES);
    }
    for (uint32_t k = 0; k < count; k += per_byte) {
        look_up_narrow(bits, narrow, values, k, count - k < per_byte ? count : k + per_byte, at, lut);
        for (uint32_t part = 0; part < 8 / bits; part++) {
            low[part] = add_u16(low[part], low_u16(narrow[part]));
            high[part] = add_u16(high[part], high_u16(narrow[part]));
        }
    }
    for (uint32_t part = 0; part < 8 / bits; part++, sums += (size_t)2 * UNIT_BYTES) {
        store(sums, low[part]);
        store(sums + VEC_BYTES, high[part]);
    }
}

static ALWAYS_INLINE void look_up(uint32_t bits, bool wide, bool first, uint8_t *accumulator,
                                  const void *const *values, uint32_t count, uint32_t units,
                                  const uint8_t *table)
{
    const uint32_t sum_bytes = wide ? 2 : 1, per_byte = wide ? values_per_byte(bits, table, count) : count;
    const struct lut lut = lut_of(bits, table);

    for (uint32_t unit = 0; unit < units; unit++, accumulator += 8 / bits * sum_bytes * UNIT_BYTES)
        for (uint32_t j = 0; j < UNIT_BYTES; j += VEC_BYTES) {
            size_t at = (size_t)unit * UNIT_BYTES + j;
            if (wide)
                look_up_u16(bits, first, accumulator + (size_t)j * 2, values, count, per_byte, at, &lut);
            else
                look_up_u8(bits, first, accumulator + j, values, count, at, &lut);
        }
}

/* ---- The rows. ---- */

#define ROW(name, kernel, ...)                                                                               \
    static void name(void *accumulator, const void *value, uint32_t units, const uint8_t *table)             \
    {                                                                                                        \
        kernel(__VA_ARGS__, false, accumulator, &value, 1, units, table);                                    \
    }                                                                                                        \
    static void first_##name(void *accumulator, const void *value, uint32_t units, const uint8_t *table)     \
    {                                                                                                        \
        kernel(__VA_ARGS__, true, accumulator, &value, 1, units, table);                                     \
    }                                                                                                        \
    static void many_##name(void *accumulator, const void *const *values, uint32_t count, uint32_t units,    \
                            const uint8_t *table)                                                            \
    {                                                                                                        \
        kernel(__VA_ARGS__, false, accumulator, values, count, units, table);                                \
    }                                                                                                        \
    static void first_many_##name(void *accumulator, const void *const *values, uint32_t count,              \
                                  uint32_t units, const uint8_t *table)                                      \
    {                                                                                                        \
        kernel(__VA_ARGS__, true, accumulator, values, count, units, table);                                 \
    }

ROW(sum_i32, combine_elements, I32)
ROW(sum_f32, combine_elements, F32)
ROW(max_f32, combine_elements, MAX_F32)
ROW(or_u32, combine_elements, OR_U32)
ROW(sum_f16, combine_elements, F16)
ROW(sum_bf16, combine_elements, BF16)
ROW(lut4_u8, look_up, 4, false)
ROW(lut4_u16, look_up, 4, true)
ROW(lut2_u8, look_up, 2, false)
ROW(lut2_u16, look_up, 2, true)
ROW(lut8_u16, look_up, 8, true)
#undef ROW

const struct psc_op_row PSC_VARIANT_ROWS[PSC_OP_COUNT] = PSC_OP_ROWS;
