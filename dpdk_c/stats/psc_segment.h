/* stats/: the statistics segment, a file on tmpfs that others map read-only (contract/psc_stats.def.h).
 * Made, kept alive and closed by the control core; lanes only get a pointer to their block and count in it.
 * Beside the story: nothing in either story waits for it. */
#ifndef PSC_SEGMENT_H
#define PSC_SEGMENT_H

#include <stdint.h>

#include "psc_stats.h"

struct psc_segment;

enum psc_job_row_state {
    PSC_JOB_ROW_FREE = 0,
    PSC_JOB_ROW_JOINING = 1,
    PSC_JOB_ROW_READY = 2,
    PSC_JOB_ROW_ENDED = 3
};

/* Makes the segment at `path` with mode 0644. A new inode each time: whoever still maps an older one keeps
 * reading the older one. NULL: errno says why. */
struct psc_segment *psc_segment_create(const char *path, uint32_t lanes, uint32_t job_rows);
/* Marks it as cleanly stopped and unmaps it; the file stays, so that a late reader sees how it ended. */
void psc_segment_close(struct psc_segment *segment);

/* Renews heartbeat_us; the control thread calls it at least once a second. */
void psc_segment_heartbeat(struct psc_segment *segment);

struct psc_lane_stats *psc_segment_lane(struct psc_segment *segment, uint32_t lane);

/* What identifies a row. */
struct psc_job_row_identity {
    const char *name;
    uint32_t world_size;
    uint32_t epoch;
    uint32_t lane;
    uint64_t start_time_us; /* CLOCK_REALTIME: one for all lanes of a life, and only for them */
};
uint64_t psc_segment_now_us(void);

/* A row for what a lane has of a job that begins: the ended row of the same name and lane (its counters go
 * on, as a job's do), else a free one, else the one that ended longest ago, from zero. NULL: every row is a
 * living job's. */
struct psc_job_stats *psc_segment_claim_row(struct psc_segment *segment,
                                            const struct psc_job_row_identity *identity);
/* The job of the row goes on in a new epoch, for which its ranks join again. */
void psc_segment_begin_epoch(struct psc_job_stats *row, uint32_t epoch);
void psc_segment_set_row_state(struct psc_job_stats *row, enum psc_job_row_state state);

#endif
