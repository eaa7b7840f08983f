/* The reference variant: one block as docs/thc.md says it, for any instruction set and any size of block. */
#include <string.h>

#include "variants.h"

static bool runs_anywhere(void)
{
    return true;
}

static float value_of(const struct psc_thc_input *input, uint32_t c)
{
    return input->residual ? input->grad[c] + input->residual[c] * input->loss_scale : input->grad[c];
}

float psc_fold(float sums[PARTIAL_SUMS])
{
    for (uint32_t width = PARTIAL_SUMS / 2; width > 0; width /= 2)
        for (uint32_t j = 0; j < width; j++)
            sums[j] += sums[j + width];
    return sums[0];
}

static float sum_of_squares(const struct psc_thc_input *input, uint32_t count)
{
    float sums[PARTIAL_SUMS] = {0};
    for (uint32_t c = 0; c < count; c++) {
        float x = value_of(input, c);
        sums[c % PARTIAL_SUMS] += x * x;
    }
    return psc_fold(sums);
}

static uint32_t largest(const struct psc_thc_input *input, uint32_t count)
{
    uint32_t most = 0;
    for (uint32_t c = 0; c < count; c++) {
        float x = value_of(input, c);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}

void psc_philox(const struct psc_thc_job *job, const uint32_t counter[4], uint32_t words[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t product0 = (uint64_t)PHILOX_M0 * c0, product1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ job->key[round][0];
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ job->key[round][1];
        c3 = (uint32_t)product0;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

static void draw(const struct psc_thc_block *block, uint32_t q, uint32_t stream, uint32_t words[4])
{
    const uint32_t counter[4] = {q, block->chunk, block->sequence, stream};
    psc_philox(block->job, counter, words);
}

static void draw_signs(const struct psc_thc_block *block, uint32_t *signs)
{
    uint32_t states = (block->size + GROUP - 1) / GROUP;
    for (uint32_t i = 0; i < states; i++)
        draw(block, block->first / GROUP + i, STREAM_SIGNS, signs + 4 * i);
}

/* 16 bits for each coordinate. */
static void draw_halves(const struct psc_thc_block *block, uint32_t stream, uint16_t *halves)
{
    for (uint32_t group = 0; group < block->size; group += GROUP)
        for (uint32_t lane = 0; lane < 16; lane++) {
            uint32_t words[4];
            draw(block, 16 * ((block->first + group) / GROUP) + lane, stream, words);
            for (uint32_t i = 0; i < 4; i++) {
                halves[group + 16 * i + lane] = (uint16_t)words[i];
                halves[group + 64 + 16 * i + lane] = (uint16_t)(words[i] >> 16);
            }
        }
}

static float flipped(float value, const uint32_t *signs, uint32_t c)
{
    return signs[c / 32] >> c % 32 & 1 ? -value : value;
}

static void rotate(float *y, uint32_t size)
{
    for (uint32_t h = 1; h < size; h *= 2)
        for (uint32_t i = 0; i < size; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                float low = y[j], high = y[j + h];
                y[j] = low + high;
                y[j + h] = low - high;
            }
}

static void coordinates(const struct psc_thc_block *block, const struct psc_thc_input *input, float gain,
                        float *y)
{
    bool turn = block->job->settings.rotate;
    for (uint32_t c = 0; c < block->count; c++) {
        y[c] = value_of(input, c) * gain;
        if (turn)
            y[c] = flipped(y[c], block->signs, c);
    }
    for (uint32_t c = block->count; c < block->size; c++)
        y[c] = turn ? flipped(0.0f, block->signs, c) : 0.0f;
    if (turn)
        rotate(y, block->size);
}

static uint32_t index_of(const struct psc_thc_job *job, float y, float u)
{
    float pos = (y + job->settings.t) * job->s_pos;
    pos = pos > 0.0f ? pos : 0.0f;
    pos = pos < job->g_f32 ? pos : job->g_f32;
    uint32_t k = job->cell_index[(uint32_t)pos];
    return u * job->step_f32[k] < pos - job->level_f32[k] ? k + 1 : k;
}

static void make_indices(const struct psc_thc_block *block, uint32_t rank, const float *y, uint8_t *indices)
{
    const struct psc_thc_job *job = block->job;
    uint32_t n = job->settings.n;
    bool stratified = job->settings.rounding == PSC_THC_STRATIFIED;
    bool one_stream = job->settings.rounding == PSC_THC_SHARED;
    uint16_t own[BLOCK], strata[BLOCK];
    draw_halves(block, STREAM_PRIVATE + (one_stream ? 0 : rank), own);
    if (stratified)
        draw_halves(block, STREAM_STRATA, strata);
    for (uint32_t c = 0; c < block->size; c++) {
        uint32_t v = own[c];
        if (stratified)
            v += 65536 * (uint32_t)((rank + ((uint64_t)strata[c] * n >> 16)) % n);
        indices[c] = (uint8_t)index_of(job, y[c], ((float)v + 0.5f) * job->draw_unit);
    }
}

static void pack(const struct psc_thc_block *block, const uint8_t *indices, uint8_t *packed)
{
    uint32_t wire_bits = block->job->wire_bits, parts = 8 / wire_bits;
    for (uint32_t unit = 0; unit < block->size; unit += block->job->unit)
        for (uint32_t j = 0; j < 64; j++) {
            uint32_t byte = 0;
            for (uint32_t i = 0; i < parts; i++)
                byte |= (uint32_t)indices[unit + 64 * i + j] << wire_bits * i;
            *packed++ = (uint8_t)byte;
        }
}

/* y: half steps from the middle of the range -> values. */
static void values_of(const struct psc_thc_block *block, float coef, float *y)
{
    bool turn = block->job->settings.rotate;
    if (turn)
        rotate(y, block->size);
    for (uint32_t c = 0; c < block->count; c++) {
        y[c] *= coef;
        if (turn)
            y[c] = flipped(y[c], block->signs, c);
    }
}

static void encode(const struct psc_thc_block *block, const struct psc_thc_input *input,
                   const struct psc_thc_encoding *encoding)
{
    float y[BLOCK];
    uint8_t indices[BLOCK];
    coordinates(block, input, encoding->gain, y);
    make_indices(block, encoding->rank, y, indices);
    pack(block, indices, encoding->packed);
    if (!encoding->residual_out)
        return;
    for (uint32_t c = 0; c < block->size; c++)
        y[c] = (float)(2 * block->job->level[indices[c]] - (int32_t)block->job->g);
    values_of(block, encoding->coef, y);
    for (uint32_t c = 0; c < block->count; c++)
        encoding->residual_out[c] = (value_of(input, c) - y[c]) * (1.0f / input->loss_scale);
}

static void decode_u8(const struct psc_thc_block *block, const uint8_t *sums, float bias, float coef,
                      bool stream, float *values)
{
    (void)stream;
    float y[BLOCK];
    for (uint32_t c = 0; c < block->size; c++)
        y[c] = 2.0f * (float)sums[c] - bias; /* exact: integers below 2^24 */
    values_of(block, coef, y);
    memcpy(values, y, block->count * sizeof *y);
}

static void decode_u16(const struct psc_thc_block *block, const uint16_t *sums, float bias, float coef,
                       bool stream, float *values)
{
    (void)stream;
    float y[BLOCK];
    for (uint32_t c = 0; c < block->size; c++)
        y[c] = 2.0f * (float)sums[c] - bias;
    values_of(block, coef, y);
    memcpy(values, y, block->count * sizeof *y);
}

const struct psc_kernels_variant psc_kernels_scalar = {
    .name = "scalar",
    .runs_here = runs_anywhere,
    .sum_of_squares = sum_of_squares,
    .largest = largest,
    .draw_signs = draw_signs,
    .encode = encode,
    .decode_u8 = decode_u8,
    .decode_u16 = decode_u16,
};
