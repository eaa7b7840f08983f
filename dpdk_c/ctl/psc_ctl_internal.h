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

/* An open job. Written by the control thread. */
struct psc_ctl_entry {
    struct psc_job *job; /* NULL: the entry is free */
    struct psc_job_stats *row;
    struct psc_ctl_qp *qps; /* [pool * world_size + rank] */
    uint32_t number;        /* what Python calls it, and its tag in events */
    uint32_t lane;
    uint32_t world_size;
    uint32_t pool_count;
    bool halted;  /* FAULT has been read, and no RESUME has followed */
    bool closing; /* DETACH is on its way: no command may follow it */
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
/* Frees the job: its lane no longer touches it. */
void psc_ctl_entry_free(struct psc_ctl_entry *entry);

#endif
