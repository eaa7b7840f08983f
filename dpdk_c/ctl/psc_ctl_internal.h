/* ctl/'s own state. One control thread calls everything; the EAL thread only starts, renews the heartbeat and
 * stops. */
#ifndef PSC_CTL_INTERNAL_H
#define PSC_CTL_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "psc_ctl.h"
#include "psc_io.h"
#include "psc_segment.h"

_Static_assert(PSC_CTL_MAX_PORTS == PSC_IO_MAX_PORTS, "ports");
_Static_assert(PSC_CTL_MAX_LANES == PSC_IO_MAX_LANES, "lanes");

#define PSC_CTL_LANE_QPS (1u << PSC_QP_INDEX_BITS)
/* QPNs that one index of the lane's table remembers as recently used. */
#define PSC_CTL_RETIRED_PER_INDEX 8

/* One index of a lane's QP table. Written by the control thread. */
struct psc_ctl_qp_index {
    bool used;
    uint32_t retired_qpn[PSC_CTL_RETIRED_PER_INDEX];
    uint64_t retired_us[PSC_CTL_RETIRED_PER_INDEX]; /* CLOCK_MONOTONIC; 0: empty */
};

/* The QPNs of a lane. Written by the control thread. */
struct psc_ctl_qpns {
    struct psc_ctl_qp_index index[PSC_CTL_LANE_QPS];
    uint32_t cursor; /* indexes are taken in turn, so that one rests as long as possible */
    uint32_t used;
};

/* An open job. Written by the control thread. */
struct psc_ctl_entry {
    struct psc_job *job; /* NULL: the entry is free */
    struct psc_job_stats *row;
    struct psc_ctl_qp *qps; /* [pool * world_size + rank] */
    uint32_t number;        /* what Python calls it, and its tag in events */
    uint32_t lane;
    uint32_t world_size;
    uint32_t pool_count;
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
    enum { PSC_EAL_STARTING, PSC_EAL_RUNNING, PSC_EAL_FAILED, PSC_EAL_LANES_STOPPED } eal_state;
    enum { PSC_EAL_RUN, PSC_EAL_STOP_LANES, PSC_EAL_CLOSE } eal_wish;
    struct psc_io_error error;
};

extern struct psc_ctl psc_ctl;

/* identity.c: what a peer must not be able to guess. */
uint64_t psc_ctl_random(void);
/* Fills our end of a new QP; false: the lane has no index left whose QPN may be used. */
bool psc_ctl_qp_new(struct psc_ctl_qpns *qpns, uint32_t lane, struct psc_ctl_qp *qp);
void psc_ctl_qp_retire(struct psc_ctl_qpns *qpns, uint32_t qpn);

/* job.c */
/* NULL: not open, or closing. */
struct psc_ctl_entry *psc_ctl_find(uint32_t job);
/* Frees the job: its lane no longer touches it. */
void psc_ctl_entry_free(struct psc_ctl_entry *entry);

#endif
