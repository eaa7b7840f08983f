/* A job's numbers and what follows from them (docs/thc.md, "Numbers of a job"): made once, before the first
 * chunk. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "variants.h"

static bool allowed(const struct psc_thc_settings *s)
{
    if (s->bits != 2 && s->bits != 3 && s->bits != 4 && s->bits != 8)
        return false;
    uint32_t last = (1u << s->bits) - 1;
    for (uint32_t k = 0; k < last; k++)
        if (s->table[k] > s->table[k + 1])
            return false;
    return s->table[0] == 0 && s->table[last] >= 1 && s->n >= 1 &&
           s->n * (uint64_t)s->table[last] <= UINT16_MAX && isfinite(s->t) && s->t > 0 &&
           isfinite(s->debias) && s->debias > 0;
}

static void make_tables(struct psc_thc_job *job)
{
    const uint8_t *table = job->settings.table;
    uint32_t last = (1u << job->settings.bits) - 1;
    for (uint32_t k = 0; k <= last; k++) {
        job->level[k] = table[k];
        job->level_f32[k] = (float)table[k];
        job->step_f32[k] = k < last ? (float)(table[k + 1] - table[k]) : 0.0f;
    }
    uint32_t k = 0;
    for (uint32_t cell = 0; cell < job->g; cell++) {
        while (k < last && table[k + 1] <= cell)
            k++;
        job->cell_index[cell] = (uint8_t)k;
        job->cell_level[cell] = table[k];
        job->cell_step[cell] = (uint8_t)(table[k + 1] - table[k]);
    }
    job->cell_index[job->g] = job->cell_index[job->g - 1];
    job->cell_level[job->g] = job->cell_level[job->g - 1];
    job->cell_step[job->g] = job->cell_step[job->g - 1];
}

static void derive(struct psc_thc_job *job)
{
    const struct psc_thc_settings *s = &job->settings;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        job->key[round][0] = (uint32_t)s->seed + round * 0x9e3779b9u;
        job->key[round][1] = (uint32_t)(s->seed >> 32) + round * 0xbb67ae85u;
    }
    job->g = s->table[(1u << s->bits) - 1];
    job->g_f32 = (float)job->g;
    job->wire_bits = s->bits == 3 ? 4 : s->bits;
    job->unit = 64 * (8 / job->wire_bits);
    job->s_pos = (float)(job->g / (2 * (double)s->t));
    job->half_inc = (float)((double)s->t / job->g);
    bool stratified = s->rounding == PSC_THC_STRATIFIED;
    job->draw_unit = (float)(1 / (65536.0 * (stratified ? s->n : 1)));
    /* Strata of 16 bits plus a rank in 16 bits, and v as a signed number of 32. */
    job->vectors = !stratified || s->n <= INT16_MAX;
}

struct psc_thc_job *psc_thc_job_new(const struct psc_thc_settings *settings)
{
    if (!allowed(settings))
        return NULL;
    struct psc_thc_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->settings = *settings;
    derive(job);
    make_tables(job);
    struct psc_thc_block any = {.job = job, .count = BLOCK, .size = BLOCK};
    psc_kernels_scalar.draw_signs(&any, job->fixed_signs);
    return job;
}

void psc_thc_job_free(struct psc_thc_job *job)
{
    free(job);
}

uint64_t psc_thc_coordinates(const struct psc_thc_job *job, uint64_t elems)
{
    uint64_t whole = elems / BLOCK * BLOCK;
    uint64_t size = job->unit;
    while (size < elems - whole)
        size *= 2;
    return elems == whole ? whole : whole + size;
}
