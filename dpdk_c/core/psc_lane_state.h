/* core/: the lane's state and the steps that its files share. Private to core/. Everything here is written by
 * the lane's own core alone, so nothing is locked. */
#ifndef PSC_LANE_STATE_H
#define PSC_LANE_STATE_H

#include "psc_job.h"

/* What counting costs, a benchmark finds out by a lane that does not count. */
#ifdef PSC_BENCH_NO_COUNTERS
#define PSC_COUNT(counter, by) ((void)&(counter), (void)(by))
#else
#define PSC_COUNT(counter, by) ((counter) += (by))
#endif

#define PSC_LANE_QPS     (1u << PSC_QP_INDEX_BITS)
#define PSC_LANE_ANSWERS 16
#define PSC_ANSWER_BYTES 9728 /* a jumbo ping is answered: it is how people test the path MTU */
#define PSC_LANE_EVENTS  (7 * PSC_LANE_QPS)
#define PSC_LANE_ZEROS   4096 /* the largest MTU: payload of probes */

/* A next hop. Entries are never moved; one without users may be given to another address. */
struct psc_neighbour {
    struct psc_ip ip;
    struct psc_mac mac;
    bool known;
    uint32_t users;      /* QPs that send to it */
    uint32_t asked;      /* requests since it was last unknown */
    uint64_t asked_ns;   /* when the last one was sent */
    uint64_t learned_ns; /* when its MAC was last heard */
};

/* A frame that the lane answers by itself (ARP, neighbour discovery, ping); free while nobody holds it. */
struct psc_answer {
    struct psc_hold hold;
    uint8_t *data; /* PSC_ANSWER_BYTES */
};

/* Coarse timers: a ring of ticks, each with the QPs to be looked at then, and no QP in it that waits for
 * nothing. What a QP waits for may change after it was put there, to something earlier by at most the ACK
 * timer, so none is put further ahead than that; what has come to pass since is seen when it is looked at. */
#define PSC_LANE_TICKS                16 /* a power of two */
#define PSC_LANE_TICKS_PER_RETRANSMIT 8

struct psc_wheel {
    struct psc_qp *ticks[PSC_LANE_TICKS];
    uint64_t tick;    /* the next to be looked at, by its number from time 0 */
    uint64_t tick_ns; /* a tick's length */
};
_Static_assert(PSC_LANE_TICKS_PER_RETRANSMIT + 1 < PSC_LANE_TICKS, "the ACK timer is within the ring");

/* QPs with something to do. A QP is in a set at most once, so a set never overflows. */
struct psc_qp_set {
    struct psc_qp *qps[PSC_LANE_QPS];
    uint32_t count;
    uint32_t next; /* where serving goes on */
};

struct psc_lane {
    struct psc_lane_config config;
    struct psc_requester_config requester_config;
    struct psc_memory memory;
    struct psc_lane_stats *stats;
    uint64_t now_ns;             /* of the turn or command in progress */
    uint64_t turn_ns;            /* when the last turn began */
    struct psc_wheel wheel;      /* of QPs */
    uint64_t sweep_ns;           /* when neighbours, pools and jobs that detach are to be looked at next */
    uint32_t catching_up_frames; /* after a pause: frames to read before clocks are judged again */
    uint64_t catch_up_end_ns;    /* but no later than this */

    struct psc_qp *qps[PSC_LANE_QPS]; /* by the index in the QPN; NULL: unknown */
    struct psc_job *jobs;
    struct psc_qp_set repliers;                     /* owe an ACK, a NAK or a CNP */
    struct psc_qp_set senders;                      /* may have result packets to send */
    struct psc_job_pool *publishable[PSC_LANE_QPS]; /* contributed to in this turn; every pool has a QP */
    uint32_t publishable_count;

    struct psc_neighbour neighbours[PSC_LANE_QPS];
    uint32_t neighbour_count;
    struct psc_answer answers[PSC_LANE_ANSWERS];
    uint8_t
        *unsent_answer; /* PSC_ANSWER_BYTES: is made here when all answers are lent, to see if one is due */
    struct psc_hold zeros_hold;
    uint8_t *zeros;

    struct psc_event events[PSC_LANE_EVENTS]; /* ring */
    uint32_t event_head, event_count;
};

/* The emits of one turn. */
struct psc_outbox {
    struct psc_emit *emits;
    uint32_t count, max;
};
static inline bool psc_outbox_full(const struct psc_outbox *out)
{
    return out->count == out->max;
}
/* The next emit, to be filled; there is room. */
struct psc_emit *psc_outbox_take(struct psc_outbox *out);

/* psc_receive.c, psc_request.c, psc_response.c: frame in. The verdicts are counted by psc_receive_frames. */
void psc_receive_frames(struct psc_lane *lane, const struct psc_frame *frames, uint32_t n,
                        struct psc_outbox *out);
/* Where a request's payload goes if it and all that is parsed before it are executed. Called for each request
 * of the QP as it is parsed; decides nothing: somebody else's frame may mislead it. False: it cannot be said.
 */
bool psc_foresee(struct psc_qp *qp, const struct psc_packet *packet, struct psc_foresight *foreseen);
enum psc_drop psc_receive_request(struct psc_lane *lane, struct psc_qp *qp, const struct psc_packet *packet);
enum psc_drop psc_receive_response(struct psc_lane *lane, struct psc_qp *qp, const struct psc_packet *packet);
/* Books the results that the rank's requester has seen acknowledged, in whatever way, and lets it go on. */
void psc_settle_acknowledged(struct psc_lane *lane, struct psc_qp *qp);

/* psc_publish.c: results out. */
void psc_mark_publishable(struct psc_lane *lane, struct psc_job_pool *pool);
/* Adds what waits in the pools that were contributed to: payloads of this turn's frames. */
void psc_add_contributions(struct psc_lane *lane);
void psc_publish_results(struct psc_lane *lane);
void psc_want_to_send(struct psc_lane *lane, struct psc_qp *qp);
/* Appends a message to the QP's stream; there is room (psc_job.c). */
void psc_post_message(struct psc_qp *qp, uint64_t tag, uint32_t packets);
/* Complete results that the rank lacked when it was connected, and that wait for its probe. */
bool psc_lacks_results(const struct psc_qp *qp);
void psc_deliver_missing(struct psc_lane *lane, struct psc_qp *qp);
void psc_send_results(struct psc_lane *lane, struct psc_outbox *out);

/* psc_reply.c: ACK, NAK, CNP; neighbours and pings. */
void psc_want_to_reply(struct psc_lane *lane, struct psc_qp *qp);
void psc_send_replies(struct psc_lane *lane, struct psc_outbox *out);
enum psc_drop psc_answer_host(struct psc_lane *lane, const struct psc_frame *frame, struct psc_outbox *out);
/* A free answer buffer, or NULL. */
struct psc_answer *psc_answer_find(struct psc_lane *lane);
void psc_answer_emit(struct psc_answer *answer, uint32_t bytes, struct psc_outbox *out);

/* psc_neighbour.c: who has our next hop's address. */
void psc_neighbour_connect(struct psc_lane *lane, struct psc_qp *qp);
void psc_neighbour_release(struct psc_qp *qp);
void psc_neighbour_learn(struct psc_lane *lane, const struct psc_frame *frame);
void psc_neighbours_ask(struct psc_lane *lane, struct psc_outbox *out);

/* psc_clock.c: what is due. */
void psc_time_qp(struct psc_lane *lane, struct psc_qp *qp); /* anew, by what it waits for */
void psc_untime_qp(struct psc_qp *qp);
/* It has begun to wait for something: an ACK, or the rest of a message. */
static inline void psc_want_time(struct psc_lane *lane, struct psc_qp *qp)
{
    if (!qp->timer_link)
        psc_time_qp(lane, qp);
}
void psc_start_turn(struct psc_lane *lane, uint64_t now_ns);
void psc_judge_clocks(struct psc_lane *lane, uint32_t received, struct psc_outbox *out);

/* psc_command.c: ends of things. */
void psc_answer_leavers(struct psc_lane *lane, struct psc_job *job);
void psc_detach_when_unheld(struct psc_lane *lane);
/* The lane no longer knows the job's QPNs; its QPs get this state. */
void psc_forget_qps(struct psc_lane *lane, struct psc_job *job, enum psc_qp_state state);

/* psc_epoch.c: from one epoch to the next, or to the end. */
bool psc_job_halt(struct psc_lane *lane, struct psc_job *job, uint32_t rank, uint32_t fault);
bool psc_job_freeze(struct psc_lane *lane, struct psc_job *job);
bool psc_job_resume(struct psc_lane *lane, struct psc_job *job);
bool psc_job_end(struct psc_lane *lane, struct psc_job *job, uint64_t dead_ranks);
/* An epoch has ended by a fault. */
void psc_count_fault(struct psc_job *job);
/* Tells ENDED once nobody is owed a result any more. */
void psc_answer_end(struct psc_lane *lane, struct psc_job *job);
/* Ends the job's epoch on this lane: FAULT is told once, its QPs are in ERR, nothing of it is executed or
 * sent. A job that is ending loses this QP alone if no result is owed to its rank any more. */
void psc_fault_job(struct psc_lane *lane, const struct psc_qp *qp, uint32_t round,
                   const struct psc_refusal *why);

/* psc_event.c: what the control core is told. */
struct psc_event psc_event_of(enum psc_event_kind kind, struct psc_job *job);
void psc_event_push(struct psc_lane *lane, const struct psc_event *event);

#endif
