/* sim/: the rules that a run must keep, and what is counted of a run. */
#ifndef SIM_TALLY_H
#define SIM_TALLY_H

#include <stdbool.h>

#include "sim_plan.h"

#define SIM_FAULT_KINDS 32

enum sim_rule {
    SIM_RULE_NONE = 0,
    SIM_RULE_SUM,         /* a result is not the sum */
    SIM_RULE_IMMEDIATE,   /* a result carries another round's immediate */
    SIM_RULE_TORN,        /* a result changed between its immediate and its draining */
    SIM_RULE_OVERWRITTEN, /* a slot was written while a frame outside pointed into it */
    SIM_RULE_SAME_PSN,    /* a PSN carried something else than before, or than it must */
    SIM_RULE_WHOLE,       /* a result left before all contributions were whole */
    SIM_RULE_REGION,      /* a write outside the result region */
    SIM_RULE_RNR,         /* receiver not ready: sent by the appliance, or caused at a worker */
    SIM_RULE_ALIKE,       /* ranks ended a life differently, or a round bit by bit */
    SIM_RULE_SPLIT,       /* a rank has returned a round, and a live one ends without it */
    SIM_RULE_SILENT,      /* something was sent or added after an epoch's end, or a job's */
    SIM_RULE_HONEST,      /* a worker that kept the rules was refused, or a fault names no cause */
    SIM_RULE_MEMORY,      /* memory was given back while lent, or not at all */
    SIM_RULE_HANG,        /* a deadline passed without an outcome */
    SIM_RULE_NEEDLESS,    /* an error where RC must have mended everything */
    SIM_RULES
};
extern const char *const sim_rule_name[SIM_RULES];

/* What one run was and how it ended. Written by the run. */
struct sim_tally {
    uint64_t seed;
    enum sim_rule rule; /* the first that was violated */
    char text[240];
    uint64_t hash; /* of the whole trace */
    uint64_t frames, virtual_ns;
    uint64_t rounds_begun, rounds_summed, rounds_void;
    uint64_t rounds_missed; /* of them: returned by some rank, and not to be delivered to one whose path
                               failed as the job ended */
    uint64_t epochs, resumed, redelivered, replayed; /* epochs; results, contributions of earlier ones */
    uint64_t undetectable;                           /* wrong results that only tampering explains */
    uint64_t happened[SIM_TROUBLES];
    uint64_t workers, model_workers;
    uint64_t lives, faults[SIM_FAULT_KINDS], own_errors;
    bool mild, wrapped, slots_reused;
};

/* One line of JSON: what tests/sim adds up. */
void sim_tally_print(const struct sim_tally *tally);

#endif
