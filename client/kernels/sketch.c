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
    uint64_t block_bytes = (2 * LHC_TABLES + 2) * sizeof(uint32_t) + sizeof(struct psc_lhc_turn);
    return blocks * block_bytes + (uint64_t)LHC_TABLES * LHC_LANES * rows;
}

/* Arrays in the scratch, the union's elements, their places and how many share a bucket. */
static void begin(struct psc_lhc_peeling *p, const struct psc_lhc_hash *hash, const uint32_t *all,
                  uint64_t elems, bool noted, void *scratch)
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
    struct psc_lhc_turn *turns = (struct psc_lhc_turn *)(at + 2 * room);
    p->turns = noted ? turns : NULL;
    p->counts = (uint8_t *)(turns + room);
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
static uint64_t finish(const struct psc_lhc_peeling *p, uint32_t *unpeeled)
{
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
    while (peeling.actives && current()->sweep(&peeling))
        ;
    return finish(&peeling, unpeeled);
}

/* The values of what one pass has peeled, in its order: when an element's turn comes, its bucket holds it
 * alone. */
static void take(const struct psc_lhc_peeling *p, struct psc_lhc_scale scale, int32_t *table, float *values)
{
    for (uint64_t i = 0; i < p->turned; i++) {
        const struct psc_lhc_turn *turn = &p->turns[i];
        uint32_t place[LHC_TABLES], sign[LHC_TABLES];
        for (uint32_t j = 0; j < LHC_TABLES; j++) {
            place[j] = p->place[j][turn->block];
            sign[j] = p->sign[j][turn->block];
        }
        for (uint32_t lanes = turn->by[0] | turn->by[1] | turn->by[2]; lanes; lanes &= lanes - 1) {
            uint32_t lane = (uint32_t)__builtin_ctz(lanes), minus[LHC_TABLES];
            uint32_t from = (turn->by[1] >> lane & 1) | (turn->by[2] >> lane & 1) << 1;
            int32_t *at[LHC_TABLES];
            for (uint32_t j = 0; j < LHC_TABLES; j++) {
                at[j] = table + (place[j] & ~31u) + ((lane + place[j]) & 31);
                minus[j] = -(sign[j] >> lane & 1);
            }
            uint32_t v = ((uint32_t)*at[from] ^ minus[from]) - minus[from];
            for (uint32_t j = 0; j < LHC_TABLES; j++)
                *at[j] = (int32_t)((uint32_t)*at[j] - ((v ^ minus[j]) - minus[j]));
            values[(uint64_t)turn->block * LHC_LANES + lane] = (float)(int32_t)v * scale.first * scale.rest;
        }
    }
}

uint64_t psc_lhc_peel(const struct psc_lhc_hash *hash, const uint32_t *all, uint64_t elems, int32_t *table,
                      float first, float rest, float *values, uint32_t *unpeeled, void *scratch)
{
    struct psc_lhc_peeling peeling = {0};
    unsigned saved = psc_begin_ieee();
    memset(values, 0, elems * sizeof *values);
    begin(&peeling, hash, all, elems, true, scratch);
    while (peeling.actives && current()->sweep(&peeling)) {
        take(&peeling, (struct psc_lhc_scale){first, rest}, table, values);
        peeling.turned = 0;
    }
    psc_end_ieee(saved);
    return finish(&peeling, unpeeled);
}
