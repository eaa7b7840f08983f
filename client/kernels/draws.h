/* Random numbers for vectors of LANES floats, private to this room. This text and that of blocks.h are
 * compiled once per vector variant, which defines the few operations that differ (vf: floats, vi: 32-bit
 * integers, or 64-bit lanes of which Philox uses the low half). No header may be included from here: what it
 * defines would be compiled for the variant's instruction set too. docs/thc.md, "Random numbers". */

#define ALWAYS_INLINE static inline __attribute__((always_inline))
/* Loops over an array of vectors, which are registers only if no index is left. */
#define UNROLLED _Pragma("GCC unroll 16")

enum {
    VECTORS = BLOCK / LANES,
    AT_ONCE = 8,             /* vectors that are rotated in registers */
    PER_WORD = 16 / LANES,   /* vectors that hold one word of 16 Philox states */
    HALVES = 2 * PER_WORD,   /* vectors of 64-bit lanes for 16 states */
    PER_HALF = 4 * PER_WORD, /* vectors that hold 64 coordinates */
};

/* What of Philox' first rounds is alike in all states of a block: only the first word of the counter
 * differs. */
struct uniform {
    uint32_t c0_1, c2_1, c2_2; /* to be xored into that word after the round of that number */
};

static struct uniform uniform_of(const struct psc_thc_block *block)
{
    const uint32_t(*key)[2] = block->job->key;
    uint64_t product1 = (uint64_t)PHILOX_M1 * block->sequence;
    uint32_t c0 = (uint32_t)(product1 >> 32) ^ block->chunk ^ key[0][0];
    uint64_t product0 = (uint64_t)PHILOX_M0 * c0;
    return (struct uniform){
        .c0_1 = (uint32_t)product1 ^ key[1][0],
        .c2_1 = (uint32_t)(product0 >> 32) ^ key[1][1],
        .c2_2 = (uint32_t)product0 ^ key[2][1],
    };
}

/* Products that all streams share: of round 0 with the first multiplier, of round 2 with the second. */
struct begun {
    vi product0, product1;
};

ALWAYS_INLINE struct begun philox_begin(vi q, const struct uniform *uniform)
{
    struct begun begun;
    begun.product0 = vl_mul(q, vi_all(PHILOX_M0));
    begun.product1 = vl_mul(begun.product0 ^ vi_all(uniform->c2_1), vi_all(PHILOX_M1));
    return begun;
}

ALWAYS_INLINE void philox_stream(const struct psc_thc_job *job, const struct uniform *uniform,
                                 uint32_t stream, struct begun begun, vi words[4])
{
    const uint32_t(*key)[2] = job->key;
    const vi m0 = vi_all(PHILOX_M0), m1 = vi_all(PHILOX_M1);
    vi c2 = vl_high(begun.product0) ^ vi_all(stream ^ key[0][1]);
    vi product1 = vl_mul(c2, m1);
    vi product0 = vl_mul(vl_high(product1) ^ vi_all(uniform->c0_1), m0);
    vi c0 = vi_xor3(vl_high(begun.product1), product1, vi_all(key[2][0]));
    vi c1 = begun.product1;
    c2 = vl_high(product0) ^ vi_all(uniform->c2_2);
    vi c3 = product0;
    for (uint32_t round = 3; round < ROUNDS; round++) {
        product0 = vl_mul(c0, m0);
        product1 = vl_mul(c2, m1);
        c0 = vi_xor3(vl_high(product1), c1, vi_all(key[round][0]));
        c1 = product1;
        c2 = vi_xor3(vl_high(product0), c3, vi_all(key[round][1]));
        c3 = product0;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* Counters q, q + step, ... in the 64-bit lanes. */
ALWAYS_INLINE vi counters(uint32_t q, uint32_t step)
{
    uint32_t each[LANES] = {0};
    for (uint32_t i = 0; i < LANES / 2; i++)
        each[2 * i] = q + step * i;
    return vi_load(each);
}

static void draw_signs(const struct psc_thc_block *block, uint32_t *signs)
{
    struct uniform uniform = uniform_of(block);
    for (uint32_t state = 0; state < BLOCK / GROUP; state += LANES / 2) {
        vi words[4];
        vi q = counters(0, 1) + vi_all(block->first / GROUP + state);
        philox_stream(block->job, &uniform, STREAM_SIGNS, philox_begin(q, &uniform), words);
        store_pairs(signs + 4 * state, vl_merge(words[0], words[1]), vl_merge(words[2], words[3]));
    }
}

/* Words of 16 states in order: with the even states in one vector and the odd ones in the next, merging is
 * one step. */
ALWAYS_INLINE void draw_words(const struct psc_thc_job *job, const struct uniform *uniform, uint32_t stream,
                              const struct begun begun[HALVES], vi words[4 * PER_WORD])
{
    UNROLLED
    for (uint32_t i = 0; i < PER_WORD; i++) {
        vi even[4], odd[4];
        philox_stream(job, uniform, stream, begun[2 * i], even);
        philox_stream(job, uniform, stream, begun[2 * i + 1], odd);
        UNROLLED
        for (uint32_t w = 0; w < 4; w++)
            words[w * PER_WORD + i] = vl_merge(even[w], odd[w]);
    }
}
