/* The work on one whole block for vectors of LANES floats, private to this room: text of each vector variant,
 * like draws.h.
 *
 * Everything of a block stays in registers and some 10 KiB of first-level cache.
 * Encode: load, scale, flip, rotate -> y; draw, round -> indices; pack.
 * Decode: sums less their middle, rotate, scale, flip -> values. Error feedback sends the indices' own table
 * values that way, and takes what comes out from x -> residual. */
#include "draws.h"

/* ---- Rotation ---- */

/* One level between whole vectors, h apart. */
ALWAYS_INLINE void level(vf *a, uint32_t count, uint32_t h)
{
    UNROLLED
    for (uint32_t i = 0; i < count / 2; i++) {
        uint32_t j = i + (i & ~(h - 1));
        vf low = a[j], high = a[j + h];
        a[j] = low + high;
        a[j + h] = low - high;
    }
}

/* All levels between `count` vectors, 4 or 8. */
ALWAYS_INLINE void levels(vf *a, uint32_t count)
{
    level(a, count, 1);
    level(a, count, 2);
    if (count == 8)
        level(a, count, 4);
}

/* Levels between `count` vectors that lie `stride` vectors apart, all of y. */
ALWAYS_INLINE void pass(float *y, uint32_t stride, uint32_t count)
{
    for (uint32_t base = 0; base < VECTORS; base += stride * count)
        for (uint32_t v = base; v < base + stride; v++) {
            vf a[AT_ONCE];
            UNROLLED
            for (uint32_t i = 0; i < count; i++)
                a[i] = vf_load(y + (v + i * stride) * LANES);
            levels(a, count);
            UNROLLED
            for (uint32_t i = 0; i < count; i++)
                vf_store(y + (v + i * stride) * LANES, a[i]);
        }
}

/* ---- Encode ---- */

ALWAYS_INLINE vf x_at(const struct psc_thc_input *input, uint32_t c, vf loss_scale, bool with_residual)
{
    vf x = vf_load(input->grad + c);
    if (with_residual)
        x = x + vf_load(input->residual + c) * loss_scale;
    return x;
}

ALWAYS_INLINE void coordinates(const struct psc_thc_block *block, const struct psc_thc_input *input,
                               float gain, bool turn, bool with_residual, float *y)
{
    const vf gains = vf_all(gain), loss_scale = vf_all(input->loss_scale);
    for (uint32_t v = 0; v < VECTORS; v += AT_ONCE) {
        vf a[AT_ONCE];
        UNROLLED
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            a[i] = x_at(input, (v + i) * LANES, loss_scale, with_residual) * gains;
            if (turn)
                a[i] = lane_levels(vf_flip(a[i], block->signs, v + i));
        }
        if (turn)
            levels(a, AT_ONCE);
        UNROLLED
        for (uint32_t i = 0; i < AT_ONCE; i++)
            vf_store(y + (v + i) * LANES, a[i]);
    }
    if (turn) {
        if (MIDDLE > 1)
            pass(y, AT_ONCE, MIDDLE);
        pass(y, AT_ONCE * MIDDLE, LAST);
    }
}

struct rounding {
    struct tables tables;
    vf t, s_pos, g, unit, half_unit;
    vi n, rank;
};

/* Step 5 of "Encode": the index of a coordinate y with its draw v. */
ALWAYS_INLINE vi index_of(const struct rounding *r, vf y, vi v, enum cells cells, bool wide_v)
{
    vf pos = vf_min(vf_max((y + r->t) * r->s_pos, vf_all(0)), r->g);
    vi k;
    vf level, step;
    look_up(&r->tables, vf_to_cell(pos), cells, &k, &level, &step);
    /* (v + 1/2) * unit in one rounding is the same where v + 1/2 is exact, below 2^23. */
    vf u = vf_fma(vi_to_vf(v), r->unit, r->half_unit);
    if (wide_v)
        u = (vi_to_vf(v) + vf_all(0.5f)) * r->unit;
    return vi_add_if_less(k, u * step, pos - level);
}

struct streams {
    struct uniform uniform;
    uint32_t own;
};

/* Indices of 128 coordinates. */
ALWAYS_INLINE void round_group(const struct psc_thc_job *job, const struct streams *streams, uint32_t q,
                               const struct rounding *r, const float *y, enum cells cells, bool stratified,
                               bool wide_v, uint8_t *indices)
{
    struct begun begun[HALVES];
    vi own[4 * PER_WORD], strata[4 * PER_WORD], low[PER_HALF], high[PER_HALF];
    UNROLLED
    for (uint32_t i = 0; i < HALVES; i++)
        begun[i] = philox_begin(counters(i / 2 * LANES + i % 2, 2) + vi_all(q), &streams->uniform);
    draw_words(job, &streams->uniform, streams->own, begun, own);
    if (stratified)
        draw_words(job, &streams->uniform, STREAM_STRATA, begun, strata);
    UNROLLED
    for (uint32_t i = 0; i < 4 * PER_WORD; i++) {
        vi v_low = own[i] & vi_all(0xffff), v_high = vi_right(own[i], 16);
        if (stratified) {
            /* Both halves of a word at once: (rank + (shared * n >> 16)) mod n, where an unsigned minimum is
             * the mod. */
            vi stratum = v16_add(v16_mul_high(strata[i], r->n), r->rank);
            stratum = v16_min(stratum, v16_sub(stratum, r->n));
            v_low = vi_halves(vi_left(stratum, 16), own[i]);
            v_high = vi_halves(stratum, vi_right(own[i], 16));
        }
        low[i] = index_of(r, vf_load(y + i * LANES), v_low, cells, wide_v);
        high[i] = index_of(r, vf_load(y + 64 + i * LANES), v_high, cells, wide_v);
    }
    UNROLLED
    for (uint32_t i = 0; i < PER_HALF; i += 4) {
        store_bytes(indices + i * LANES, low + i);
        store_bytes(indices + 64 + i * LANES, high + i);
    }
}

ALWAYS_INLINE void round_block(const struct psc_thc_block *block, uint32_t rank, const float *y,
                               enum cells cells, bool stratified, bool wide_v, uint8_t *indices)
{
    const struct psc_thc_job *job = block->job;
    const struct streams streams = {
        .uniform = uniform_of(block),
        .own = STREAM_PRIVATE + (job->settings.rounding == PSC_THC_SHARED ? 0 : rank),
    };
    struct rounding r = {
        .t = vf_all(job->settings.t),
        .s_pos = vf_all(job->s_pos),
        .g = vf_all(job->g_f32),
        .unit = vf_all(job->draw_unit),
        .half_unit = vf_all(job->draw_unit / 2),
        .n = vi_all(job->settings.n * 0x10001u),
        .rank = vi_all(rank * 0x10001u),
    };
    load_tables(job, &r.tables);
    for (uint32_t c = 0; c < BLOCK; c += GROUP)
        round_group(job, &streams, 16 * ((block->first + c) / GROUP), &r, y + c, cells, stratified, wide_v,
                    indices + c);
}

/* The largest n for which v + 1/2 is exact. */
#define NARROW_N 128

static void make_indices(const struct psc_thc_block *block, uint32_t rank, const float *y, uint8_t *indices)
{
    const struct psc_thc_job *job = block->job;
    bool stratified = job->settings.rounding == PSC_THC_STRATIFIED;
    enum cells cells = job->wire_bits == 8 ? CELLS_WIDE : job->g < FEW ? CELLS_FEW : CELLS_MANY;
    if (stratified && job->settings.n > NARROW_N)
        round_block(block, rank, y, CELLS_WIDE, true, true, indices);
    else if (stratified && cells == CELLS_FEW)
        round_block(block, rank, y, CELLS_FEW, true, false, indices);
    else if (stratified && cells == CELLS_MANY)
        round_block(block, rank, y, CELLS_MANY, true, false, indices);
    else if (stratified)
        round_block(block, rank, y, CELLS_WIDE, true, false, indices);
    else if (cells == CELLS_FEW)
        round_block(block, rank, y, CELLS_FEW, false, false, indices);
    else if (cells == CELLS_MANY)
        round_block(block, rank, y, CELLS_MANY, false, false, indices);
    else
        round_block(block, rank, y, CELLS_WIDE, false, false, indices);
}

enum { BYTES = 4 * LANES };

static void pack(const struct psc_thc_job *job, const uint8_t *indices, uint8_t *packed)
{
    for (uint32_t unit = 0; unit < BLOCK; unit += job->unit)
        for (uint32_t j = 0; j < 64; j += BYTES, packed += BYTES) {
            const uint8_t *at = indices + unit + j;
            vi bytes = vi_load(at);
            if (job->wire_bits == 4)
                bytes |= vi_left(vi_load(at + 64), 4); /* indices below 16: no bit reaches the next byte */
            if (job->wire_bits == 2)
                bytes |= vi_left(vi_load(at + 64), 2) | vi_left(vi_load(at + 128), 4) |
                         vi_left(vi_load(at + 192), 6);
            vi_store(packed, bytes);
        }
}

/* ---- Decode, and the own values of error feedback ---- */

enum finish { VALUES, VALUES_STREAMED, RESIDUAL, RESIDUAL_STREAMED };

/* Where the coordinates of a block go when they have been rotated back. */
struct way_out {
    const uint32_t *signs; /* NULL: not rotated */
    float coef;
    float *out;
    const struct psc_thc_input *input; /* for the residual */
};

ALWAYS_INLINE void finish_vector(const struct way_out *way, enum finish finish, bool turn, uint32_t v, vf w)
{
    vf value = w * vf_all(way->coef);
    if (turn)
        value = vf_flip(value, way->signs, v);
    if (finish == RESIDUAL || finish == RESIDUAL_STREAMED) {
        const struct psc_thc_input *input = way->input;
        vf x = x_at(input, v * LANES, vf_all(input->loss_scale), input->residual != NULL);
        value = (x - value) * vf_all(1.0f / input->loss_scale);
    }
    if (finish == VALUES || finish == RESIDUAL)
        vf_store(way->out + v * LANES, value);
    else
        vf_stream(way->out + v * LANES, value);
}

ALWAYS_INLINE void finish_block(const struct way_out *way, enum finish finish, float *y)
{
    if (MIDDLE > 1)
        pass(y, AT_ONCE, MIDDLE);
    for (uint32_t v = 0; v < VECTORS / LAST; v++) {
        vf a[LAST];
        UNROLLED
        for (uint32_t i = 0; i < LAST; i++)
            a[i] = vf_load(y + (v + i * (VECTORS / LAST)) * LANES);
        levels(a, LAST);
        UNROLLED
        for (uint32_t i = 0; i < LAST; i++)
            finish_vector(way, finish, true, v + i * (VECTORS / LAST), a[i]);
    }
}

/* From u8 sums. Every intermediate is an integer below 2^24: the first levels are exact in whatever
 * arithmetic. */
ALWAYS_INLINE void back_u8(const struct way_out *way, enum finish finish, const uint8_t *sums, float bias)
{
    float y[BLOCK] __attribute__((aligned(64)));
    const struct u8_lanes lanes = u8_lanes_of(bias);
    for (uint32_t v = 0; v < VECTORS; v += AT_ONCE) {
        vf a[AT_ONCE];
        UNROLLED
        for (uint32_t i = 0; i < AT_ONCE; i++)
            a[i] = u8_lane_levels(&lanes, sums + (v + i) * LANES);
        levels(a, AT_ONCE);
        UNROLLED
        for (uint32_t i = 0; i < AT_ONCE; i++)
            vf_store(y + (v + i) * LANES, a[i]);
    }
    finish_block(way, finish, y);
}

ALWAYS_INLINE void back_u16(const struct way_out *way, enum finish finish, const uint16_t *sums, float bias)
{
    float y[BLOCK] __attribute__((aligned(64)));
    for (uint32_t v = 0; v < VECTORS; v += AT_ONCE) {
        vf a[AT_ONCE];
        UNROLLED
        for (uint32_t i = 0; i < AT_ONCE; i++)
            a[i] = lane_levels(vf_fma(u16_load(sums + (v + i) * LANES), vf_all(2), vf_all(-bias)));
        levels(a, AT_ONCE);
        UNROLLED
        for (uint32_t i = 0; i < AT_ONCE; i++)
            vf_store(y + (v + i) * LANES, a[i]);
    }
    finish_block(way, finish, y);
}

/* Without rotation there is nothing to keep: one pass. */
ALWAYS_INLINE void straight(const struct way_out *way, enum finish finish, const uint8_t *u8,
                            const uint16_t *u16, float bias)
{
    for (uint32_t v = 0; v < VECTORS; v++) {
        vf s = u8 ? u8_load(u8 + v * LANES) : u16_load(u16 + v * LANES);
        finish_vector(way, finish, false, v, vf_fma(s, vf_all(2), vf_all(-bias)));
    }
}

static bool may_stream(const float *out)
{
    return (uintptr_t)out % (LANES * sizeof(float)) == 0;
}

static void make_residual(const struct psc_thc_block *block, const struct psc_thc_input *input,
                          const struct psc_thc_encoding *encoding, const uint8_t *indices)
{
    const struct psc_thc_job *job = block->job;
    uint8_t level[BLOCK] __attribute__((aligned(64)));
    const struct way_out way = {block->signs, encoding->coef, encoding->residual_out, input};
    look_up_levels(job, indices, level);
    if (!job->settings.rotate)
        straight(&way, RESIDUAL, level, NULL, job->g_f32);
    else if (encoding->stream && may_stream(way.out))
        back_u8(&way, RESIDUAL_STREAMED, level, job->g_f32);
    else
        back_u8(&way, RESIDUAL, level, job->g_f32);
}

static void encode(const struct psc_thc_block *block, const struct psc_thc_input *input,
                   const struct psc_thc_encoding *encoding)
{
    float y[BLOCK] __attribute__((aligned(64)));
    uint8_t indices[BLOCK] __attribute__((aligned(64)));
    bool turn = block->job->settings.rotate;
    if (turn && input->residual)
        coordinates(block, input, encoding->gain, true, true, y);
    else if (turn)
        coordinates(block, input, encoding->gain, true, false, y);
    else
        coordinates(block, input, encoding->gain, false, input->residual != NULL, y);
    make_indices(block, encoding->rank, y, indices);
    pack(block->job, indices, encoding->packed);
    if (encoding->residual_out)
        make_residual(block, input, encoding, indices);
}

static void decode_u8(const struct psc_thc_block *block, const uint8_t *sums, float bias, float coef,
                      bool stream, float *values)
{
    const struct way_out way = {block->signs, coef, values, NULL};
    if (!block->job->settings.rotate)
        straight(&way, VALUES, sums, NULL, bias);
    else if (stream && may_stream(values))
        back_u8(&way, VALUES_STREAMED, sums, bias);
    else
        back_u8(&way, VALUES, sums, bias);
}

static void decode_u16(const struct psc_thc_block *block, const uint16_t *sums, float bias, float coef,
                       bool stream, float *values)
{
    const struct way_out way = {block->signs, coef, values, NULL};
    if (!block->job->settings.rotate)
        straight(&way, VALUES, NULL, sums, bias);
    else if (stream && may_stream(values))
        back_u16(&way, VALUES_STREAMED, sums, bias);
    else
        back_u16(&way, VALUES, sums, bias);
}

const struct psc_kernels_variant VARIANT = {
    .name = VARIANT_NAME,
    .runs_here = runs_here,
    .sum_of_squares = psc_sum_of_squares_avx2,
    .largest = psc_largest_avx2,
    .draw_signs = draw_signs,
    .encode = encode,
    .decode_u8 = decode_u8,
    .decode_u16 = decode_u16,
};
