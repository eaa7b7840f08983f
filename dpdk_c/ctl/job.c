/* Jobs as Python sees them: open, connect, leave, close, and the lanes' events on the way back. Memory is
 * taken and given back here, by the control thread; a lane only ever borrows a job between ATTACH and
 * DETACHED. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "psc_ctl_internal.h"
#include "psc_spec.h"

_Static_assert((int)PSC_CTL_EVENT_CONNECTED == PSC_EVENT_CONNECTED &&
                   (int)PSC_CTL_EVENT_PROBED == PSC_EVENT_PROBED &&
                   (int)PSC_CTL_EVENT_WAITING == PSC_EVENT_WAITING &&
                   (int)PSC_CTL_EVENT_FAULT == PSC_EVENT_FAULT &&
                   (int)PSC_CTL_EVENT_ENDED == PSC_EVENT_ENDED && (int)PSC_CTL_EVENT_LEFT == PSC_EVENT_LEFT &&
                   (int)PSC_CTL_EVENT_DETACHED == PSC_EVENT_DETACHED,
               "event kinds of ctl/ and core/");
_Static_assert((int)PSC_CTL_COMMAND_ATTACH == PSC_CMD_ATTACH &&
                   (int)PSC_CTL_COMMAND_CONNECT == PSC_CMD_CONNECT &&
                   (int)PSC_CTL_COMMAND_HALT == PSC_CMD_HALT &&
                   (int)PSC_CTL_COMMAND_RESUME == PSC_CMD_RESUME && (int)PSC_CTL_COMMAND_END == PSC_CMD_END &&
                   (int)PSC_CTL_COMMAND_LEAVE == PSC_CMD_LEAVE &&
                   (int)PSC_CTL_COMMAND_DETACH == PSC_CMD_DETACH,
               "command kinds of ctl/ and core/");
_Static_assert(PSC_CTL_SUB_BLOCK_RANK_BYTES == PSC_SUB_BLOCK_RANK_BYTES, "budgets of ctl/ and core/");

struct psc_ctl_entry *psc_ctl_find(uint32_t job)
{
    if (psc_ctl.io == NULL)
        return NULL;
    for (uint32_t i = 0; i < psc_ctl.config.max_jobs; i++) {
        struct psc_ctl_entry *entry = &psc_ctl.entries[i];

        if (entry->job != NULL && entry->number == job && !entry->closing)
            return entry;
    }
    return NULL;
}

static struct psc_ctl_entry *free_entry(void)
{
    for (uint32_t i = 0; i < psc_ctl.config.max_jobs; i++)
        if (psc_ctl.entries[i].job == NULL)
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

/* Sends the first `count` of an epoch's QPNs to quarantine. */
static void retire_qps(const struct psc_ctl_entry *entry, struct psc_ctl_qp *qps, uint32_t count)
{
    uint64_t now_us = monotonic_us();

    for (uint32_t i = 0; i < count; i++)
        psc_ctl_qp_retire(&psc_ctl.qpns[entry->lane], qps[i].qpn, now_us);
    free(qps);
}

void psc_ctl_entry_free(struct psc_ctl_entry *entry)
{
    psc_segment_set_row_state(entry->row, PSC_JOB_ROW_ENDED);
    retire_qps(entry, entry->qps, qp_count(entry));
    psc_job_free(entry->job);
    memset(entry, 0, sizeof *entry);
}

/* Our ends of an epoch's QPs. NULL: the lane has no QPNs left. */
static struct psc_ctl_qp *make_qps(const struct psc_ctl_entry *entry)
{
    uint64_t now_us = monotonic_us();
    struct psc_ctl_qp *qps = calloc(qp_count(entry), sizeof *qps);

    if (qps == NULL)
        return NULL;
    for (uint32_t i = 0; i < qp_count(entry); i++)
        if (!psc_ctl_qp_new(&psc_ctl.qpns[entry->lane], entry->lane, now_us, &qps[i])) {
            retire_qps(entry, qps, i);
            return NULL;
        }
    return qps;
}

static struct psc_job *make_job(const struct psc_ctl_job *spec, struct psc_ctl_entry *entry)
{
    struct psc_job_spec job = {.world_size = spec->world_size,
                               .mtu = spec->mtu,
                               .op_count = spec->op_count,
                               .pool_count = spec->pool_count,
                               .stats = entry->row,
                               .tag = entry->number};

    memcpy(job.ops, spec->ops, sizeof job.ops);
    memcpy(job.tables, spec->tables, sizeof job.tables);
    for (uint32_t i = 0; i < spec->pool_count; i++)
        job.pools[i] = (struct psc_pool_spec){.pool_class = spec->pools[i].pool_class,
                                              .window = spec->pools[i].window,
                                              .chunk_bytes = spec->pools[i].chunk_bytes};
    return psc_job_new(&job, psc_io_memory(psc_ctl.io, spec->lane));
}

/* Gives back what psc_ctl_job_open has taken so far. */
static enum psc_ctl_code undo_open(struct psc_ctl_entry *entry, enum psc_ctl_code code)
{
    if (entry->row != NULL)
        psc_segment_set_row_state(entry->row, PSC_JOB_ROW_ENDED);
    if (entry->qps != NULL)
        retire_qps(entry, entry->qps, qp_count(entry));
    if (entry->job != NULL)
        psc_job_free(entry->job);
    memset(entry, 0, sizeof *entry);
    return code;
}

enum psc_ctl_code psc_ctl_job_open(const struct psc_ctl_job *spec, uint32_t *job, struct psc_ctl_qp *qps,
                                   char *text)
{
    struct psc_job_row_identity identity = {spec->name, spec->world_size, spec->epoch, spec->lane};
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
    entry->lane = spec->lane;
    entry->world_size = spec->world_size;
    entry->pool_count = spec->pool_count;
    entry->qps = make_qps(entry);
    if (entry->qps == NULL)
        return undo_open(entry, PSC_CTL_NO_QPN);
    entry->row = psc_segment_claim_row(psc_ctl.segment, &identity);
    if (entry->row == NULL)
        return undo_open(entry, PSC_CTL_TOO_MANY_JOBS);
    entry->job = make_job(spec, entry);
    if (entry->job == NULL)
        return undo_open(entry, PSC_CTL_MEMORY);
    attach.job = entry->job;
    if (!psc_io_command(psc_ctl.io, entry->lane, &attach))
        return undo_open(entry, PSC_CTL_BUSY);
    memcpy(qps, entry->qps, qp_count(entry) * sizeof *qps);
    *job = entry->number;
    return PSC_CTL_OK;
}

static enum psc_ctl_code command(const struct psc_ctl_entry *entry, struct psc_command *command)
{
    command->job = entry->job;
    return psc_io_command(psc_ctl.io, entry->lane, command) ? PSC_CTL_OK : PSC_CTL_BUSY;
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
    connect.qp = (struct psc_qp_spec){.pool = pool,
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
    return command(entry, &connect);
}

enum psc_ctl_code psc_ctl_job_ready(uint32_t job)
{
    const struct psc_ctl_entry *entry = psc_ctl_find(job);

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    psc_segment_set_row_state(entry->row, PSC_JOB_ROW_READY);
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
    return command(entry, &halt);
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
    if (command(entry, &resume) != PSC_CTL_OK) {
        retire_qps(entry, fresh, qp_count(entry));
        return PSC_CTL_BUSY;
    }
    /* Commands stay in order: the lane forgets the old QPNs before anybody can connect one in their place. */
    retire_qps(entry, entry->qps, qp_count(entry));
    entry->qps = fresh;
    entry->halted = false;
    psc_segment_begin_epoch(entry->row, epoch);
    memcpy(qps, entry->qps, qp_count(entry) * sizeof *qps);
    return PSC_CTL_OK;
}

enum psc_ctl_code psc_ctl_job_end(uint32_t job, uint64_t dead_ranks)
{
    struct psc_command end = {.kind = PSC_CMD_END, .ranks = dead_ranks};
    const struct psc_ctl_entry *entry = psc_ctl_find(job);

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    return entry->halted ? PSC_CTL_STATE : command(entry, &end);
}

enum psc_ctl_code psc_ctl_rank_leave(uint32_t job, uint32_t rank, const uint32_t *received)
{
    struct psc_command leave = {.kind = PSC_CMD_LEAVE, .rank = rank};
    const struct psc_ctl_entry *entry = psc_ctl_find(job);

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    if (rank >= entry->world_size)
        return PSC_CTL_ARGUMENT;
    memcpy(leave.received, received, entry->pool_count * sizeof *received);
    return command(entry, &leave);
}

enum psc_ctl_code psc_ctl_job_close(uint32_t job)
{
    struct psc_command detach = {.kind = PSC_CMD_DETACH};
    struct psc_ctl_entry *entry = psc_ctl_find(job);
    enum psc_ctl_code code;

    if (entry == NULL)
        return PSC_CTL_NO_JOB;
    code = command(entry, &detach);
    entry->closing = code == PSC_CTL_OK;
    return code;
}

/* ---- Events ---- */

int psc_ctl_event_fd(void)
{
    return psc_ctl.io == NULL ? -1 : psc_io_event_fd(psc_ctl.io);
}

static struct psc_ctl_entry *entry_of(const struct psc_job *job)
{
    for (uint32_t i = 0; i < psc_ctl.config.max_jobs; i++)
        if (psc_ctl.entries[i].job == job)
            return &psc_ctl.entries[i];
    return NULL;
}

int psc_ctl_next_event(struct psc_ctl_event *event)
{
    struct psc_io_event from;
    struct psc_ctl_entry *entry;

    do {
        if (psc_ctl.io == NULL || !psc_io_next_event(psc_ctl.io, &from))
            return 0;
        entry = entry_of(from.event.job);
    } while (entry == NULL);
    *event =
        (struct psc_ctl_event){.kind = from.rejected ? PSC_CTL_EVENT_REJECTED : (uint32_t)from.event.kind,
                               .job = entry->number,
                               .pool = from.event.pool,
                               .rank = from.event.rank,
                               .round = from.event.round,
                               .ranks = from.event.ranks,
                               .fault = from.event.fault,
                               .expected = from.event.expected,
                               .got = from.rejected ? from.rejected_kind : from.event.got};
    memcpy(event->complete, from.event.complete, sizeof event->complete);
    if (event->kind == PSC_CTL_EVENT_FAULT)
        entry->halted = true;
    if (event->kind == PSC_CTL_EVENT_DETACHED ||
        (event->kind == PSC_CTL_EVENT_REJECTED && event->got == PSC_CMD_ATTACH))
        psc_ctl_entry_free(entry);
    return 1;
}
