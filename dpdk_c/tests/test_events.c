/* A FREEZE that a lane's ring had no room for, and what may not follow a DETACH. The ring of a real lane is
 * full by chance only, so here the io/ beneath events.c is a ring that is full when the test says so. */
#include "support.h"

#include <string.h>

#include "psc_ctl_internal.h"

struct psc_ctl psc_ctl;

static struct psc_io_event told; /* the next event, if its kind is not 0 */
static struct psc_command taken; /* the last command */
static uint32_t taken_count;
static bool full;

bool psc_io_command(struct psc_io *io, uint32_t lane, const struct psc_command *command)
{
    (void)io, (void)lane;
    if (full)
        return false;
    taken = *command;
    taken_count++;
    return true;
}

bool psc_io_next_event(struct psc_io *io, struct psc_io_event *event)
{
    bool is_there = told.event.job != NULL;

    (void)io;
    *event = told;
    told.event.job = NULL;
    return is_there;
}

int psc_io_event_fd(const struct psc_io *io)
{
    (void)io;
    return -1;
}

void psc_ctl_entry_free(struct psc_ctl_entry *entry)
{
    memset(entry, 0, sizeof *entry);
}

void psc_job_free(struct psc_job *job)
{
    (void)job;
}

static char parts[2]; /* of the job: their addresses alone are looked at */
static struct psc_ctl_entry entry;

static void read_event(enum psc_event_kind kind, uint32_t part, int expected)
{
    struct psc_ctl_event event;

    told.event = (struct psc_event){.kind = kind, .job = entry.shards[part].job};
    assert_int_equal(psc_ctl_next_event(&event), expected);
}

/* A job on two lanes whose first has halted while the second's ring was full. */
static int owe_freeze(void **state)
{
    (void)state;
    memset(&entry, 0, sizeof entry);
    entry.number = 1;
    entry.shard_count = 2;
    for (uint32_t i = 0; i < 2; i++)
        entry.shards[i] = (struct psc_ctl_shard){.job = (struct psc_job *)(void *)&parts[i], .lane = i};
    psc_ctl.io = (struct psc_io *)(void *)&entry;
    psc_ctl.entries = &entry;
    psc_ctl.config.max_jobs = 1;
    taken_count = 0;
    full = true;
    read_event(PSC_EVENT_FAULT, 0, 0);
    assert_true(entry.shards[1].freeze_owed);
    full = false;
    return 0;
}

static void what_is_owed_is_sent_once(void **state)
{
    (void)state;
    psc_ctl_freeze_owed();
    psc_ctl_freeze_owed();
    assert_int_equal(taken_count, 1);
    assert_int_equal(taken.kind, PSC_CMD_FREEZE);
    assert_ptr_equal(taken.job, entry.shards[1].job);
    read_event(PSC_EVENT_FAULT, 1, 1);
    assert_true(entry.halted);
}

/* The lane lets go of its part at DETACH, and its memory is freed when that has been read. */
static void nothing_follows_detach(void **state)
{
    (void)state;
    entry.closing = true; /* as psc_ctl_job_close has it */
    psc_ctl_freeze_owed();
    assert_int_equal(taken_count, 0);
    read_event(PSC_EVENT_DETACHED, 1, 0);
    psc_ctl_freeze_owed();
    assert_int_equal(taken_count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(what_is_owed_is_sent_once, owe_freeze),
                                       cmocka_unit_test_setup(nothing_follows_detach, owe_freeze)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
