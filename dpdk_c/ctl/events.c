/* The lanes' events on the way to Python: each lane speaks of its part of a job as of a whole, and here the
 * parts become one. What concerns a pool goes on with the job's number of it; a fault on one lane halts the
 * job on all, and FAULT, ENDED, LEFT and DETACHED are told when all lanes have told them. */
#include <string.h>

#include "psc_ctl_internal.h"

_Static_assert((int)PSC_CTL_EVENT_CONNECTED == PSC_EVENT_CONNECTED &&
                   (int)PSC_CTL_EVENT_PROBED == PSC_EVENT_PROBED &&
                   (int)PSC_CTL_EVENT_WAITING == PSC_EVENT_WAITING &&
                   (int)PSC_CTL_EVENT_FAULT == PSC_EVENT_FAULT &&
                   (int)PSC_CTL_EVENT_ENDED == PSC_EVENT_ENDED && (int)PSC_CTL_EVENT_LEFT == PSC_EVENT_LEFT &&
                   (int)PSC_CTL_EVENT_DETACHED == PSC_EVENT_DETACHED,
               "event kinds of ctl/ and core/");
int psc_ctl_event_fd(void)
{
    return psc_ctl.io == NULL ? -1 : psc_io_event_fd(psc_ctl.io);
}

static struct psc_ctl_shard *shard_of(const struct psc_job *job, struct psc_ctl_entry **entry)
{
    for (uint32_t i = 0; i < psc_ctl.config.max_jobs; i++)
        for (uint32_t k = 0; k < psc_ctl.entries[i].shard_count; k++)
            if (psc_ctl.entries[i].shards[k].job == job) {
                *entry = &psc_ctl.entries[i];
                return &psc_ctl.entries[i].shards[k];
            }
    return NULL;
}

/* The event in the job's numbers; `complete` is the entry's, into which its lane's pools have gone. */
static struct psc_ctl_event translate(const struct psc_io_event *from, struct psc_ctl_entry *entry,
                                      const struct psc_ctl_shard *shard)
{
    struct psc_ctl_event event = {
        .kind = from->rejected ? PSC_CTL_EVENT_REJECTED : (uint32_t)from->event.kind,
        .job = entry->number,
        .pool = from->event.pool < shard->pool_count ? shard->pools[from->event.pool] : 0,
        .rank = from->event.rank,
        .round = from->event.round,
        .ranks = from->event.ranks,
        .fault = from->event.fault,
        .expected = from->event.expected,
        .got = from->rejected ? from->rejected_kind : from->event.got};

    if (!from->rejected)
        for (uint32_t k = 0; k < shard->pool_count; k++)
            entry->complete[shard->pools[k]] = from->event.complete[k];
    memcpy(event.complete, entry->complete, sizeof event.complete);
    return event;
}

static void freeze(struct psc_ctl_shard *shard)
{
    const struct psc_command command = {.kind = PSC_CMD_FREEZE, .job = shard->job};

    shard->freeze_owed = !psc_io_command(psc_ctl.io, shard->lane, &command);
}

/* Of a job that is closing no lane is owed any: nothing may follow the DETACH, after which its memory goes.
 */
void psc_ctl_freeze_owed(void)
{
    if (psc_ctl.io == NULL)
        return;
    for (uint32_t i = 0; i < psc_ctl.config.max_jobs; i++)
        for (uint32_t k = 0; k < psc_ctl.entries[i].shard_count; k++)
            if (psc_ctl.entries[i].shards[k].freeze_owed && !psc_ctl.entries[i].closing)
                freeze(&psc_ctl.entries[i].shards[k]);
}

/* The first lane's fault is the job's; the others halt, and what all of them have complete is told with it.
 */
static bool on_fault(struct psc_ctl_entry *entry, struct psc_ctl_shard *shard, struct psc_ctl_event *event)
{
    bool first = entry->fault.kind == 0, all = true;

    shard->halted = true;
    shard->ended = shard->freeze_owed = false;
    if (first)
        entry->fault = *event;
    for (uint32_t i = 0; i < entry->shard_count; i++) {
        struct psc_ctl_shard *other = &entry->shards[i];

        if (first && !other->halted && !entry->closing)
            freeze(other);
        all = all && other->halted;
    }
    if (!all)
        return false;
    *event = entry->fault;
    memcpy(event->complete, entry->complete, sizeof event->complete);
    entry->fault.kind = 0;
    entry->halted = true;
    return true;
}

static bool on_ended(struct psc_ctl_entry *entry, struct psc_ctl_shard *shard)
{
    shard->ended = true;
    for (uint32_t i = 0; i < entry->shard_count; i++)
        if (!entry->shards[i].ended)
            return false;
    return true;
}

static bool on_left(const struct psc_ctl_entry *entry, struct psc_ctl_shard *shard, uint32_t rank)
{
    shard->left_ranks |= UINT64_C(1) << rank;
    for (uint32_t i = 0; i < entry->shard_count; i++)
        if (!(entry->shards[i].left_ranks >> rank & 1))
            return false;
    return true;
}

/* A lane has let go of its part; of a job that another lane has not even taken, nobody is told any more. */
static bool on_detached(struct psc_ctl_entry *entry, struct psc_ctl_shard *shard)
{
    bool told = !entry->rejected;

    psc_job_free(shard->job);
    shard->job = NULL;
    for (uint32_t i = 0; i < entry->shard_count; i++)
        if (entry->shards[i].job != NULL)
            return false;
    psc_ctl_entry_free(entry);
    return told;
}

/* A job that one lane does not take is taken back from the others. */
static void on_attach_rejected(struct psc_ctl_entry *entry, struct psc_ctl_shard *shard)
{
    struct psc_command detach = {.kind = PSC_CMD_DETACH};

    if (!entry->rejected)
        for (uint32_t i = 0; i < entry->shard_count; i++)
            if (&entry->shards[i] != shard) {
                detach.job = entry->shards[i].job;
                (void)psc_io_command(psc_ctl.io, entry->shards[i].lane, &detach);
            }
    entry->rejected = entry->closing = true;
    (void)on_detached(entry, shard);
}

/* Whether Python is told of it. */
static bool take(struct psc_ctl_entry *entry, struct psc_ctl_shard *shard, struct psc_ctl_event *event)
{
    switch (event->kind) {
    case PSC_CTL_EVENT_FAULT:
        return on_fault(entry, shard, event);
    case PSC_CTL_EVENT_ENDED:
        return on_ended(entry, shard);
    case PSC_CTL_EVENT_LEFT:
        return on_left(entry, shard, event->rank);
    case PSC_CTL_EVENT_DETACHED:
        return on_detached(entry, shard);
    case PSC_CTL_EVENT_REJECTED: {
        bool told = !entry->rejected && event->got != PSC_CMD_FREEZE; /* it has met a DETACH */

        if (event->got == PSC_CMD_ATTACH)
            on_attach_rejected(entry, shard);
        return told;
    }
    default:
        return true;
    }
}

int psc_ctl_next_event(struct psc_ctl_event *event)
{
    struct psc_ctl_entry *entry;
    struct psc_ctl_shard *shard;
    struct psc_io_event from;

    psc_ctl_freeze_owed();
    while (psc_ctl.io != NULL && psc_io_next_event(psc_ctl.io, &from)) {
        shard = shard_of(from.event.job, &entry);
        if (shard == NULL)
            continue;
        *event = translate(&from, entry, shard);
        if (take(entry, shard, event))
            return 1;
    }
    return 0;
}
