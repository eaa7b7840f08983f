/* core/: makes and frees a job's memory, on the control core, before the lane sees it and after the lane is
 * done. */
#include "psc_job.h"

static bool power_of_two(uint32_t x)
{
    return x != 0 && (x & (x - 1)) == 0;
}

static bool pool_spec_ok(const struct psc_pool_spec *pool, uint32_t mtu)
{
    return power_of_two(pool->window) && pool->window <= PSC_MAX_WINDOW && pool->chunk_bytes >= mtu &&
           pool->chunk_bytes <= PSC_MAX_CHUNK_BYTES && pool->chunk_bytes % mtu == 0;
}

/* The op exists; its table, if it has one, is sane, and no sum of all ranks overflows. */
static bool op_ok(const struct psc_job_spec *spec, uint32_t op)
{
    if (!psc_pool_op_exists(op))
        return false;
    const struct psc_op_form *form = psc_op_form(op);
    return form->table_entries == 0 ||
           (psc_table_ok(form, spec->tables[op]) &&
            psc_table_sum(form, spec->tables[op], spec->world_size) <= form->sum_max);
}

static bool has_sub_blocks(const struct psc_job_spec *spec)
{
    for (uint32_t i = 0; i < spec->op_count; i++)
        if (psc_op_form(spec->ops[i])->sub_block_elems > 0)
            return true;
    return false;
}

_Static_assert(sizeof(struct psc_expand_reader) == PSC_SUB_BLOCK_RANK_BYTES, "psc_lane.h says what it takes");

static bool spec_ok(const struct psc_job_spec *spec)
{
    if (spec->world_size < 1 || spec->world_size > PSC_MAX_RANKS || spec->op_count < 1 ||
        spec->op_count > PSC_MAX_OPS || spec->pool_count < 1 || spec->pool_count > PSC_MAX_POOLS ||
        !power_of_two(spec->mtu) || spec->mtu < 256 || spec->mtu > 4096)
        return false;
    for (uint32_t i = 0; i < spec->op_count; i++)
        if (!op_ok(spec, spec->ops[i]))
            return false;
    for (uint32_t i = 0; i < spec->pool_count; i++)
        if (!pool_spec_ok(&spec->pools[i], spec->mtu))
            return false;
    return true;
}

/* Cuts one piece of memory into parts. With base NULL it only adds up how much the parts need. */
struct carver {
    uint8_t *base;
    size_t used_bytes;
};

static void *carve(struct carver *carver, size_t bytes)
{
    void *part = carver->base ? carver->base + carver->used_bytes : NULL;

    carver->used_bytes += (bytes + 63) & ~(size_t)63;
    return part;
}

/* A rank's requester holds at most W results and the probe before them. Let the rank's last begun round be r,
 * in this epoch or, until it begins one, in those before: then all of its results are in (r-W, r].
 * - No newer one: a result is posted when its first packet has come from every rank, so this one has begun
 *   it.
 * - No older one: r was begun only with result r-W sent or acknowledged (rule 5, has_result), and beginning r
 *   took everything up to r-W off the ring before anything else was posted.
 * - Redelivery posts [received, complete) to an empty ring. No round from `complete` on is begun yet, and the
 *   rank had begun complete-1 with complete-1-W acknowledged, which `received` is not below: W again. A rank
 *   that begins without having probed is given them just before it begins, and the two above go on to hold.
 * - One probe: ours is posted once per connection, before any result; all that acknowledges a result
 *   acknowledges it too.
 * Messages are counted whole, so none of this depends on how much longer than a contribution a result is. Nor
 * does the number of their packets: chunk_bytes bounds results. */
static uint32_t ring_messages(const struct psc_pool_spec *spec)
{
    return spec->window + 1;
}

/* What is posted and not acknowledged spans less than half of the PSNs, so that they compare. */
_Static_assert(PSC_MAX_WINDOW *(PSC_MAX_CHUNK_BYTES / 256) + 1 < 1 << 23, "packets of a full ring");

static void init_pool(struct psc_job *job, uint32_t index, const struct psc_pool_shape *shape,
                      void *pool_memory)
{
    struct psc_job_pool *pool = &job->pools[index];

    psc_pool_init(&pool->pool, shape, pool_memory);
    pool->job = job;
    pool->index = index;
}

/* Called twice: with an empty carver and no job to learn the size, then for good. */
static void lay_out(struct carver *carver, struct psc_job *job, const struct psc_job_spec *spec)
{
    carve(carver, sizeof(struct psc_job));
    for (uint32_t i = 0; i < spec->pool_count; i++) {
        const struct psc_pool_spec *pool = &spec->pools[i];
        const struct psc_pool_shape shape = {.world_size = spec->world_size,
                                             .window = pool->window,
                                             .chunk_bytes = pool->chunk_bytes,
                                             .packet_bytes = spec->mtu,
                                             .sub_blocks = has_sub_blocks(spec),
                                             .crcs = PSC_ICRC_IS_MADE,
                                             .tables = job ? job->spec.tables : NULL};
        size_t slots = 2 * (size_t)pool->window;
        void *qps = carve(carver, spec->world_size * sizeof(struct psc_qp));
        void *rings = carve(carver, spec->world_size * ring_messages(pool) * sizeof(struct psc_message));
        void *results = carve(carver, slots * sizeof(struct psc_result));
        void *pool_memory = carve(carver, psc_pool_memory_bytes(&shape));
        if (!job)
            continue;
        job->pools[i].qps = qps;
        job->pools[i].results = results;
        init_pool(job, i, &shape, pool_memory);
        for (uint32_t rank = 0; rank < spec->world_size; rank++) {
            struct psc_qp *qp = &job->pools[i].qps[rank];
            qp->job = job;
            qp->pool = &job->pools[i];
            qp->spec.pool = i;
            qp->spec.rank = rank;
            qp->requester.ring_size = ring_messages(pool);
            qp->requester.ring = (struct psc_message *)rings + (size_t)rank * ring_messages(pool);
        }
    }
}

struct psc_job *psc_job_new(const struct psc_job_spec *spec, const struct psc_memory *memory)
{
    struct carver carver = {0};

    if (!spec_ok(spec))
        return NULL;
    lay_out(&carver, NULL, spec);
    struct psc_job *job = memory->alloc(memory->context, carver.used_bytes);
    if (!job)
        return NULL;
    job->spec = *spec;
    job->memory = *memory;
    psc_crc32_shift_init(&job->mtu_shift, spec->mtu);
    psc_crc32_shift_init(&job->psn_shift, PSC_PSN_WORD_BYTES + spec->mtu);
    carver = (struct carver){.base = (uint8_t *)job};
    lay_out(&carver, job, spec);
    return job;
}

void psc_job_free(struct psc_job *job)
{
    if (job)
        job->memory.release(job->memory.context, job);
}
