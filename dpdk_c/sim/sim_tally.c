/* sim/: a run in figures. */
#include "sim_tally.h"

#include <inttypes.h>
#include <stdio.h>

const char *const sim_rule_name[SIM_RULES] = {
    "none",
    "a result is the sum",
    "a result carries its round's immediate",
    "a result is not torn",
    "a slot is not written while a frame points into it",
    "a PSN always carries the same",
    "nothing is published or acknowledged that is not whole",
    "nothing is written outside the results",
    "no receiver-not-ready",
    "all ranks end alike",
    "a round that a rank has returned reaches every live rank",
    "nothing is sent or added after an epoch's end",
    "an honest worker is not refused",
    "memory is given back, and not while lent",
    "every wait ends",
    "no error where RC mends all",
};

static void print_counts(const char *key, const uint64_t *counts, uint32_t count)
{
    printf(", \"%s\": [", key);
    for (uint32_t i = 0; i < count; i++)
        printf("%s%" PRIu64, i ? ", " : "", counts[i]);
    printf("]");
}

/* No text of ours holds a quotation mark. */
void sim_tally_print(const struct sim_tally *tally)
{
    printf("{\"seed\": %" PRIu64 ", \"hash\": \"%016" PRIx64 "\", \"rule\": %u, \"text\": \"%s\"",
           tally->seed, tally->hash, tally->rule, tally->text);
    printf(", \"mild\": %u, \"wrapped\": %u, \"slots_reused\": %u, \"workers\": %" PRIu64
           ", \"model_workers\": %" PRIu64,
           tally->mild, tally->wrapped, tally->slots_reused, tally->workers, tally->model_workers);
    printf(", \"lives\": %" PRIu64 ", \"own_errors\": %" PRIu64 ", \"frames\": %" PRIu64
           ", \"virtual_ns\": %" PRIu64,
           tally->lives, tally->own_errors, tally->frames, tally->virtual_ns);
    printf(", \"rounds_begun\": %" PRIu64 ", \"rounds_summed\": %" PRIu64 ", \"rounds_void\": %" PRIu64
           ", \"rounds_missed\": %" PRIu64 ", \"undetectable\": %" PRIu64,
           tally->rounds_begun, tally->rounds_summed, tally->rounds_void, tally->rounds_missed,
           tally->undetectable);
    printf(", \"epochs\": %" PRIu64 ", \"resumed\": %" PRIu64 ", \"redelivered\": %" PRIu64
           ", \"replayed\": %" PRIu64,
           tally->epochs, tally->resumed, tally->redelivered, tally->replayed);
    print_counts("troubles", tally->happened, SIM_TROUBLES);
    print_counts("faults", tally->faults, SIM_FAULT_KINDS);
    printf("}\n");
}
