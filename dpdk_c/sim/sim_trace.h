/* sim/: the trace: every step of a run, hashed always and printed on demand. Equal hashes mean equal runs. */
#ifndef SIM_TRACE_H
#define SIM_TRACE_H

#include <stdbool.h>
#include <stdint.h>

enum sim_step {
    SIM_STEP_SENDS,
    SIM_STEP_RECEIVES,
    SIM_STEP_TROUBLE, /* a fault hits this frame or this worker */
    SIM_STEP_TURN,
    SIM_STEP_DROPS,
    SIM_STEP_POSTS,
    SIM_STEP_RESULT,
    SIM_STEP_DRAINS,
    SIM_STEP_TELLS, /* control plane: appliance to worker */
    SIM_STEP_ASKS,  /* worker to appliance */
    SIM_STEP_EVENT, /* of the lane */
    SIM_STEP_ENDS,
    SIM_STEP_FAILS,
    SIM_STEPS
};

#define SIM_NOBODY UINT32_MAX /* rank: the appliance. PSN: none */

struct sim_trace {
    bool print;
    uint64_t hash;
    uint64_t notes;
};

/* The two numbers mean what the step's row in sim_trace.c says. */
void sim_trace_note(struct sim_trace *trace, uint64_t now_ns, uint32_t job, uint32_t rank, uint32_t psn,
                    enum sim_step step, uint64_t a, uint64_t b);

#endif
