/* The AVX-512 variant, for CPUs that also have VBMI (byte tables) and VNNI (Ice Lake, Zen 4 and later). The
 * pragma, not a flag of the whole file, so that nothing from a header is ever compiled to instructions that
 * the CPU may lack. */
#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

#include "variants.h"

static bool runs_here(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma")

#define VARIANT      psc_kernels_avx512
#define VARIANT_NAME "avx512"
#define VECTOR_OP    static inline __attribute__((always_inline))

/* MIDDLE and LAST: vectors at once in the passes that follow the first 8 * 16 coordinates. */
enum { LANES = 16, MIDDLE = 1, LAST = 8 };

typedef __m512 vf;
typedef __m512i vi;

VECTOR_OP vf vf_load(const float *at)
{
    return _mm512_loadu_ps(at);
}
VECTOR_OP void vf_store(float *at, vf a)
{
    _mm512_storeu_ps(at, a);
}
VECTOR_OP void vf_stream(float *at, vf a)
{
    _mm512_stream_ps(at, a);
}
VECTOR_OP vf vf_all(float a)
{
    return _mm512_set1_ps(a);
}
VECTOR_OP vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
VECTOR_OP vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
VECTOR_OP vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
VECTOR_OP vi vf_to_cell(vf a)
{
    return _mm512_cvttps_epi32(a);
}
VECTOR_OP vf vi_to_vf(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
VECTOR_OP vi vi_load(const void *at)
{
    return _mm512_loadu_si512(at);
}
VECTOR_OP void vi_store(void *at, vi a)
{
    _mm512_storeu_si512(at, a);
}
VECTOR_OP vi vi_all(uint32_t a)
{
    return _mm512_set1_epi32((int)a);
}
VECTOR_OP vi vi_left(vi a, unsigned bits)
{
    return _mm512_slli_epi32(a, bits);
}
VECTOR_OP vi vi_right(vi a, unsigned bits)
{
    return _mm512_srli_epi32(a, bits);
}
VECTOR_OP vi vi_xor3(vi a, vi b, vi c)
{
    return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}
/* Upper half of each 32 bits from a, lower from b. */
VECTOR_OP vi vi_halves(vi a, vi b)
{
    return _mm512_ternarylogic_epi32(vi_all(0xffff0000u), a, b, 0xca);
}
VECTOR_OP vi vi_add_if_less(vi k, vf a, vf b)
{
    return _mm512_mask_add_epi32(k, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), k, vi_all(1));
}
VECTOR_OP vi v16_add(vi a, vi b)
{
    return _mm512_add_epi16(a, b);
}
VECTOR_OP vi v16_sub(vi a, vi b)
{
    return _mm512_sub_epi16(a, b);
}
VECTOR_OP vi v16_min(vi a, vi b)
{
    return _mm512_min_epu16(a, b);
}
VECTOR_OP vi v16_mul_high(vi a, vi b)
{
    return _mm512_mulhi_epu16(a, b);
}
VECTOR_OP vi vl_mul(vi a, vi b)
{
    return _mm512_mul_epu32(a, b);
}
VECTOR_OP vi vl_high(vi a)
{
    return _mm512_srli_epi64(a, 32);
}
/* Lower halves of the 64-bit lanes: even from a, odd from b. */
VECTOR_OP vi vl_merge(vi a, vi b)
{
    return _mm512_mask_shuffle_epi32(a, 0xaaaa, b, _MM_PERM_CCAA);
}

/* Negate where the sign bits of vector v are 1. */
VECTOR_OP vf vf_flip(vf a, const uint32_t *signs, uint32_t v)
{
    __mmask16 mask;
    memcpy(&mask, (const char *)signs + 2 * v, 2);
    return _mm512_mask_xor_ps(a, mask, a, vf_all(-0.0f));
}

/* Levels 1, 2, 4, 8. A product with 1 or -1 is exact, so each lane is one rounded sum or difference. */
VECTOR_OP vf lane_levels(vf a)
{
    const vf by1 = _mm512_setr_ps(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    const vf by2 = _mm512_setr_ps(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
    const vf by4 = _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const vf by8 = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    a = vf_fma(a, by1, _mm512_permute_ps(a, 0xb1));
    a = vf_fma(a, by2, _mm512_permute_ps(a, 0x4e));
    a = vf_fma(a, by4, _mm512_shuffle_f32x4(a, a, 0xb1));
    return vf_fma(a, by8, _mm512_shuffle_f32x4(a, a, 0x4e));
}

/* Words 0 and 1 of eight states in a, 2 and 3 in b -> 32 words in order. */
VECTOR_OP void store_pairs(uint32_t *at, vi a, vi b)
{
    const vi low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11),
             high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    vi_store(at, _mm512_permutex2var_epi64(a, low, b));
    vi_store(at + 16, _mm512_permutex2var_epi64(a, high, b));
}

/* Low bytes of four vectors, in order. */
VECTOR_OP void store_bytes(uint8_t *at, const vi *v)
{
    const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    vi pairs0 = _mm512_packus_epi32(v[0], v[1]), pairs1 = _mm512_packus_epi32(v[2], v[3]);
    vi_store(at, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(pairs0, pairs1)));
}

/* ---- Tables ---- */

enum { FEW = 64 }; /* cells 0 .. g fit one permutation */

struct tables {
    vi index[4], level_bytes[4], step_bytes[4]; /* by cell, 64 at a time */
    vf level, step;                             /* by index */
};

VECTOR_OP void load_tables(const struct psc_thc_job *job, struct tables *tables)
{
    tables->level = vf_load(job->level_f32);
    tables->step = vf_load(job->step_f32);
    for (uint32_t i = 0; i < 4; i++) {
        tables->index[i] = vi_load(job->cell_index + 64 * i);
        tables->level_bytes[i] = vi_load(job->cell_level + 64 * i);
        tables->step_bytes[i] = vi_load(job->cell_step + 64 * i);
    }
}

/* The lowest byte of each 32-bit lane in a table of 256 bytes. */
VECTOR_OP vi byte_of(const vi table[4], vi at, __mmask64 lanes)
{
    vi low = _mm512_maskz_permutex2var_epi8(lanes, table[0], at, table[1]);
    vi high = _mm512_maskz_permutex2var_epi8(lanes, table[2], at, table[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low, high);
}

VECTOR_OP void look_up(const struct tables *tables, vi cell, enum cells cells, vi *index, vf *level, vf *step)
{
    const __mmask64 lowest = 0x1111111111111111;
    *index = cells == CELLS_FEW ? _mm512_maskz_permutexvar_epi8(lowest, cell, tables->index[0])
                                : byte_of(tables->index, cell, lowest);
    if (cells == CELLS_WIDE) {
        *level = vi_to_vf(byte_of(tables->level_bytes, cell, lowest));
        *step = vi_to_vf(byte_of(tables->step_bytes, cell, lowest));
    } else {
        *level = _mm512_permutexvar_ps(*index, tables->level);
        *step = _mm512_permutexvar_ps(*index, tables->step);
    }
}

/* Table values of a block's indices. */
VECTOR_OP void look_up_levels(const struct psc_thc_job *job, const uint8_t *indices, uint8_t *levels)
{
    vi table[4];
    for (uint32_t i = 0; i < 4; i++)
        table[i] = vi_load(job->level + 64 * i);
    for (uint32_t c = 0; c < BLOCK; c += 64) {
        vi at = vi_load(indices + c);
        vi_store(levels + c, job->wire_bits < 8 ? _mm512_permutexvar_epi8(at, table[0])
                                                : byte_of(table, at, ~(__mmask64)0));
    }
}

/* ---- Sums ---- */

VECTOR_OP vf u8_load(const uint8_t *at)
{
    return vi_to_vf(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at)));
}
VECTOR_OP vf u16_load(const uint16_t *at)
{
    return vi_to_vf(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at)));
}

/* Levels 1, 2, 4, 8 of 2 * S - bias for 16 sums as one product with a matrix of 2 and -2: four sums a step.
 */
struct u8_lanes {
    vi matrix[4], bias;
};

#define ENTRY(k, i) (__builtin_parity((k) & (i)) ? -2 : 2)
#define LANE(s, k)  ENTRY(k, 4 * s), ENTRY(k, 4 * s + 1), ENTRY(k, 4 * s + 2), ENTRY(k, 4 * s + 3)
#define STEP(s)                                                                                              \
    {                                                                                                        \
        LANE(s, 0), LANE(s, 1), LANE(s, 2), LANE(s, 3), LANE(s, 4), LANE(s, 5), LANE(s, 6), LANE(s, 7),      \
            LANE(s, 8), LANE(s, 9), LANE(s, 10), LANE(s, 11), LANE(s, 12), LANE(s, 13), LANE(s, 14),         \
            LANE(s, 15)                                                                                      \
    }

VECTOR_OP struct u8_lanes u8_lanes_of(float bias)
{
    static const int8_t matrix[4][64] __attribute__((aligned(64))) = {STEP(0), STEP(1), STEP(2), STEP(3)};
    struct u8_lanes lanes = {
        .bias = _mm512_setr_epi32(-16 * (int)bias, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)};
    for (uint32_t i = 0; i < 4; i++)
        lanes.matrix[i] = vi_load(matrix[i]);
    return lanes;
}

VECTOR_OP vf u8_lane_levels(const struct u8_lanes *lanes, const uint8_t *at)
{
    vi sum = lanes->bias;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t four;
        memcpy(&four, at + 4 * i, 4);
        sum = _mm512_dpbusd_epi32(sum, vi_all(four), lanes->matrix[i]);
    }
    return vi_to_vf(sum);
}

#include "blocks.h"

#endif
