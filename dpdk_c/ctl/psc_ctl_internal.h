/* ctl/'s own state. One control thread calls everything; the EAL thread only starts, fetches what ports have
 * lost, and stops. */
#ifndef PSC_CTL_INTERNAL_H
#define PSC_CTL_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "psc_ctl.h"
#include "psc_identity.h"
#include "psc_io.h"
#include "psc_segment.h"

_Static_assert(PSC_CTL_MAX_PORTS == PSC_IO_MAX_PORTS, "ports");
_Static_assert(PSC_CTL_MAX_LANES == PSC_IO_MAX_LANES, "lanes");

/* What one lane has of an open job. */
struct psc_ctl_shard {
    struct psc_job *job; /* NULL: the lane has let go of it */
    struct psc_job_stats *row;
    uint32_t lane;
    uint32_t pool_count;
    uint32_t pools[PSC_MAX_POOLS]; /* the job's number of each */
    uint64_t left_ranks;           /* bit per rank of which LEFT has been read */
    bool halted;                   /* FAULT has been read, and no RESUME has followed */
    bool ended;                    /* ENDED has been read */
    bool freeze_owed;              /* the ring had no room for FREEZE */
};

/* An open job. Written by the control thread. */
struct psc_ctl_entry {
    struct psc_ctl_shard shards[PSC_CTL_MAX_LANES];
    uint32_t shard_count;
    struct psc_ctl_qp *qps; /* [pool * world_size + rank] */
    uint32_t number;        /* what Python calls it, and its tag in events; 0: the entry is free */
    uint32_t world_size;
    uint32_t pool_count;
    uint32_t shard_of[PSC_CTL_MAX_POOLS]; /* by pool */
    uint32_t index_of[PSC_CTL_MAX_POOLS]; /* a pool's number on its lane */
    struct psc_ctl_event fault;           /* the first lane's; its kind 0: none has been read */
    uint32_t complete[PSC_CTL_MAX_POOLS]; /* rounds, as the lanes have last said */
    bool halted;                          /* FAULT has been told, and no RESUME has followed */
    bool ending;                          /* END has been sent */
    bool closing;                         /* DETACH is on its way: no command may follow it */
    bool rejected;                        /* a lane has refused to take it */
};

struct psc_ctl {
    /* Written by psc_ctl_start and psc_ctl_stop. */
    struct psc_ctl_config config;
    struct psc_segment *segment;
    struct psc_io *io;
    struct psc_ctl_entry *entries; /* config.max_jobs of them */
    struct psc_ctl_qpns *qpns;     /* one per lane */
    bool started_once;
    /* Written by the control thread. */
    uint32_t next_number;
    /* Shared with the EAL thread, under `lock`. */
    pthread_t eal_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { PSC_EAL_STARTING, PSC_EAL_RUNNING, PSC_EAL_FAILED, PSC_EAL_STOPPED } eal_state;
    enum { PSC_EAL_RUN, PSC_EAL_STOP, PSC_EAL_CLOSE } eal_wish;
    struct psc_io_error error;
};

extern struct psc_ctl psc_ctl;

/* job.c */
/* NULL: not open, or closing. */
struct psc_ctl_entry *psc_ctl_find(uint32_t job);
/* Frees the job: no lane touches it any more. */
void psc_ctl_entry_free(struct psc_ctl_entry *entry);

/* events.c */
/* FREEZE for lanes whose ring had no room when another lane halted. */
void psc_ctl_freeze_owed(void);

#endif
