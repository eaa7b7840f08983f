/* How blocks peel in vectors: the text of both vector variants, which define what a row of 32 counts is
 * (counts). No header may be included from here: what it defines would be
 * compiled for the variant's instruction set too.
 *
 * A pass asks every block that has elements left which of its lanes are alone in one of their three buckets:
 * one comparison of a whole row and one rotation of a mask for each table. No branch depends on the answer,
 * so none is mispredicted. */

INLINE uint32_t rotated_left(uint32_t a, uint32_t by)
{
    return a << (by & 31) | a >> (-by & 31);
}

INLINE uint32_t rotated_right(uint32_t a, uint32_t by)
{
    return a >> (by & 31) | a << (-by & 31);
}

INLINE uint8_t *row_of(const struct psc_lhc_peeling *p, uint32_t place)
{
    return p->counts + (place & ~31u);
}

static void count(struct psc_lhc_peeling *p, uint64_t first, uint64_t end)
{
    for (uint64_t b = first; b < end; b++) {
        uint32_t left = p->left[b];
        p->active[p->actives] = (uint32_t)b;
        p->actives += left != 0;
        for (uint32_t j = 0; j < LHC_TABLES; j++) {
            uint32_t place = p->place[j][b];
            uint8_t *row = row_of(p, place);
            counts_store(row, counts_more(counts_load(row), rotated_left(left, place)));
        }
    }
}

INLINE bool sweep_by(struct psc_lhc_peeling *p, bool noted)
{
    uint64_t kept = 0;
    uint32_t any = 0;
    for (uint64_t i = 0; i < p->actives; i++) {
        uint32_t block = p->active[i], left = p->left[block];
        uint32_t place[LHC_TABLES], by[LHC_TABLES];
        counts row[LHC_TABLES];
#pragma GCC unroll 3
        for (uint32_t j = 0; j < LHC_TABLES; j++) {
            place[j] = p->place[j][block];
            row[j] = counts_load(row_of(p, place[j]));
            by[j] = rotated_right(counts_alone(row[j]), place[j]);
        }
        by[0] &= left;
        by[1] &= left & ~by[0];
        by[2] &= left & ~(by[0] | by[1]);
        uint32_t peels = by[0] | by[1] | by[2];
#pragma GCC unroll 3
        for (uint32_t j = 0; j < LHC_TABLES; j++)
            counts_store(row_of(p, place[j]), counts_fewer(row[j], rotated_left(peels, place[j])));
        if (noted) {
            p->turns[p->turned] = (struct psc_lhc_turn){block, {by[0], by[1], by[2]}};
            p->turned += peels != 0;
        }
        any |= peels;
        left &= ~peels;
        p->left[block] = left;
        p->active[kept] = block;
        kept += left != 0;
    }
    p->actives = kept;
    return any != 0;
}

static bool sweep(struct psc_lhc_peeling *p)
{
    return p->turns ? sweep_by(p, true) : sweep_by(p, false);
}

const struct psc_lhc_variant VARIANT = {.hash = hash_group, .sketch = sketch, .count = count, .sweep = sweep};
