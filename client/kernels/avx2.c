/* The AVX2 variant (Haswell, Zen and later). The pragma, not a flag of the whole file, so that nothing from a
 * header is ever compiled to instructions that the CPU may lack. */
#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

#include "variants.h"

static bool runs_here(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#pragma GCC target("avx2,fma")

#define VARIANT      psc_kernels_avx2
#define VARIANT_NAME "avx2"
#define VECTOR_OP    static inline __attribute__((always_inline))

/* MIDDLE and LAST: vectors at once in the passes that follow the first 8 * 8 coordinates. */
enum { LANES = 8, MIDDLE = 4, LAST = 4 };

typedef __m256 vf;
typedef __m256i vi;

VECTOR_OP vf vf_load(const float *at)
{
    return _mm256_loadu_ps(at);
}
VECTOR_OP void vf_store(float *at, vf a)
{
    _mm256_storeu_ps(at, a);
}
VECTOR_OP void vf_stream(float *at, vf a)
{
    _mm256_stream_ps(at, a);
}
VECTOR_OP vf vf_all(float a)
{
    return _mm256_set1_ps(a);
}
VECTOR_OP vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
VECTOR_OP vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
VECTOR_OP vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
VECTOR_OP vi vf_bits(vf a)
{
    return _mm256_castps_si256(a);
}
VECTOR_OP vf vf_of_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}
VECTOR_OP vi vf_to_cell(vf a)
{
    return _mm256_cvttps_epi32(a);
}
VECTOR_OP vf vi_to_vf(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
VECTOR_OP vi vi_load(const void *at)
{
    return _mm256_loadu_si256(at);
}
VECTOR_OP void vi_store(void *at, vi a)
{
    _mm256_storeu_si256(at, a);
}
VECTOR_OP vi vi_all(uint32_t a)
{
    return _mm256_set1_epi32((int)a);
}
VECTOR_OP vi vi_left(vi a, int bits)
{
    return _mm256_slli_epi32(a, bits);
}
VECTOR_OP vi vi_right(vi a, int bits)
{
    return _mm256_srli_epi32(a, bits);
}
VECTOR_OP vi vi_xor3(vi a, vi b, vi c)
{
    return a ^ b ^ c;
}
/* Upper half of each 32 bits from a, lower from b. */
VECTOR_OP vi vi_halves(vi a, vi b)
{
    return _mm256_blend_epi16(b, a, 0xaa);
}
VECTOR_OP vi vi_add_if_less(vi k, vf a, vf b)
{
    return _mm256_sub_epi32(k, vf_bits(_mm256_cmp_ps(a, b, _CMP_LT_OQ)));
}
VECTOR_OP vi v16_add(vi a, vi b)
{
    return _mm256_add_epi16(a, b);
}
VECTOR_OP vi v16_sub(vi a, vi b)
{
    return _mm256_sub_epi16(a, b);
}
VECTOR_OP vi v16_min(vi a, vi b)
{
    return _mm256_min_epu16(a, b);
}
VECTOR_OP vi v16_mul_high(vi a, vi b)
{
    return _mm256_mulhi_epu16(a, b);
}
VECTOR_OP vi vl_mul(vi a, vi b)
{
    return _mm256_mul_epu32(a, b);
}
VECTOR_OP vi vl_high(vi a)
{
    return _mm256_srli_epi64(a, 32);
}
/* Lower halves of the 64-bit lanes: even from a, odd from b. */
VECTOR_OP vi vl_merge(vi a, vi b)
{
    return _mm256_blend_epi32(a, _mm256_shuffle_epi32(b, 0xa0), 0xaa);
}

/* Negate where the sign bits of vector v are 1. */
VECTOR_OP vf vf_flip(vf a, const uint32_t *signs, uint32_t v)
{
    const vi to_top = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    vi bits = _mm256_sllv_epi32(vi_all(signs[v / 4] >> v % 4 * 8), to_top);
    return vf_of_bits(vf_bits(a) ^ (bits & vi_all(0x80000000u)));
}

/* Levels 1, 2, 4. A product with 1 or -1 is exact, so each lane is one rounded sum or difference. */
VECTOR_OP vf lane_levels(vf a)
{
    const vf by1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1),
             by2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
    const vf by4 = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
    a = vf_fma(a, by1, _mm256_permute_ps(a, 0xb1));
    a = vf_fma(a, by2, _mm256_permute_ps(a, 0x4e));
    return vf_fma(a, by4, _mm256_permute2f128_ps(a, a, 0x01));
}

/* Words 0 and 1 of four states in a, 2 and 3 in b -> 16 words in order. */
VECTOR_OP void store_pairs(uint32_t *at, vi a, vi b)
{
    vi even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
    vi_store(at, _mm256_permute2x128_si256(even, odd, 0x20));
    vi_store(at + 8, _mm256_permute2x128_si256(even, odd, 0x31));
}

/* Low bytes of four vectors, in order. */
VECTOR_OP void store_bytes(uint8_t *at, const vi *v)
{
    const vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    vi pairs0 = _mm256_packus_epi32(v[0], v[1]), pairs1 = _mm256_packus_epi32(v[2], v[3]);
    vi_store(at, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(pairs0, pairs1), order));
}

/* ---- Tables ---- */

enum { FEW = 32 }; /* cells 0 .. g fit two permutations of bytes */

struct tables {
    const struct psc_thc_job *job;
    vi index[2];          /* by cell, 16 at a time, in both lanes */
    vf level[2], step[2]; /* by index, 8 at a time */
};

VECTOR_OP void load_tables(const struct psc_thc_job *job, struct tables *tables)
{
    tables->job = job;
    for (uint32_t i = 0; i < 2; i++) {
        tables->index[i] =
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(job->cell_index + 16 * i)));
        tables->level[i] = vf_load(job->level_f32 + 8 * i);
        tables->step[i] = vf_load(job->step_f32 + 8 * i);
    }
}

/* Bytes of a table at each 32-bit lane. Reads up to 3 bytes beyond it, which is inside the job. */
VECTOR_OP vi gather_bytes(const uint8_t *table, vi at)
{
    return _mm256_i32gather_epi32((const int *)table, at, 1) & vi_all(0xff);
}

/* b where the sign bit of `which` is 1. */
VECTOR_OP vf vf_choose(vf a, vf b, vi which)
{
    return _mm256_blendv_ps(a, b, vf_of_bits(which));
}

VECTOR_OP void look_up(const struct tables *tables, vi cell, enum cells cells, vi *index, vf *level, vf *step)
{
    const struct psc_thc_job *job = tables->job;
    if (cells == CELLS_FEW) {
        /* Bytes above the lowest have their top bit set: they become 0. */
        vi at = cell | vi_all(0x80808000u);
        *index = vf_bits(vf_choose(vf_of_bits(_mm256_shuffle_epi8(tables->index[0], at)),
                                   vf_of_bits(_mm256_shuffle_epi8(tables->index[1], at)), vi_left(cell, 27)));
    } else {
        *index = gather_bytes(job->cell_index, cell);
    }
    if (cells == CELLS_WIDE) {
        *level = _mm256_i32gather_ps(job->level_f32, *index, 4);
        *step = _mm256_i32gather_ps(job->step_f32, *index, 4);
    } else {
        *level = vf_choose(_mm256_permutevar8x32_ps(tables->level[0], *index),
                           _mm256_permutevar8x32_ps(tables->level[1], *index), vi_left(*index, 28));
        *step = vf_choose(_mm256_permutevar8x32_ps(tables->step[0], *index),
                          _mm256_permutevar8x32_ps(tables->step[1], *index), vi_left(*index, 28));
    }
}

/* Table values of a block's indices. */
VECTOR_OP void look_up_levels(const struct psc_thc_job *job, const uint8_t *indices, uint8_t *levels)
{
    if (job->wire_bits == 8) {
        for (uint32_t c = 0; c < BLOCK; c++)
            levels[c] = job->level[indices[c]];
        return;
    }
    const vi table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)job->level));
    for (uint32_t c = 0; c < BLOCK; c += 32)
        vi_store(levels + c, _mm256_shuffle_epi8(table, vi_load(indices + c)));
}

/* ---- Sums ---- */

VECTOR_OP vf u8_load(const uint8_t *at)
{
    return vi_to_vf(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}
VECTOR_OP vf u16_load(const uint16_t *at)
{
    return vi_to_vf(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at)));
}

struct u8_lanes {
    vf bias;
};

VECTOR_OP struct u8_lanes u8_lanes_of(float bias)
{
    return (struct u8_lanes){vf_all(-bias)};
}

VECTOR_OP vf u8_lane_levels(const struct u8_lanes *lanes, const uint8_t *at)
{
    return lane_levels(vf_fma(u8_load(at), vf_all(2), lanes->bias));
}

#include "blocks.h"

/* ---- Norms: the AVX-512 variant's too, because from memory that loads 32 bytes at a time is the faster one
 * ---- */

/* In pages of 4 KiB, as torch's allocator has them, each block would begin with a page walk and a wait for
 * memory: the first lines of the page that begins 2 to 6 KiB on are asked for, from 14 to 9.5 ms for 256 MiB.
 * More lines are slower again; with huge pages it makes no difference. */
ALWAYS_INLINE void fetch_next_page(const float *at)
{
    const char *page = (const char *)(((uintptr_t)at + 4096 + 2048) & ~(uintptr_t)4095);
    __builtin_prefetch(page);
    __builtin_prefetch(page + 64);
}

ALWAYS_INLINE void fetch_next_pages(const struct psc_thc_input *input)
{
    fetch_next_page(input->grad);
    if (input->residual)
        fetch_next_page(input->residual);
}

ALWAYS_INLINE float squares(const struct psc_thc_input *input, bool with_residual)
{
    const vf loss_scale = vf_all(input->loss_scale);
    vf sums[PER_HALF] = {0};
    fetch_next_pages(input);
    for (uint32_t c = 0; c < BLOCK; c += PARTIAL_SUMS)
        for (uint32_t j = 0; j < PER_HALF; j++) {
            vf x = x_at(input, c + j * LANES, loss_scale, with_residual);
            sums[j] += x * x;
        }
    for (uint32_t width = PER_HALF / 2; width > 0; width /= 2)
        for (uint32_t j = 0; j < width; j++)
            sums[j] += sums[j + width];
    /* The last three foldings are inside a vector. */
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(sums[0]), _mm256_extractf128_ps(sums[0], 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

float psc_sum_of_squares_avx2(const struct psc_thc_input *input, uint32_t count)
{
    (void)count;
    return input->residual ? squares(input, true) : squares(input, false);
}

uint32_t psc_largest_avx2(const struct psc_thc_input *input, uint32_t count)
{
    (void)count;
    const vf loss_scale = vf_all(input->loss_scale);
    vi most[2] = {0};
    fetch_next_pages(input);
    for (uint32_t v = 0; v < VECTORS; v++) {
        vi bits = vf_bits(x_at(input, v * LANES, loss_scale, input->residual != NULL)) & vi_all(0x7fffffff);
        most[v % 2] = _mm256_max_epu32(most[v % 2], bits);
    }
    uint32_t each[LANES], bits = 0;
    vi_store(each, _mm256_max_epu32(most[0], most[1]));
    for (uint32_t i = 0; i < LANES; i++)
        bits = each[i] > bits ? each[i] : bits;
    return bits;
}

#endif
