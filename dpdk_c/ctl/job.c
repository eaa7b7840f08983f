/* Jobs as Python sees them: open, connect, leave, close. A job lies on as many lanes as its pools name, and
 * each lane has a part of it that it takes for a whole; what concerns all of it is commanded to all lanes or
 * to none. Memory is taken and given back here, by the control thread; a lane only ever borrows its part
 * between ATTACH and DETACHED. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "psc_ctl_internal.h"
#include "psc_spec.h"

_Static_assert((int)PSC_CTL_COMMAND_ATTACH == PSC_CMD_ATTACH &&
                   (int)PSC_CTL_COMMAND_CONNECT == PSC_CMD_CONNECT &&
                   (int)PSC_CTL_COMMAND_HALT == PSC_CMD_HALT &&
                   (int)PSC_CTL_COMMAND_RESUME == PSC_CMD_RESUME && (int)PSC_CTL_COMMAND_END == PSC_CMD_END &&
                   (int)PSC_CTL_COMMAND_LEAVE == PSC_CMD_LEAVE &&
                   (int)PSC_CTL_COMMAND_DETACH == PSC_CMD_DETACH &&
                   (int)PSC_CTL_COMMAND_FREEZE == PSC_CMD_FREEZE,
               "command kinds of ctl/ and core/");
_Static_assert(PSC_CTL_SUB_BLOCK_RANK_BYTES == PSC_SUB_BLOCK_RANK_BYTES, "budgets of ctl/ and core/");

struct psc_ctl_entry *psc_ctl_find(uint32_t job)
{
    if (psc_ctl.io == NULL)
        return NULL;
    for (uint32_t i = 0; i < psc_ctl.config.max_jobs; i++) {
        struct psc_ctl_entry *entry = &psc_ctl.entries[i];

        if (entry->number != 0 && entry->number == job && !entry->closing)
            return entry;
    }
    return NULL;
}

static struct psc_ctl_entry *free_entry(void)
{
    for (uint32_t i = 0; i < psc_ctl.config.max_jobs; i++)
        if (psc_ctl.entries[i].number == 0)
            return &psc_ctl.entries[i];
    return NULL;
}

static uint64_t monotonic_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static uint32_t qp_count(const struct psc_ctl_entry *entry)
{
    return entry->pool_count * entry->world_size;
}

static struct psc_ctl_qpns *qpns_of(const struct psc_ctl_entry *entry, uint32_t qp)
{
    return &psc_ctl.qpns[entry->shards[entry->shard_of[qp / entry->world_size]].lane];
}

/* Sends the first `count` of an epoch's QPNs to quarantine. */
static void retire_qps(const struct psc_ctl_entry *entry, struct psc_ctl_qp *qps, uint32_t count)
{
    uint64_t now_us = monotonic_us();

    for (uint32_t i = 0; i < count; i++)
        psc_ctl_qp_retire(qpns_of(entry, i), qps[i].qpn, now_us);
    free(qps);
}

/* Also what psc_ctl_job_open has taken so far. */
void psc_ctl_entry_free(struct psc_ctl_entry *entry)
{
    for (uint32_t i = 0; i < entry->shard_count; i++) {
        if (entry->shards[i].row != NULL)
            psc_segment_set_row_state(entry->shards[i].row, PSC_JOB_ROW_ENDED);
        if (entry->shards[i].job != NULL)
            psc_job_free(entry->shards[i].job);
    }
    if (entry->qps != NULL)
        retire_qps(entry, entry->qps, qp_count(entry));
    memset(entry, 0, sizeof *entry);
}

/* Our ends of an epoch's QPs. NULL: a lane has no QPNs left. */
static struct psc_ctl_qp *make_qps(const struct psc_ctl_entry *entry)
{
    uint64_t now_us = monotonic_us();
    struct psc_ctl_qp *qps = calloc(qp_count(entry), sizeof *qps);

    if (qps == NULL)
        return NULL;
    for (uint32_t i = 0; i < qp_count(entry); i++) {
        uint32_t lane = entry->shards[entry->shard_of[i / entry->world_size]].lane;

        if (!psc_ctl_qp_new(qpns_of(entry, i), lane, now_us, &qps[i])) {
            retire_qps(entry, qps, i);
            return NULL;
        }
    }
    return qps;
}

/* Which lane has which pools. */
static void make_shards(const struct psc_ctl_job *spec, struct psc_ctl_entry *entry)
{
    for (uint32_t pool = 0; pool < spec->pool_count; pool++) {
        uint32_t i = 0;

        while (i < entry->shard_count && entry->shards[i].lane != spec->pools[pool].lane)
            i++;
        if (i == entry->shard_count)
            entry->shards[entry->shard_count++].lane = spec->pools[pool].lane;
        entry->shard_of[pool] = i;
        entry->index_of[pool] = entry->shards[i].pool_count;
        entry->shards[i].pools[entry->shards[i].pool_count++] = pool;
    }
}

static bool claim_rows(const struct psc_ctl_job *spec, struct psc_ctl_entry *entry)
{
    struct psc_job_row_identity identity = {.name = spec->name,
                                            .world_size = spec->world_size,
                                            .epoch = spec->epoch,
                                            .start_time_us = psc_segment_now_us()};

    for (uint32_t i = 0; i < entry->shard_count; i++) {
        identity.lane = entry->shards[i].lane;
        entry->shards[i].row = psc_segment_claim_row(psc_ctl.segment, &identity);
        if (entry->shards[i].row == NULL)
            return false;
    }
    return true;
}

static bool make_jobs(const struct psc_ctl_job *spec, struct psc_ctl_entry *entry)
{
    struct psc_job_spec job = {
        .world_size = spec->world_size, .mtu = spec->mtu, .op_count = spec->op_count, .tag = entry->number};

    memcpy(job.ops, spec->ops, sizeof job.ops);
    memcpy(job.tables, spec->tables, sizeof job.tables);
    for (uint32_t i = 0; i < entry->shard_count; i++) {
        struct psc_ctl_shard *shard = &entry->shards[i];

        job.stats = shard->row;
        job.pool_count = shard->pool_count;
        for (uint32_t k = 0; k < shard->pool_count; k++) {
            const struct psc_ctl_pool *pool = &spec->pools[shard->pools[k]];

            job.pools[k] = (struct psc_pool_spec){
                .pool_class = pool->pool_class, .window = pool->window, .chunk_bytes = pool->chunk_bytes};
        }
        shard->job = psc_job_new(&job, psc_io_memory(psc_ctl.io, shard->lane));
        if (shard->job == NULL)
            return false;
    }
    return true;
}

/* Gives back what psc_ctl_job_open has taken so far. */
static enum psc_ctl_code undo_open(struct psc_ctl_entry *entry, enum psc_ctl_code code)
{
    psc_ctl_entry_free(entry);
    return code;
}

static enum psc_ctl_code command_shard(const struct psc_ctl_shard *shard, struct psc_command *command)
{
    command->job = shard->job;
    return psc_io_command(psc_ctl.io, shard->lane, command) ? PSC_CTL_OK : PSC_CTL_BUSY;
}

/* To all lanes, or to none if one does not take it. */
static enum psc_ctl_code command_all(const struct psc_ctl_entry *entry, struct psc_command *command)
{
    for (uint32_t i = 0; i < entry->shard_count; i++)
        if (entry->shards[i].job != NULL && !psc_io_takes_command(psc_ctl.io, entry->shards[i].lane))
            return PSC_CTL_BUSY;
    for (uint32_t i = 0; i < entry->shard_count; i++)
        if (entry->shards[i].job != NULL)
            (void)command_shard(&entry->shards[i], command);
    return PSC_CTL_OK;
}

enum psc_ctl_code psc_ctl_job_open(const struct psc_ctl_job *spec, uint32_t *job, struct psc_ctl_qp *qps,
                                   char *text)
{
    struct psc_command attach = {.kind = PSC_CMD_ATTACH};
    struct psc_ctl_entry *entry;

    if (psc_ctl.io == NULL)
        return PSC_CTL_STATE;
    if (!psc_ctl_spec_check(spec, psc_ctl.config.lane_count, text))
        return PSC_CTL_ARGUMENT;
    entry = free_entry();
    if (entry == NULL)
        return PSC_CTL_TOO_MANY_JOBS;
    entry->number = ++psc_ctl.next_number;
    entry->world_size = spec->world_size;
    entry->pool_count = spec->pool_count;
    make_shards(spec, entry);
    entry->qps = make_qps(entry);
    if (entry->qps == NULL)
        return undo_open(entry, PSC_CTL_NO_QPN);
    if (!claim_rows(spec, entry))
        return undo_open(entry, PSC_CTL_TOO_MANY_JOBS);
    if (!make_jobs(spec, entry))
        return undo_open(entry, PSC_CTL_MEMORY);
    if (command_all(entry, &attach) != PSC_CTL_OK)
        return undo_open(entry, PSC_CTL_BUSY);
    memcpy(qps, entry->qps, qp_count(entry) * sizeof *qps);
    *job = entry->number;
    return PSC_CTL_OK;
}

enum psc_ctl_code psc_ctl_qp_connect(uint32_t job, uint32_t pool, uint32_t rank,
                                     const struct psc_ctl_peer *peer)
{
    struct psc_command connect = {.kind = PSC_CMD_CONNECT, .rank = rank};
    const struct psc_ctl_entry *entry = psc_ctl_find(job);
    const struct psc_ctl_qp *ours;

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    if (pool >= entry->pool_count || rank >= entry->world_size)
        return PSC_CTL_ARGUMENT;
    ours = &entry->qps[pool * entry->world_size + rank];
    connect.qp = (struct psc_qp_spec){.pool = entry->index_of[pool],
                                      .rank = rank,
                                      .qpn = ours->qpn,
                                      .start_psn = ours->start_psn,
                                      .rkey = ours->rkey,
                                      .va_base = ours->va_base,
                                      .udp_port = (uint16_t)ours->udp_port,
                                      .peer_qpn = peer->qpn,
                                      .peer_start_psn = peer->start_psn,
                                      .result_rkey = peer->result_rkey,
                                      .result_va = peer->result_va,
                                      .received = peer->received};
    memcpy(connect.qp.peer.b, peer->address, sizeof connect.qp.peer.b);
    return command_shard(&entry->shards[entry->shard_of[pool]], &connect);
}

enum psc_ctl_code psc_ctl_job_ready(uint32_t job)
{
    const struct psc_ctl_entry *entry = psc_ctl_find(job);

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    for (uint32_t i = 0; i < entry->shard_count; i++)
        psc_segment_set_row_state(entry->shards[i].row, PSC_JOB_ROW_READY);
    return PSC_CTL_OK;
}

enum psc_ctl_code psc_ctl_job_halt(uint32_t job, uint32_t rank, uint32_t fault)
{
    struct psc_command halt = {.kind = PSC_CMD_HALT, .rank = rank, .fault = fault};
    const struct psc_ctl_entry *entry = psc_ctl_find(job);

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    if (rank >= entry->world_size || fault == PSC_FAULT_NONE || fault >= PSC_FAULT_COUNT)
        return PSC_CTL_ARGUMENT;
    /* Running, one lane's FAULT halts the others; ending, only a lane that owes the rank a result says FAULT.
     */
    return entry->ending ? command_all(entry, &halt) : command_shard(&entry->shards[0], &halt);
}

enum psc_ctl_code psc_ctl_job_resume(uint32_t job, uint32_t epoch, struct psc_ctl_qp *qps)
{
    struct psc_command resume = {.kind = PSC_CMD_RESUME};
    struct psc_ctl_entry *entry = psc_ctl_find(job);
    struct psc_ctl_qp *fresh;

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    if (!entry->halted)
        return PSC_CTL_STATE;
    fresh = make_qps(entry); /* before the old ones are given up: when there are none, nothing has changed */
    if (fresh == NULL)
        return PSC_CTL_NO_QPN;
    if (command_all(entry, &resume) != PSC_CTL_OK) {
        retire_qps(entry, fresh, qp_count(entry));
        return PSC_CTL_BUSY;
    }
    /* Commands stay in order: the lane forgets the old QPNs before anybody can connect one in their place. */
    retire_qps(entry, entry->qps, qp_count(entry));
    entry->qps = fresh;
    entry->halted = entry->ending = false;
    for (uint32_t i = 0; i < entry->shard_count; i++) {
        entry->shards[i].halted = entry->shards[i].ended = false;
        psc_segment_begin_epoch(entry->shards[i].row, epoch);
    }
    memcpy(qps, entry->qps, qp_count(entry) * sizeof *qps);
    return PSC_CTL_OK;
}

enum psc_ctl_code psc_ctl_job_end(uint32_t job, uint64_t dead_ranks)
{
    struct psc_command end = {.kind = PSC_CMD_END, .ranks = dead_ranks};
    struct psc_ctl_entry *entry = psc_ctl_find(job);
    enum psc_ctl_code code;

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    if (entry->halted)
        return PSC_CTL_STATE;
    code = command_all(entry, &end);
    entry->ending = entry->ending || code == PSC_CTL_OK;
    return code;
}

enum psc_ctl_code psc_ctl_rank_leave(uint32_t job, uint32_t rank, const uint32_t *received)
{
    struct psc_command leave = {.kind = PSC_CMD_LEAVE, .rank = rank};
    const struct psc_ctl_entry *entry = psc_ctl_find(job);

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    if (rank >= entry->world_size)
        return PSC_CTL_ARGUMENT;
    for (uint32_t i = 0; i < entry->shard_count; i++)
        if (!psc_io_takes_command(psc_ctl.io, entry->shards[i].lane))
            return PSC_CTL_BUSY;
    for (uint32_t i = 0; i < entry->shard_count; i++) {
        const struct psc_ctl_shard *shard = &entry->shards[i];

        for (uint32_t k = 0; k < shard->pool_count; k++)
            leave.received[k] = received[shard->pools[k]];
        (void)command_shard(shard, &leave);
    }
    return PSC_CTL_OK;
}

enum psc_ctl_code psc_ctl_job_close(uint32_t job)
{
    struct psc_command detach = {.kind = PSC_CMD_DETACH};
    struct psc_ctl_entry *entry = psc_ctl_find(job);
    enum psc_ctl_code code;

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    code = command_all(entry, &detach);
    entry->closing = code == PSC_CTL_OK;
    return code;
}
