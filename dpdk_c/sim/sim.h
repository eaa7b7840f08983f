/* sim/: the rack, as all files of the simulation see it: appliance, network, workers, control plane, oracle.
 * One process, one thread, one clock (now_ns); whatever happens is an entry of the agenda. */
#ifndef SIM_H
#define SIM_H

#include "psc_lane.h"
#include "sim_agenda.h"
#include "sim_data.h"
#include "sim_plan.h"
#include "sim_tally.h"
#include "sim_trace.h"

struct sim_worker;
struct sim_job;

/* What a worker says on its control connection. AGAIN: another process of the rank joins, its host has not
 * said that the first is gone. */
enum sim_asking {
    SIM_ASK_CONNECT,
    SIM_ASK_BROKEN,
    SIM_ASK_RESUME,
    SIM_ASK_LEAVE,
    SIM_ASK_AGAIN,
    SIM_ASK_CLOSED
};

/* A frame under way. */
struct sim_frame {
    struct sim_worker *worker; /* its sender or receiver */
    uint32_t life;             /* of the worker's job, when it was sent */
    bool to_appliance;
    bool intact; /* every byte that the ICRC covers is as it was sent */
    uint32_t bytes;
    uint8_t data[];
};

/* What the oracle knows of one direction of a queue pair, in one epoch. Written by sim_oracle.c. Packet 0 is
 * the probe, packet p > 0 is packet base + p of the pool's program. */
struct sim_stream {
    uint32_t start_psn;
    uint32_t first_round; /* that it carries: out, the first void one; in, the first that the rank lacks */
    uint32_t base;
    uint32_t packets;  /* planned, with the probe */
    uint64_t *content; /* hash of what a packet carried when it was first sent; 0: not yet */
    bool *delivered;   /* it has reached the other end at least once, intact */
    uint32_t whole;    /* leading packets that have */
};

/* One end of one queue pair: a worker's pool. */
struct sim_queue {
    struct sim_worker *worker;
    uint32_t pool;
    struct sim_endpoint *endpoint; /* NULL: no queue pair */
    /* of this epoch; sim_life_renew draws them */
    uint32_t qpn, appliance_qpn;       /* 0: the lane no longer knows it */
    uint32_t start_psn, appliance_psn; /* of the worker's and of the appliance's requests */
    uint32_t rkey;
    uint64_t va_base;
    uint16_t udp_port;
    bool probe_completed;
    struct sim_stream out, in; /* to the appliance; from it */
    /* of this life */
    uint8_t *contributions;   /* W slots */
    struct sim_region region; /* W results, and guards around them */
    uint8_t *guarded;         /* the whole allocation */
    uint32_t stored;          /* rounds whose contribution has been made; the last W of them are kept */
    uint32_t posted, completed, drained; /* rounds; an epoch's end takes `posted` back */
    uint64_t *arrived;                   /* hash of a result when its immediate came, by round */
};

/* Where a worker's process stands in its job's life. */
enum sim_standing {
    SIM_ABSENT,  /* no process, or not in this life */
    SIM_JOINING, /* a life, or an epoch */
    SIM_RUNNING,
    SIM_HALTED, /* the epoch has ended: it has flushed, drained and said what it has */
    SIM_LEAVING,
    SIM_LEFT,
    SIM_ENDED,  /* told by the appliance: `error` is its fault */
    SIM_FAILED, /* found out by itself */
};

/* A worker's QPN is base + n << bits | place: n counts queue pairs, the place says whose it is. */
#define SIM_QPN_BASE   0x1000u
#define SIM_PLACE_BITS 6
_Static_assert(SIM_JOBS *SIM_RANKS *SIM_POOLS <= 1 << SIM_PLACE_BITS, "every queue has a place");

/* One direction of a worker's link. Written by sim_network.c and sim_faults.c. */
struct sim_link {
    uint64_t last_arrival_ns;
    uint64_t hole_from_ns, hole_to_ns;
    uint64_t control_ns;      /* the control connection's last delivery: it keeps order */
    struct sim_frame *old[4]; /* frames that may come again as ghosts */
    uint32_t olds;
};

struct sim_worker {
    struct sim_job *job;
    uint32_t rank;
    uint8_t mac[6], ip[4];
    enum sim_standing standing;
    uint32_t error; /* enum psc_fault or enum sim_fault_of_control, when ENDED */
    bool cut_off;   /* a black hole, a freeze or a dead appliance: may find out by itself */
    bool wants_to_leave, abrupt;
    bool blocked;    /* the send queue was full */
    bool been_ready; /* in this life */
    bool broken;     /* a queue pair of this epoch has failed */
    bool excused;    /* when the life ended, nothing could be delivered to it */
    uint64_t frozen_until_ns, paused_until_ns;
    uint64_t disturbed_until_ns; /* a strike on it or its path lasts until then */
    uint64_t progress_ns;        /* last time anything moved for it */
    uint64_t fault_ns; /* when it knew that an epoch is over; 0: it is not. A verdict may be on its way */
    uint64_t step_ns, timer_ns; /* the planned entries; others are stale */
    struct sim_link to_appliance, from_appliance;
    struct sim_queue queues[SIM_POOLS];
    uint32_t left_received[SIM_POOLS];
};

/* Endings that only the control plane knows; above enum psc_fault. */
enum sim_fault_of_control {
    SIM_FAULT_STRAGGLER = PSC_FAULT_COUNT,
    SIM_FAULT_JOIN_TIMEOUT,
    SIM_FAULT_JOINED_AGAIN,
    SIM_FAULT_APPLIANCE_DIED, /* nobody says this: the ranks find out by themselves */
    SIM_FAULTS
};
_Static_assert(SIM_FAULTS <= SIM_FAULT_KINDS, "a tally has room for every kind of ending");

enum sim_life_state {
    SIM_LIFE_NONE,    /* finished */
    SIM_LIFE_AWAITED, /* the next one is planned */
    SIM_LIFE_FORMING, /* its first epoch or a later one: queue pairs and probes are under way */
    SIM_LIFE_READY,
    SIM_LIFE_RESUMING,   /* an epoch has ended: the ranks flush, drain and say what they have */
    SIM_LIFE_DELIVERING, /* the job is over: complete results go to who lacks them */
    SIM_LIFE_ENDING,
    SIM_LIFE_GONE, /* the lane has let go; ranks may still be finding out */
};

/* Where a rank stands, as the appliance's control plane knows it. From LATE on it takes no part in epochs. */
enum sim_member {
    SIM_MEMBER_OFFERED,
    SIM_MEMBER_CONNECTING,
    SIM_MEMBER_READY, /* or being probed */
    SIM_MEMBER_HALTED,
    SIM_MEMBER_RESUMED,
    SIM_MEMBER_LATE, /* has not drained in time, or another process has come in its place */
    SIM_MEMBER_LEAVING,
    SIM_MEMBER_GONE,
};

/* A job, through all its lives. */
struct sim_job {
    struct sim *sim;
    struct sim_job_plan *plan;
    uint32_t index;
    struct sim_worker workers[SIM_RANKS];
    /* this life */
    uint32_t life;
    enum sim_life_state state;
    struct psc_job *handle;
    size_t handle_bytes;
    struct sim_round *rounds[SIM_POOLS];
    uint32_t *sums[SIM_POOLS];      /* expected results of the last rounds asked for */
    uint32_t *sum_round[SIM_POOLS]; /* which; UINT32_MAX: none */
    bool silent;                    /* the lane has said that it sends nothing more for now */
    bool still;                     /* it executes nothing more, since FAULT or END */
    uint64_t executed_bytes;        /* of contributions, then */
    uint32_t dead;                  /* bit per rank: the lane has been told that nothing reaches it */
    bool tampered;                  /* what nobody can see has happened: sums may be wrong */
    bool mismatched;
    uint32_t mismatch_pool, mismatch_round, mismatch_rank, mismatch_kind;
    bool left_early, joined_again;
    struct psc_job_stats stats;
    /* what the appliance's control plane knows of it */
    uint32_t epoch, queue_pairs; /* queue pairs: all lives' */
    uint32_t fault;              /* why the job cannot go on; 0: it can */
    uint32_t halted_by;          /* what ended the last epoch */
    enum sim_member member[SIM_RANKS];
    uint32_t connected[SIM_RANKS], probed[SIM_RANKS]; /* pools */
    uint32_t received[SIM_RANKS][SIM_POOLS];          /* rounds, as the rank said when it resumed */
    uint32_t complete[SIM_POOLS];                     /* rounds, as the lane said when the last epoch ended */
    uint64_t begun_ns, ready_ns;                      /* ready: the last epoch; 0: none ever was */
    uint64_t halted_ns, drain_by_ns, deadline_ns;     /* of the fault that is being dealt with */
    uint64_t waiting_ns; /* since when the control plane knows of a wait; 0: none */
    uint64_t rounds_then;
};

/* One frame that the port has been lent. */
struct sim_lent {
    struct psc_emit emit;
    uint64_t hash; /* of the payload, when it was lent */
    uint64_t not_before_ns;
};

/* The appliance's process: lane, port and control plane. Written by sim_appliance.c and sim_port.c. */
struct sim_appliance {
    struct psc_lane *lane; /* NULL: dead */
    struct psc_lane_stats stats;
    uint64_t skew_ns; /* its clock runs this far ahead */
    uint64_t paused_until_ns, stalled_until_ns, lagging_until_ns, short_until_ns;
    uint64_t disturbed_until_ns; /* the last of these */
    uint64_t event_ns;           /* when the control plane hears the last event that was made */
    uint64_t poll_ns;            /* the planned turn; others are stale */
    struct sim_frame **rx;
    uint32_t rx_count;
    struct sim_lent *port;
    uint32_t port_count;
    uint64_t transmit_ns;
    uint32_t blocks; /* allocations that live */
    size_t last_bytes;
    uint32_t generation;
};

struct sim {
    uint64_t seed;
    uint64_t now_ns;
    struct sim_plan plan;
    struct sim_random random;
    struct sim_agenda agenda;
    struct sim_trace trace;
    struct sim_tally tally;
    struct sim_appliance appliance;
    struct sim_job jobs[SIM_JOBS];
    uint64_t frames;          /* sent so far */
    uint32_t struck;          /* bit per strike that has been */
    uint32_t next_qp;         /* queue pairs made so far: their numbers differ */
    struct sim_block *blocks; /* allocated by sim_alloc */
    bool over;
};

/* sim_run.c */
void sim_run(uint64_t seed, bool print, struct sim_tally *tally);
void sim_after(struct sim *sim, uint64_t delay_ns, sim_happening *happen, void *subject, uint64_t number);
uint64_t sim_up_to(struct sim *sim, uint64_t most); /* a draw, 0 .. most */
/* For what is under way when a run ends: given back with it. */
void *sim_alloc(struct sim *sim, size_t bytes);
void sim_free(struct sim *sim, void *memory);

/* sim_network.c */
void sim_network_send(struct sim *sim, struct sim_worker *worker, bool to_appliance, const uint8_t *data,
                      uint32_t bytes);
bool sim_network_hole(const struct sim *sim, const struct sim_link *link);
struct sim_link *sim_network_link(struct sim_worker *worker, bool to_appliance);

/* sim_damage.c */
/* Frames that are not what was sent. `frame` is changed in place. */
void sim_damage_corrupt(struct sim *sim, struct sim_frame *frame);
void sim_damage_truncate(struct sim *sim, struct sim_frame *frame);
void sim_damage_mark(struct sim_frame *frame);
void sim_damage_tamper(struct sim *sim, struct sim_frame *frame);
/* Gives an old frame the PSN that makes it look very late. False: there is no queue pair to deceive. */
bool sim_damage_haunt(struct sim *sim, struct sim_frame *frame, bool unseeable);

/* sim_appliance.c */
void sim_appliance_start(struct sim *sim);
void sim_appliance_kill(struct sim *sim);
void sim_appliance_receive(struct sim *sim, struct sim_frame *frame);
/* Before all that waits: a ghost is aimed at the PSN that is expected now. */
void sim_appliance_receive_first(struct sim *sim, struct sim_frame *frame);
void sim_appliance_wake(struct sim *sim, uint64_t at_ns);
bool sim_appliance_command(struct sim *sim, const struct psc_command *command);
uint64_t sim_appliance_now_ns(const struct sim *sim);
struct psc_job *sim_appliance_new_job(struct sim *sim, const struct psc_job_spec *spec, size_t *bytes);

/* sim_port.c */
uint32_t sim_port_room(const struct sim *sim);
void sim_port_take(struct sim *sim, const struct psc_emit *emits, uint32_t count);
/* Frames in the port whose payload lies in this memory. */
uint32_t sim_port_borrows(const struct sim *sim, const void *memory, size_t bytes);

/* sim_control.c: the appliance's end of the control connections. */
void sim_control_begin_life(struct sim *sim, struct sim_job *job);
void sim_control_heard(struct sim *sim, struct sim_worker *worker, enum sim_asking message);
void sim_control_event(struct sim *sim, const struct psc_event *event);
void sim_control_judge(struct sim *sim, struct sim_job *job); /* its clocks */

/* sim_epochs.c: how a life's epochs begin and end. */
void sim_epochs_offer(struct sim *sim, struct sim_job *job, uint32_t ranks);
void sim_epochs_ready_when_probed(struct sim *sim, struct sim_job *job);
void sim_epochs_halted(struct sim *sim, struct sim_job *job, const struct psc_event *event);
void sim_epochs_resume(struct sim *sim, struct sim_worker *worker);
void sim_epochs_left(struct sim *sim, struct sim_job *job);
void sim_epochs_end(struct sim *sim, struct sim_job *job, uint32_t fault);
void sim_epochs_delivered(struct sim *sim, struct sim_job *job, const struct psc_event *event);
void sim_epochs_close(struct sim *sim, struct sim_job *job);
void sim_epochs_judge(struct sim *sim, struct sim_job *job); /* its clocks */
bool sim_epochs_present(const struct sim_job *job);

/* sim_wire.c: the control connections themselves: reliable, ordered, and cut when a path is dead too long. */
enum sim_telling {
    SIM_TELL_OFFER,
    SIM_TELL_CONNECTED,
    SIM_TELL_READY,
    SIM_TELL_HALTED,
    SIM_TELL_ENDED,
    SIM_TELL_LEFT
};
void sim_wire_tell(struct sim *sim, struct sim_worker *worker, enum sim_telling message, uint32_t value);
void sim_wire_ask(struct sim *sim, struct sim_worker *worker, enum sim_asking message);
void sim_wire_cut(struct sim *sim, struct sim_worker *worker, bool at_appliance, bool at_worker);
void sim_wire_judge(struct sim *sim, struct sim_worker *worker); /* the worker's clocks */

/* sim_life.c: what a life of a job, and an epoch of it, are made of. */
void sim_life_make(struct sim *sim, struct sim_job *job);
void sim_life_renew(struct sim *sim, struct sim_worker *worker); /* new queue pairs */
struct sim_queue *sim_life_queue(struct sim *sim, uint32_t qpn); /* of the worker's; NULL: nobody's */
void sim_life_free(struct sim_job *job);
void sim_life_spec(const struct sim_job *job, struct psc_job_spec *spec);
void sim_life_qp(const struct sim_queue *queue, struct psc_qp_spec *spec);

/* sim_nic.c */
void sim_nic_receive(struct sim *sim, struct sim_frame *frame);
void sim_nic_pump(struct sim *sim, struct sim_worker *worker);
/* The NIC gives up on a queue pair, and the process learns of it so much later. False: there is none. */
bool sim_nic_break(struct sim *sim, struct sim_worker *worker, uint32_t pool, uint64_t unheard_ns);

/* sim_worker.c */
void sim_worker_say_broken(struct sim *sim, void *worker, uint64_t life);
void sim_worker_connect(struct sim_worker *worker);
void sim_worker_probe(struct sim *sim, struct sim_worker *worker);
void sim_worker_go(struct sim *sim, struct sim_worker *worker);
void sim_worker_halt(struct sim *sim, struct sim_worker *worker);
uint64_t sim_worker_stopped_ns(const struct sim_worker *worker); /* its process does nothing before */
void sim_worker_end(struct sim *sim, struct sim_worker *worker, enum sim_standing standing, uint32_t error);
void sim_worker_step_soon(struct sim *sim, struct sim_worker *worker, uint64_t delay_ns);
bool sim_worker_lives(const struct sim_worker *worker);

/* sim_faults.c */
void sim_faults_strike(struct sim *sim); /* plans what is due for now: never inside whatever called it */

/* sim_oracle.c, sim_verdict.c */
void sim_violation(struct sim *sim, enum sim_rule rule, const struct sim_worker *worker, uint32_t psn,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));
void sim_oracle_sent(struct sim *sim, struct sim_queue *queue, const uint8_t *frame, uint32_t bytes);
void sim_oracle_delivered(struct sim *sim, const struct sim_frame *frame);
void sim_oracle_emitted(struct sim *sim, const struct psc_emit *emit);
void sim_oracle_completed(struct sim *sim, struct sim_queue *queue, uint32_t imm);
void sim_oracle_drained(struct sim *sim, struct sim_queue *queue);
void sim_oracle_event(struct sim *sim, const struct psc_event *event);
void sim_oracle_stop(struct sim_job *job);                     /* nothing is executed from here on ... */
void sim_oracle_stopped(struct sim *sim, struct sim_job *job); /* ... until here */
void sim_oracle_guards(struct sim *sim, const struct sim_queue *queue);
const uint32_t *sim_oracle_sum(struct sim_job *job, uint32_t pool, uint32_t round);
void sim_verdict_of_life(struct sim *sim, struct sim_job *job);
void sim_verdict_of_fault(struct sim *sim, const struct sim_job *job, uint32_t fault);

/* sim_peek.c: the one file that looks inside the lane. */
bool sim_peek_position(const struct sim *sim, uint32_t qpn, struct sim_position *position);
/* The lane has tried as often, or for as long, as it may to reach the rank. */
bool sim_peek_exhausted(const struct sim *sim, const struct psc_job *job, uint32_t rank);

/* Fields of a frame as sent: untagged IPv4. */
#define SIM_BTH 42u
static inline uint32_t sim_be24(const uint8_t *at)
{
    return (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | at[2];
}
static inline uint32_t sim_frame_psn(const uint8_t *frame)
{
    return sim_be24(frame + SIM_BTH + 9);
}
static inline uint32_t sim_frame_qpn(const uint8_t *frame)
{
    return sim_be24(frame + SIM_BTH + 5);
}
bool sim_frame_is_roce(const uint8_t *frame, uint32_t bytes);

#endif
