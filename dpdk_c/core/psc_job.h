/* core/: what a job is on a lane: the pools of agg/ joined with the queue pairs of qp/, one per pool and
 * rank. Private to core/. All of a job's memory is one piece, taken by psc_job_new; everything in it belongs
 * to the job's lane between ATTACH and DETACHED, and to the control core before and after. */
#ifndef PSC_JOB_H
#define PSC_JOB_H

#include "psc_lane.h"
#include "psc_pool.h"
#include "psc_requester.h"
#include "psc_responder.h"

struct psc_neighbour;
struct psc_job_pool;

enum psc_qp_state {
    PSC_QP_RESET = 0, /* not connected in this epoch */
    PSC_QP_INIT,      /* the next hop's MAC is being asked for */
    PSC_QP_RTS,
    PSC_QP_ERR, /* neither executes nor sends: the job's epoch is over, or nothing is owed to this rank as it
                   ends */
};

/* Where a packet goes, foreseen as frames are parsed (psc_foresee). */
struct psc_foresight {
    uint32_t next_psn; /* of the packet behind it */
    uint32_t round;
    uint32_t range; /* packet of the contribution */
};

/* One queue pair: our end of one rank's connection to one pool. Written by the lane alone. */
struct psc_qp {
    enum psc_qp_state state; /* what every request touches comes first */
    bool cnp_owed;
    bool probe_received;
    bool replying; /* in lane->repliers */
    bool sending;  /* in lane->senders */
    struct psc_job *job;
    struct psc_job_pool *pool;
    struct psc_responder responder;
    struct psc_foresight foresight;
    uint64_t request_ns; /* when a request was last executed */
    struct psc_qp_spec spec;
    struct psc_flow flow;
    struct psc_requester requester;
    struct psc_template middle; /* of `flow`; made when it is first used */
    struct psc_neighbour *next_hop;
    uint32_t
        given_rounds; /* leading results that the rank had when it was connected or that were posted since */
    uint64_t cnp_ns;  /* when a congestion notification was last sent */
    struct psc_qp *timer_next, **timer_link; /* in lane->wheel; link NULL: not there */
};

/* Tag of a message of the requester: a round, or the probe. */
#define PSC_TAG_PROBE UINT64_MAX

/* What is kept of a slot's result besides its bytes. */
struct psc_result {
    struct psc_hold hold;
    uint64_t begun_ns; /* when its round's first contribution began */
    uint64_t told_ns;  /* when a WAITING event was last made of it, or of an earlier round of the slot */
};

/* A pool on its lane: N ordered streams in, one summed stream out. */
struct psc_job_pool {
    struct psc_pool pool;
    struct psc_job *job;
    uint32_t index;             /* in the job */
    struct psc_qp *qps;         /* by rank */
    struct psc_result *results; /* by slot */
    uint32_t first_round;       /* of this epoch */
    uint32_t publishing_round;  /* the round whose result is leaving or will leave next */
    uint32_t published_packets; /* of it */
    uint64_t completed_ns;      /* when a round was last completed */
    bool publishable;           /* in lane->publishable */
    uint64_t contributed_bytes; /* in this turn, not yet in the job's statistics */
};

/* psc_lane.h, at the commands, says what leads from one to the other. */
enum psc_job_state {
    PSC_JOB_NEW = 0,
    PSC_JOB_RUNNING,
    PSC_JOB_HALTED,
    PSC_JOB_ENDING,
    PSC_JOB_ENDED,
    PSC_JOB_DETACHING
};

struct psc_job {
    struct psc_job_spec spec;
    struct psc_memory memory;
    enum psc_job_state state;
    struct psc_job *next;             /* in lane->jobs */
    uint64_t left_ranks;              /* bit per rank that posts nothing more */
    uint64_t leaving_ranks;           /* of them: those that still wait for LEFT */
    struct psc_crc32_shift mtu_shift; /* appends a full packet's CRC to its headers' */
    struct psc_crc32_shift psn_shift; /* the PSN's in a packet without extensions and with a full payload */
    struct psc_job_pool pools[PSC_MAX_POOLS];
};

static inline bool psc_job_attached(const struct psc_job *job)
{
    return job->state != PSC_JOB_NEW && job->state != PSC_JOB_DETACHING;
}

#endif
