/* What a job may be, with a sentence for what it may not. core/ refuses the same specifications but has no
 * words for it, and its refusal cannot be told from want of memory. */
#include "psc_spec.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "psc_wire.h"

__attribute__((format(printf, 2, 3))) static bool refuse(char *text, const char *format, ...)
{
    va_list values;

    va_start(values, format);
    vsnprintf(text, PSC_CTL_TEXT_BYTES, format, values);
    va_end(values);
    return false;
}

static bool within(const char *what, uint32_t value, uint32_t least, uint32_t most, char *text)
{
    if (value >= least && value <= most)
        return true;
    return refuse(text, "%s is %u, %u to %u can be", what, value, least, most);
}

static bool power_of_two(const char *what, uint32_t value, char *text)
{
    if (value != 0 && (value & (value - 1)) == 0)
        return true;
    return refuse(text, "%s is %u, only powers of two can be", what, value);
}

static bool pool_is_sane(const struct psc_ctl_pool *pool, uint32_t mtu, char *text)
{
    if (!within("a pool's window", pool->window, 1, PSC_MAX_WINDOW, text) ||
        !power_of_two("a pool's window", pool->window, text) ||
        !within("a pool's chunk size in bytes", pool->chunk_bytes, mtu, PSC_MAX_CHUNK_BYTES, text))
        return false;
    if (pool->chunk_bytes % mtu == 0)
        return true;
    return refuse(text, "a pool's chunk size is %u bytes, only multiples of the MTU of %u bytes can be",
                  pool->chunk_bytes, mtu);
}

static bool op_is_sane(const struct psc_ctl_job *spec, uint32_t op, char *text)
{
    if (!within("an op's number", op, PSC_OP_PROBE + 1, PSC_OP_COUNT - 1, text))
        return false;
    const struct psc_op_form *form = psc_op_form(op);
    const uint8_t *table = spec->tables[op];
    if (form->table_entries == 0)
        return true;
    if (!psc_table_ok(form, table))
        return refuse(text, "the table of op %u does not begin with 0 and rise to 1 or more", op);
    if (psc_table_sum(form, table, spec->world_size) <= form->sum_max)
        return true;
    return refuse(text, "op %u adds up to %u * %u ranks = %u, %u can be", op, table[form->table_entries - 1],
                  spec->world_size, psc_table_sum(form, table, spec->world_size), form->sum_max);
}

bool psc_ctl_spec_check(const struct psc_ctl_job *spec, uint32_t lanes, char *text)
{
    if (memchr(spec->name, '\0', sizeof spec->name) == NULL)
        return refuse(text, "the job's name has no end within %zu bytes", sizeof spec->name);
    if (!within("the job's number of ranks", spec->world_size, 1, PSC_MAX_RANKS, text) ||
        !within("the job's number of ops", spec->op_count, 1, PSC_MAX_OPS, text) ||
        !within("the job's number of pools", spec->pool_count, 1, PSC_CTL_MAX_POOLS, text) ||
        !within("the job's MTU in bytes", spec->mtu, 256, 4096, text) ||
        !power_of_two("the job's MTU in bytes", spec->mtu, text))
        return false;
    for (uint32_t i = 0; i < spec->op_count; i++)
        if (!op_is_sane(spec, spec->ops[i], text))
            return false;
    uint32_t on_lane[PSC_CTL_MAX_LANES] = {0};
    for (uint32_t i = 0; i < spec->pool_count; i++)
        if (!within("a pool's lane", spec->pools[i].lane, 0, lanes - 1, text) ||
            !within("the job's number of pools on a lane", ++on_lane[spec->pools[i].lane], 1, PSC_MAX_POOLS,
                    text) ||
            !pool_is_sane(&spec->pools[i], spec->mtu, text))
            return false;
    return true;
}
