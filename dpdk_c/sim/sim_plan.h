/* sim/: what a seed means: the rack, its jobs, and the faults that will strike it. Everything is drawn before
 * the run begins; the run itself draws only which frame is hit. */
#ifndef SIM_PLAN_H
#define SIM_PLAN_H

#include "sim_endpoint.h"
#include "sim_random.h"

#define SIM_JOBS    2
#define SIM_RANKS   12
#define SIM_POOLS   2
#define SIM_OPS     4 /* op windows of every job; sim_data_window */
#define SIM_STRIKES 8
#define SIM_MS      UINT64_C(1000000)
#define SIM_SECOND  UINT64_C(1000000000)
#define SIM_FOREVER UINT64_MAX

/* The kinds of fault. Up to SIM_MARK: they hit single frames, at a rate, and within limits RC must mend them.
 * The names in sim_trouble_name follow this order. */
enum sim_trouble {
    SIM_LOSS,
    SIM_DUPLICATION,
    SIM_REORDER,
    SIM_DELAY,
    SIM_LATE,       /* a copy comes milliseconds to seconds later, perhaps in the job's next life */
    SIM_GHOST,      /* an old frame comes as if 2^23 or 2^24 +- 1 packets late */
    SIM_CORRUPTION, /* flipped bits, ICRC as it was */
    SIM_TRUNCATION,
    SIM_MARK,     /* congestion experienced */
    SIM_NO_MBUFS, /* at a rate: a frame that the lane wants sent finds no buffer */
    SIM_TAMPER,   /* at a rate: changed with a repaired ICRC, or exactly 2^24 old: nobody can see it */
    SIM_HOLE,     /* from here on: they strike once. One direction of one worker goes nowhere */
    SIM_KILL,
    SIM_PAUSE,  /* the process stands still, its NIC does not */
    SIM_FREEZE, /* the whole host stands still */
    SIM_BREAK,  /* a worker's queue pair goes to ERR */
    SIM_LEAVE,
    SIM_MISMATCH, /* a rank posts something else than the others */
    SIM_APPLIANCE_KILL,
    SIM_APPLIANCE_PAUSE,
    SIM_CLOCK_JUMP,
    SIM_STALL, /* the port sends nothing and keeps what it was lent */
    SIM_LAG, /* one of the port's queues stands still, the other does not: frames overtake each other in it */
    SIM_OVERFLOW, /* the receive ring is short for a while */
    SIM_RESTART,  /* a job lives again after its end */
    SIM_TROUBLES
};
extern const char *const sim_trouble_name[SIM_TROUBLES];

/* A fault that strikes once: when so many frames have been sent in the rack. */
struct sim_strike {
    enum sim_trouble trouble;
    uint64_t at_frame;
    uint32_t job, rank;
    uint32_t
        choice; /* direction of a hole; whether a leaver waits for its rounds; what differs in a mismatch */
    uint64_t duration_ns;
};

struct sim_pool_plan {
    uint32_t window, chunk_bytes, rounds;
};

struct sim_job_plan {
    uint32_t ranks, mtu_bytes, lives;
    struct sim_pool_plan pools[SIM_POOLS];
    bool coupled; /* a data round waits for a small round first, as fixed32's scales do */
    bool model[SIM_RANKS];
    struct sim_habits habits[SIM_RANKS];
    uint64_t think_ns; /* a worker's pause between two steps: up to */
    bool wraps;        /* PSNs start shortly before their end */
    uint64_t salt;
};

struct sim_plan {
    uint32_t jobs;
    struct sim_job_plan job[SIM_JOBS];
    bool mild; /* every round must end in the sum */
    uint32_t rate_ppm[SIM_TROUBLES];
    uint32_t strikes;
    struct sim_strike strike[SIM_STRIKES];
    /* network */
    uint64_t latency_ns, jitter_ns, frame_ns, late_by_ns;
    /* appliance */
    uint64_t retransmit_ns, progress_ns, waiting_ns, straggler_ns;
    uint64_t poll_ns, hold_ns;
    uint64_t event_ns; /* from the lane's core to the control core: up to */
    uint32_t max_unacked, burst, rx_ring, tx_ring;
};

void sim_plan_draw(struct sim_plan *plan, uint64_t seed);
/* Mean packets of one round of this pool, for guesses. */
uint32_t sim_plan_round_packets(const struct sim_job_plan *job, uint32_t pool);

#endif
