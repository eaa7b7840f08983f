/* What a variant is, private to this room: the work on one block, for one instruction set. Call a variant
 * only on a CPU that has it. */
#ifndef PSC_KERNELS_VARIANTS_H
#define PSC_KERNELS_VARIANTS_H

#include "psc_kernels.h"

enum {
    BLOCK = 1024, /* coordinates that are rotated together */
    SIGN_WORDS = BLOCK / 32,
    PARTIAL_SUMS = 64,
    GROUP = 128, /* coordinates that one vector of 16 Philox states draws for */
    ROUNDS = 7,
    STREAM_SIGNS = 0,
    STREAM_STRATA = 1,
    STREAM_PRIVATE = 2,
};

#define PHILOX_M0 0xd2511f53u
#define PHILOX_M1 0xcd9e8d57u

/* How a vector variant finds the index below a cell and its table value: few or many cells and 4-bit indices,
 * or any. */
enum cells { CELLS_FEW, CELLS_MANY, CELLS_WIDE };

struct psc_thc_job {
    struct psc_thc_settings settings;
    uint32_t key[ROUNDS][2]; /* of each round */
    uint32_t g;
    uint32_t wire_bits;
    uint32_t unit; /* coordinates in 64 bytes of the wire */
    float g_f32;
    float s_pos;
    float half_inc;
    float draw_unit; /* what v + 0.5 is multiplied by */
    bool vectors;    /* whether the vector variants' arithmetic is wide enough for n */
    /* By cell 0..g, of which the last is as its neighbour: an index just below it, that index's table value,
     * and the distance to the next one's. */
    uint8_t cell_index[256];
    uint8_t cell_level[256];
    uint8_t cell_step[256];
    /* By index: table value, as a float too, and the distance to the next one (0 for the last). */
    uint8_t level[256];
    float level_f32[256];
    float step_f32[256];
    uint32_t fixed_signs[SIGN_WORDS]; /* without fresh rotation: every block's */
};

/* One block, which begins at coordinate `first` of its chunk: `count` values, padded to `size` coordinates.
 * The vector variants know whole blocks only. */
struct psc_thc_block {
    const struct psc_thc_job *job;
    const uint32_t *signs; /* bit c of word c / 32: negate coordinate c */
    uint32_t sequence;
    uint32_t chunk;
    uint32_t first;
    uint32_t count;
    uint32_t size;
};

/* What goes into a block: x = grad + residual * loss_scale. */
struct psc_thc_input {
    const float *grad;
    const float *residual; /* NULL: none */
    float loss_scale;
};

struct psc_thc_encoding {
    uint32_t rank;
    float gain;
    float coef;          /* of the own decoded value */
    float *residual_out; /* NULL: no error feedback */
    bool stream;         /* whether to write it past the cache */
    uint8_t *packed;
};

struct psc_kernels_variant {
    const char *name;
    bool (*runs_here)(void);
    float (*sum_of_squares)(const struct psc_thc_input *input, uint32_t count);
    /* Largest |x| as u32: NaN > Inf > finite. */
    uint32_t (*largest)(const struct psc_thc_input *input, uint32_t count);
    void (*draw_signs)(const struct psc_thc_block *block, uint32_t *signs);
    void (*encode)(const struct psc_thc_block *block, const struct psc_thc_input *input,
                   const struct psc_thc_encoding *encoding);
    /* bias: contributors * g. stream: whether to write past the cache. */
    void (*decode_u8)(const struct psc_thc_block *block, const uint8_t *sums, float bias, float coef,
                      bool stream, float *values);
    void (*decode_u16)(const struct psc_thc_block *block, const uint16_t *sums, float bias, float coef,
                       bool stream, float *values);
};

extern const struct psc_kernels_variant psc_kernels_scalar;
#ifdef __x86_64__
extern const struct psc_kernels_variant psc_kernels_avx2;
extern const struct psc_kernels_variant psc_kernels_avx512;
float psc_sum_of_squares_avx2(const struct psc_thc_input *input, uint32_t count);
uint32_t psc_largest_avx2(const struct psc_thc_input *input, uint32_t count);
#endif

/* The variant in use. */
const struct psc_kernels_variant *psc_kernels_current(void);

/* The sum of 64 partial sums, halving. */
float psc_fold(float sums[PARTIAL_SUMS]);

/* Four words of one counter. */
void psc_philox(const struct psc_thc_job *job, const uint32_t counter[4], uint32_t words[4]);

#endif
