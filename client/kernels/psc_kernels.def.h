/* The door to the C kernels: what Python may call. Read verbatim by cffi, so plain declarations only; the
 * guarded twin is psc_kernels.h. docs/thc.md is the specification of every bit. */

enum psc_thc_norm { PSC_THC_L2, PSC_THC_MAX };
enum psc_thc_rounding { PSC_THC_STRATIFIED, PSC_THC_INDEPENDENT, PSC_THC_SHARED };

/* "Numbers of a job" of docs/thc.md. */
struct psc_thc_settings {
    uint64_t seed;
    uint32_t bits; /* 2, 3, 4, 8 */
    uint32_t n;
    float t;
    float debias;
    enum psc_thc_norm norm;
    enum psc_thc_rounding rounding;
    bool rotate;
    bool fresh_rotation;
    bool scale_per_tensor;
    uint8_t table[256]; /* T; only the first 2^bits count */
};

/* Settings with all that follows from them; never changed, so any number of threads may share one. */
struct psc_thc_job;

/* NULL: no memory, or settings that docs/thc.md does not allow. */
struct psc_thc_job *psc_thc_job_new(const struct psc_thc_settings *settings);
void psc_thc_job_free(struct psc_thc_job *job);

/* One chunk of one collective, alike on all ranks. */
struct psc_thc_chunk {
    const struct psc_thc_job *job;
    uint32_t sequence;
    uint32_t chunk;
    uint64_t tensor_coordinates; /* of the whole tensor; used with one scale per tensor */
};

/* Coordinates of `elems` values: whole blocks, and a last one padded to fill its wire bytes. */
uint64_t psc_thc_coordinates(const struct psc_thc_job *job, uint64_t elems);

/* All arrays of float: 4-byte alignment is enough. residual may be NULL: there is none.
 * norms: one for each block of 1024 values. */
void psc_thc_norms(const struct psc_thc_job *job, const float *grad, const float *residual, float loss_scale,
                   uint64_t elems, float *norms);
/* The one norm of a tensor from those of its blocks. */
float psc_thc_tensor_norm(const struct psc_thc_job *job, const float *block_norms, uint32_t blocks);

/* packed: coordinates * wire bits / 8 bytes. residual_out may be NULL (no error feedback) or equal residual.
 */
void psc_thc_encode(const struct psc_thc_chunk *chunk, uint32_t rank, const float *grad,
                    const float *residual, float *residual_out, float loss_scale, uint64_t elems,
                    const float *scales, uint8_t *packed);

/* sums: one for each coordinate, u8 or u16 (2-byte aligned). */
void psc_thc_decode_u8(const struct psc_thc_chunk *chunk, uint32_t contributors, const uint8_t *sums,
                       uint64_t elems, const float *scales, float *values);
void psc_thc_decode_u16(const struct psc_thc_chunk *chunk, uint32_t contributors, const uint16_t *sums,
                        uint64_t elems, const float *scales, float *values);

/* ---- Codec sparse (docs/sparse.md) ----
 * A bitmap has bit i % 32 of word i / 32 for element i; bits beyond the last element are 0. */

/* bitmap: which elements have |x| >= `least`, both as u32 (so NaN > Inf > finite); 1 marks what is not zero.
 * Returns how many. least: 1 .. 0x7f800000. */
uint64_t psc_sparse_mark(const float *x, uint64_t elems, uint32_t least, uint32_t *bitmap);
/* How many bits are set in `words` words. */
uint64_t psc_sparse_count(const uint32_t *bitmap, uint64_t words);
/* packed: the `count` elements that `chosen` has, in order. */
void psc_sparse_pack(const uint32_t *x, const uint32_t *chosen, uint64_t elems, uint64_t count,
                     uint32_t *packed);
/* values: the elements that `chosen` has from `packed`, the others 0. `count` is of both. */
void psc_sparse_unpack(const uint32_t *packed, uint64_t count, const uint32_t *chosen, uint64_t elems,
                       uint32_t *values);

/* Streams of sub-blocks (docs/expand-sum.md), of 1 or more elements, in words of the host, which is
 * little-endian. How many words has the stream of those of `elems` that `bitmap` has. */
uint64_t psc_sparse_stream_words(const uint32_t *bitmap, uint64_t elems);
/* Write it: the values from `packed`, in order, or, where that is NULL, from `x`, (elems,). */
void psc_sparse_stream_write(const uint32_t *x, const uint32_t *packed, const uint32_t *bitmap,
                             uint64_t elems, uint32_t *stream, uint64_t stream_words);

/* What a stream can have that no stream has; each with what was expected, and what there is. */
enum psc_sparse_fault {
    PSC_SPARSE_GOOD,
    PSC_SPARSE_ELEMENTS, /* elements; 0 where there is no word */
    PSC_SPARSE_LENGTH,   /* words that the sub-blocks take, one for each that is not reached; words */
    PSC_SPARSE_TOO_MANY, /* elements of a sub-block; its count */
    PSC_SPARSE_BEYOND,   /* elements of the last sub-block; place from 1 of a later bit */
    PSC_SPARSE_COUNT,    /* count of a sub-block; bits of its bitmap */
};
struct psc_sparse_verdict {
    enum psc_sparse_fault fault;
    uint64_t expected;
    uint64_t got;
    uint64_t values; /* of a good one */
};
void psc_sparse_stream_check(const uint32_t *stream, uint64_t words, uint64_t elems,
                             struct psc_sparse_verdict *verdict);
/* packed: the values of a good stream, in order. */
void psc_sparse_stream_values(const uint32_t *stream, uint64_t elems, uint32_t *packed);
/* values: the elements of a good stream, the others 0; from `packed`, the `count` values of that stream,
 * where that is not NULL. */
void psc_sparse_stream_unpack(const uint32_t *stream, uint64_t stream_words, const uint32_t *packed,
                              uint64_t count, uint64_t elems, uint32_t *values);

/* The compiler that made them, for measurements. */
const char *psc_kernels_compiler(void);
/* Name of the variant in use. */
const char *psc_kernels_variant(void);
/* Whether there is such a variant and this CPU runs it. */
bool psc_kernels_runs(const char *variant);
/* Use this one from now on, in every thread; false: psc_kernels_runs says no. */
bool psc_kernels_choose(const char *variant);

/* ---- lhc: docs/lhc.md ---- */

/* Where the elements of one chunk go, alike on all ranks. */
struct psc_lhc_hash {
    uint64_t seed;
    uint32_t sequence;
    uint32_t chunk;
    uint32_t rows; /* of each sub-table: 1 to 2^27 / 3 */
};

/* Of Philox: places and signs of a block. */
enum psc_lhc_stream { PSC_LHC_STREAM_PLACES = 0x40000000, PSC_LHC_STREAM_SIGNS = 0x40000001 };

/* table: 96 * rows integers, the sketch of round(values * first * rest); both factors are powers of two.
 * left_out: bitmap of elements that are not added, or NULL. Bitmaps are a word for each block of 32. */
void psc_lhc_sketch(const struct psc_lhc_hash *hash, const float *values, float first, float rest,
                    uint64_t elems, const uint32_t *left_out, int32_t *table);

/* What the next two need besides their arguments; 4-byte alignment. */
uint64_t psc_lhc_scratch_bytes(uint64_t elems, uint32_t rows);

/* How many elements of a union (bitmap) do not peel; `unpeeled` says which. */
uint64_t psc_lhc_check(const struct psc_lhc_hash *hash, const uint32_t *all, uint64_t elems,
                       uint32_t *unpeeled, void *scratch);

/* As check; each element that peels becomes its integer * first * rest, all others 0. The table is used up.
 */
uint64_t psc_lhc_peel(const struct psc_lhc_hash *hash, const uint32_t *all, uint64_t elems, int32_t *table,
                      float first, float rest, float *values, uint32_t *unpeeled, void *scratch);
