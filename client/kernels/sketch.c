/* The codec lhc: a chunk into its sketch, and a sketch back into values (docs/lhc.md). Cuts chunks into
 * groups of blocks and hands them to the variant in use. Steps of the story: "encode", "decode". */
#include <string.h>

#include "ieee.h"
#include "sketch.h"
#include "variants.h"

static const struct psc_lhc_variant *current(void)
{
    const struct psc_kernels_variant *variant = psc_kernels_current();
#ifdef __x86_64__
    if (variant == &psc_kernels_avx512)
        return &psc_lhc_avx512;
    if (variant == &psc_kernels_avx2)
        return &psc_lhc_avx2;
#endif
    (void)variant;
    return &psc_lhc_scalar;
}

static uint64_t blocks_of(uint64_t elems)
{
    return (elems + LHC_LANES - 1) / LHC_LANES;
}

static uint64_t buckets_of(const struct psc_lhc_hash *hash)
{
    return (uint64_t)LHC_TABLES * LHC_LANES * hash->rows;
}

/* The lanes of a block that are elements of the chunk. */
static uint32_t lanes_of(uint64_t block, uint64_t elems)
{
    uint64_t rest = elems - block * LHC_LANES;
    return rest >= LHC_LANES ? UINT32_MAX : (1u << rest) - 1;
}

void psc_lhc_sketch(const struct psc_lhc_hash *hash, const float *values, float first, float rest,
                    uint64_t elems, const uint32_t *left_out, int32_t *table)
{
    const struct psc_lhc_variant *variant = current();
    unsigned saved = psc_begin_ieee();
    memset(table, 0, buckets_of(hash) * sizeof *table);
    uint64_t all = blocks_of(elems);
    for (uint64_t b = 0; b < all; b += LHC_GROUP) {
        struct psc_lhc_group group;
        uint32_t live[LHC_GROUP];
        uint32_t blocks = all - b < LHC_GROUP ? (uint32_t)(all - b) : LHC_GROUP;
        for (uint32_t i = 0; i < blocks; i++)
            live[i] = lanes_of(b + i, elems) & ~(left_out ? left_out[b + i] : 0);
        variant->hash(hash, (uint32_t)b, &group);
        variant->sketch(&group, live, blocks, values + b * LHC_LANES, (struct psc_lhc_scale){first, rest},
                        table);
    }
    psc_end_ieee(saved);
}

uint64_t psc_lhc_scratch_bytes(uint64_t elems, uint32_t rows)
{
    uint64_t blocks = (blocks_of(elems) + LHC_GROUP - 1) / LHC_GROUP * LHC_GROUP;
    uint64_t words = blocks * (2 * LHC_TABLES + 2) + elems + LHC_LANES;
    return words * sizeof(uint32_t) + (uint64_t)LHC_TABLES * LHC_LANES * rows;
}

/* Arrays in the scratch, the union's elements, their places and how many share a bucket. */
static void begin(struct psc_lhc_peeling *p, const struct psc_lhc_hash *hash, const uint32_t *all,
                  uint64_t elems, bool ordered, void *scratch)
{
    const struct psc_lhc_variant *variant = current();
    p->blocks = blocks_of(elems);
    uint64_t room = (p->blocks + LHC_GROUP - 1) / LHC_GROUP * LHC_GROUP;
    uint32_t *at = scratch;
    for (uint32_t j = 0; j < LHC_TABLES; j++, at += 2 * room) {
        p->place[j] = at;
        p->sign[j] = at + room;
    }
    p->left = at;
    p->active = at + room;
    p->order = ordered ? at + 2 * room : NULL;
    p->counts = (uint8_t *)(at + 2 * room + elems + LHC_LANES);
    memset(p->counts, 0, buckets_of(hash));
    for (uint64_t b = 0; b < p->blocks; b += LHC_GROUP) {
        uint64_t end = b + LHC_GROUP < p->blocks ? b + LHC_GROUP : p->blocks;
        uint32_t any = 0;
        for (uint64_t i = b; i < end; i++)
            any |= p->left[i] = all[i] & lanes_of(i, elems);
        if (!any)
            continue;
        struct psc_lhc_group group;
        variant->hash(hash, (uint32_t)b, &group);
        for (uint32_t j = 0; j < LHC_TABLES; j++) {
            memcpy(p->place[j] + b, group.place[j], sizeof group.place[j]);
            memcpy(p->sign[j] + b, group.sign[j], sizeof group.sign[j]);
        }
        variant->count(p, b, end);
    }
}

/* How many elements do not peel, and which. */
static uint64_t finish(struct psc_lhc_peeling *p, uint32_t *unpeeled)
{
    const struct psc_lhc_variant *variant = current();
    while (p->actives && variant->sweep(p))
        ;
    memset(unpeeled, 0, p->blocks * sizeof *unpeeled);
    uint64_t count = 0;
    for (uint64_t i = 0; i < p->actives; i++) {
        uint32_t left = p->left[p->active[i]];
        unpeeled[p->active[i]] = left;
        count += (uint64_t)__builtin_popcount(left);
    }
    return count;
}

uint64_t psc_lhc_check(const struct psc_lhc_hash *hash, const uint32_t *all, uint64_t elems,
                       uint32_t *unpeeled, void *scratch)
{
    struct psc_lhc_peeling peeling = {0};
    begin(&peeling, hash, all, elems, false, scratch);
    return finish(&peeling, unpeeled);
}

/* The elements' values in their order: when one's turn comes, its bucket holds it alone. */
static void take(const struct psc_lhc_peeling *p, struct psc_lhc_scale scale, int32_t *table, float *values)
{
    for (uint64_t i = 0; i < p->ordered; i++) {
        uint32_t from = p->order[i] >> LHC_TABLE_SHIFT, element = p->order[i] & ((1u << LHC_TABLE_SHIFT) - 1);
        uint32_t block = element / LHC_LANES, at[LHC_TABLES], minus[LHC_TABLES];
        for (uint32_t j = 0; j < LHC_TABLES; j++) {
            uint32_t place = p->place[j][block];
            at[j] = (place & ~31u) + ((element + place) & 31);
            minus[j] = -(p->sign[j][block] >> (element & 31) & 1);
        }
        uint32_t v = ((uint32_t)table[at[from]] ^ minus[from]) - minus[from];
        for (uint32_t j = 0; j < LHC_TABLES; j++)
            table[at[j]] = (int32_t)((uint32_t)table[at[j]] - ((v ^ minus[j]) - minus[j]));
        values[element] = (float)(int32_t)v * scale.first * scale.rest;
    }
}

uint64_t psc_lhc_peel(const struct psc_lhc_hash *hash, const uint32_t *all, uint64_t elems, int32_t *table,
                      float first, float rest, float *values, uint32_t *unpeeled, void *scratch)
{
    struct psc_lhc_peeling peeling = {0};
    unsigned saved = psc_begin_ieee();
    memset(values, 0, elems * sizeof *values);
    begin(&peeling, hash, all, elems, true, scratch);
    uint64_t count = finish(&peeling, unpeeled);
    take(&peeling, (struct psc_lhc_scale){first, rest}, table, values);
    psc_end_ieee(saved);
    return count;
}
