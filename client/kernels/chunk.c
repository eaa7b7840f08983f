/* Chunks and tensors: cuts them into blocks, decides what a scale says, and hands each block to the variant
 * in use. Steps of the story: "encode", "decode". */
#include <math.h>
#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "ieee.h"
#include "variants.h"

/* Below it squares have lost bits, and a norm counts as 0. */
#define SMALL 0x1p-100f
/* From here a chunk's values are written past the cache: they are next read when the whole tensor has come.
 */
#define STREAM_MIN_ELEMS (16 * 1024)

/* What was written past the cache is visible to other threads before the caller says so. */
static void fence(void)
{
#ifdef __SSE__
    _mm_sfence();
#endif
}

static float f32_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static struct psc_thc_input input_at(const struct psc_thc_input *input, uint64_t c)
{
    return (struct psc_thc_input){input->grad + c, input->residual ? input->residual + c : NULL,
                                  input->loss_scale};
}

/* 2^exponent as two factors that float32 has. */
static void power(int exponent, float factor[2])
{
    int first = exponent < -126 ? -126 : exponent > 127 ? 127 : exponent;
    factor[0] = ldexpf(1.0f, first);
    factor[1] = ldexpf(1.0f, exponent - first);
}

/* The l2 norm of a block whose squares overflow or vanish: of the block times 2^-e, where its largest is in
 * [1/2, 1). */
static float careful_norm(const struct psc_thc_input *input, uint32_t count)
{
    float most = f32_of(psc_kernels_scalar.largest(input, count));
    if (most == 0 || !isfinite(most))
        return most;
    int e;
    (void)frexpf(most, &e);
    float down[2], up[2], sums[PARTIAL_SUMS] = {0};
    power(-e, down);
    power(e, up);
    for (uint32_t c = 0; c < count; c++) {
        float x = input->grad[c];
        if (input->residual)
            x = x + input->residual[c] * input->loss_scale;
        x = x * down[0] * down[1];
        sums[c % PARTIAL_SUMS] += x * x;
    }
    return sqrtf(psc_fold(sums)) * up[0] * up[1];
}

static float norm_of(const struct psc_thc_job *job, const struct psc_thc_input *input, uint32_t count)
{
    const struct psc_kernels_variant *variant = count == BLOCK ? psc_kernels_current() : &psc_kernels_scalar;
    float norm;
    if (job->settings.norm == PSC_THC_MAX) {
        norm = f32_of(variant->largest(input, count));
    } else {
        float squares = variant->sum_of_squares(input, count);
        norm = squares >= SMALL && isfinite(squares) ? sqrtf(squares) : careful_norm(input, count);
    }
    return norm < SMALL ? 0.0f : norm;
}

void psc_thc_norms(const struct psc_thc_job *job, const float *grad, const float *residual, float loss_scale,
                   uint64_t elems, float *norms)
{
    unsigned saved = psc_begin_ieee();
    const struct psc_thc_input all = {grad, residual, loss_scale};
    for (uint64_t c = 0; c < elems; c += BLOCK) {
        struct psc_thc_input input = input_at(&all, c);
        norms[c / BLOCK] = norm_of(job, &input, elems - c < BLOCK ? (uint32_t)(elems - c) : BLOCK);
    }
    psc_end_ieee(saved);
}

float psc_thc_tensor_norm(const struct psc_thc_job *job, const float *block_norms, uint32_t blocks)
{
    unsigned saved = psc_begin_ieee();
    const struct psc_thc_input input = {block_norms, NULL, 1};
    float norm = norm_of(job, &input, blocks);
    psc_end_ieee(saved);
    return norm;
}

static float kappa_of(const struct psc_thc_chunk *chunk, uint32_t size)
{
    const struct psc_thc_settings *s = &chunk->job->settings;
    if (!s->scale_per_tensor || !s->rotate)
        return 1.0f;
    return (float)sqrt((double)chunk->tensor_coordinates / size);
}

/* What a decoded half step is worth. */
static float coef_of(const struct psc_thc_chunk *chunk, float scale, uint32_t size)
{
    const struct psc_thc_job *job = chunk->job;
    float reach = scale * job->half_inc;
    if (job->settings.rotate)
        reach = reach / (kappa_of(chunk, size) * (float)size);
    return reach * job->settings.debias;
}

struct cut {
    struct psc_thc_block block;
    const struct psc_kernels_variant *variant;
    uint32_t signs[SIGN_WORDS];
};

/* The block that begins at value `first` of `elems`. Only the last one is short, and the scalar variant's. */
static void cut_block(const struct psc_thc_chunk *chunk, uint64_t first, uint64_t elems, struct cut *cut)
{
    const struct psc_thc_job *job = chunk->job;
    bool whole = elems - first >= BLOCK;
    uint32_t count = whole ? BLOCK : (uint32_t)(elems - first);
    cut->variant = whole && job->vectors ? psc_kernels_current() : &psc_kernels_scalar;
    cut->block = (struct psc_thc_block){
        .job = job,
        .signs = job->fixed_signs,
        .sequence = chunk->sequence,
        .chunk = chunk->chunk,
        .first = (uint32_t)first,
        .count = count,
        .size = (uint32_t)psc_thc_coordinates(job, count),
    };
    if (job->settings.rotate && job->settings.fresh_rotation) {
        cut->variant->draw_signs(&cut->block, cut->signs);
        cut->block.signs = cut->signs;
    }
}

/* A scale of 0, Inf or NaN: nothing is sent, and the residual is x, or stays. */
static void encode_nothing(const struct psc_thc_block *block, const struct psc_thc_input *input, float scale,
                           float *residual_out, uint8_t *packed)
{
    memset(packed, 0, block->size * block->job->wire_bits / 8);
    if (!residual_out)
        return;
    for (uint32_t c = 0; c < block->count; c++) {
        float old = input->residual ? input->residual[c] : 0.0f;
        if (scale == 0) {
            float x = input->residual ? input->grad[c] + old * input->loss_scale : input->grad[c];
            residual_out[c] = x * (1.0f / input->loss_scale);
        } else {
            residual_out[c] = old;
        }
    }
}

void psc_thc_encode(const struct psc_thc_chunk *chunk, uint32_t rank, const float *grad,
                    const float *residual, float *residual_out, float loss_scale, uint64_t elems,
                    const float *scales, uint8_t *packed)
{
    unsigned saved = psc_begin_ieee();
    const struct psc_thc_input all = {grad, residual, loss_scale};
    struct cut cut;
    for (uint64_t c = 0; c < elems; c += BLOCK) {
        float scale = scales[c / BLOCK];
        struct psc_thc_input input = input_at(&all, c);
        float *missed = residual_out ? residual_out + c : NULL;
        cut_block(chunk, c, elems, &cut);
        uint32_t size = cut.block.size;
        if (scale == 0 || !isfinite(scale)) {
            encode_nothing(&cut.block, &input, scale, missed, packed);
        } else {
            const struct psc_thc_encoding encoding = {
                .rank = rank,
                .gain = kappa_of(chunk, size) / scale,
                .coef = coef_of(chunk, scale, size),
                .residual_out = missed,
                .stream = elems >= STREAM_MIN_ELEMS,
                .packed = packed,
            };
            cut.variant->encode(&cut.block, &input, &encoding);
        }
        packed += size * chunk->job->wire_bits / 8;
    }
    fence();
    psc_end_ieee(saved);
}

/* One loop for both widths: the compiler makes two of it. */
static inline __attribute__((always_inline)) void decode(const struct psc_thc_chunk *chunk,
                                                         uint32_t contributors, const uint8_t *u8,
                                                         const uint16_t *u16, uint64_t elems,
                                                         const float *scales, float *values)
{
    unsigned saved = psc_begin_ieee();
    float bias = (float)(contributors * chunk->job->g);
    bool stream = elems >= STREAM_MIN_ELEMS;
    struct cut cut;
    for (uint64_t c = 0; c < elems; c += BLOCK) {
        float scale = scales[c / BLOCK];
        cut_block(chunk, c, elems, &cut);
        if (scale == 0 || !isfinite(scale)) {
            for (uint32_t i = 0; i < cut.block.count; i++)
                values[c + i] = scale;
            continue;
        }
        float coef = coef_of(chunk, scale, cut.block.size);
        if (u8)
            cut.variant->decode_u8(&cut.block, u8 + c, bias, coef, stream, values + c);
        else
            cut.variant->decode_u16(&cut.block, u16 + c, bias, coef, stream, values + c);
    }
    fence();
    psc_end_ieee(saved);
}

void psc_thc_decode_u8(const struct psc_thc_chunk *chunk, uint32_t contributors, const uint8_t *sums,
                       uint64_t elems, const float *scales, float *values)
{
    decode(chunk, contributors, sums, NULL, elems, scales, values);
}

void psc_thc_decode_u16(const struct psc_thc_chunk *chunk, uint32_t contributors, const uint16_t *sums,
                        uint64_t elems, const float *scales, float *values)
{
    decode(chunk, contributors, NULL, sums, elems, scales, values);
}
