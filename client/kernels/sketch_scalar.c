/* The codec lhc for any instruction set: docs/lhc.md as it reads, lane by lane. */
#include <math.h>

#include "sketch.h"
#include "variants.h"

static void philox(const struct psc_lhc_hash *hash, uint32_t block, uint32_t stream, uint32_t words[4])
{
    uint32_t c0 = block, c1 = hash->chunk, c2 = hash->sequence, c3 = stream;
    uint32_t k0 = (uint32_t)hash->seed, k1 = (uint32_t)(hash->seed >> 32);
    for (uint32_t round = 0; round < ROUNDS; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t product0 = (uint64_t)PHILOX_M0 * c0, product1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

static void hash_group(const struct psc_lhc_hash *hash, uint32_t first, struct psc_lhc_group *group)
{
    for (uint32_t i = 0; i < LHC_GROUP; i++) {
        uint32_t places[4], signs[4];
        philox(hash, first + i, PSC_LHC_STREAM_PLACES, places);
        philox(hash, first + i, PSC_LHC_STREAM_SIGNS, signs);
        for (uint32_t j = 0; j < LHC_TABLES; j++) {
            uint32_t row = (uint32_t)((uint64_t)places[j] * hash->rows >> 32) + j * hash->rows;
            group->place[j][i] = row << 5 | (places[3] >> 5 * j & 31);
            group->sign[j][i] = signs[j];
        }
    }
}

static uint32_t bucket_of(uint32_t place, uint32_t lane)
{
    return (place & ~31u) + ((lane + place) & 31);
}

static uint32_t signed_by(uint32_t sign, uint32_t lane, uint32_t v)
{
    return sign >> lane & 1 ? -v : v;
}

static void sketch(const struct psc_lhc_group *group, const uint32_t live[LHC_GROUP], uint32_t blocks,
                   const float *values, struct psc_lhc_scale scale, int32_t *table)
{
    for (uint32_t i = 0; i < blocks; i++, values += LHC_LANES)
        for (uint32_t lane = 0; lane < LHC_LANES; lane++) {
            if (!(live[i] >> lane & 1) || values[lane] == 0)
                continue;
            uint32_t v = (uint32_t)lrintf(values[lane] * scale.first * scale.rest);
            for (uint32_t j = 0; j < LHC_TABLES; j++) {
                int32_t *at = &table[bucket_of(group->place[j][i], lane)];
                *at = (int32_t)((uint32_t)*at + signed_by(group->sign[j][i], lane, v));
            }
        }
}

static void count(struct psc_lhc_peeling *p, uint64_t first, uint64_t end)
{
    for (uint64_t b = first; b < end; b++) {
        if (!p->left[b])
            continue;
        p->active[p->actives++] = (uint32_t)b;
        for (uint32_t left = p->left[b]; left; left &= left - 1)
            for (uint32_t j = 0; j < LHC_TABLES; j++) {
                uint8_t *at = &p->counts[bucket_of(p->place[j][b], (uint32_t)__builtin_ctz(left))];
                *at = (uint8_t)(*at + (*at < LHC_CROWDED));
            }
    }
}

/* The lanes of a block that are alone in a bucket, out of the counts. */
static void find(struct psc_lhc_peeling *p, struct psc_lhc_turn *turn)
{
    for (uint32_t left = p->left[turn->block]; left; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left), from = 0;
        while (from < LHC_TABLES && p->counts[bucket_of(p->place[from][turn->block], lane)] != 1)
            from++;
        if (from == LHC_TABLES)
            continue;
        turn->by[from] |= 1u << lane;
        for (uint32_t j = 0; j < LHC_TABLES; j++) {
            uint8_t *at = &p->counts[bucket_of(p->place[j][turn->block], lane)];
            *at = (uint8_t)(*at - (*at < LHC_CROWDED));
        }
    }
}

static bool sweep(struct psc_lhc_peeling *p)
{
    uint64_t kept = 0;
    bool any = false;
    for (uint64_t i = 0; i < p->actives; i++) {
        struct psc_lhc_turn turn = {.block = p->active[i]};
        find(p, &turn);
        uint32_t peels = turn.by[0] | turn.by[1] | turn.by[2];
        if (peels && p->turns)
            p->turns[p->turned++] = turn;
        any |= peels != 0;
        p->left[turn.block] &= ~peels;
        p->active[kept] = turn.block;
        kept += p->left[turn.block] != 0;
    }
    p->actives = kept;
    return any;
}

const struct psc_lhc_variant psc_lhc_scalar = {
    .hash = hash_group, .sketch = sketch, .count = count, .sweep = sweep};
