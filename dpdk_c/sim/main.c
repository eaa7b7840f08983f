/* sim/: the command. Runs one seed after another, a line of JSON for each; or one seed with its trace. What a
 * crash is, and how many seeds make a suite, is for the caller to say (tests/sim). */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sim.h"

#define SEED_LIMIT_S 60u

static int usage(const char *name)
{
    fprintf(stderr,
            "usage: %s [--from SEED] [--count N]   one line of JSON per seed\n"
            "       %s --trace SEED                the steps of one run, up to the violated rule\n"
            "       %s --names                     rules and kinds of fault, by their numbers\n",
            name, name, name);
    return 2;
}

static int print_names(void)
{
    for (uint32_t i = 0; i < SIM_RULES; i++)
        printf("rule %u %s\n", i, sim_rule_name[i]);
    for (uint32_t i = 0; i < SIM_TROUBLES; i++)
        printf("trouble %u %s\n", i, sim_trouble_name[i]);
    return 0;
}

static int trace_one(uint64_t seed)
{
    struct sim_tally tally;

    sim_run(seed, true, &tally);
    printf("\nseed %" PRIu64 ": %" PRIu64 " rounds summed, %" PRIu64 " void, %" PRIu64
           " epochs resumed, hash %016" PRIx64 "\n",
           seed, tally.rounds_summed, tally.rounds_void, tally.resumed, tally.hash);
    if (tally.rule == SIM_RULE_NONE)
        return 0;
    printf("VIOLATED: %s\n  %s\n", sim_rule_name[tally.rule], tally.text);
    return 1;
}

static int run_many(uint64_t from, uint64_t count)
{
    struct sim_tally tally;
    bool violated = false;

    for (uint64_t seed = from; seed < from + count; seed++) {
        alarm(SEED_LIMIT_S); /* virtual time has its own limit: this is for a loop inside the core */
        sim_run(seed, false, &tally);
        sim_tally_print(&tally);
        fflush(stdout); /* whoever reads must know which seed a crash is */
        violated |= tally.rule != SIM_RULE_NONE;
    }
    return violated;
}

static bool number(const char *text, uint64_t *value)
{
    char *end;

    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0';
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"from", required_argument, NULL, 'f'},
                                            {"count", required_argument, NULL, 'c'},
                                            {"trace", required_argument, NULL, 't'},
                                            {"names", no_argument, NULL, 'n'},
                                            {0}};
    uint64_t from = 1, count = 1, traced = 0;
    bool trace = false;

    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 'n')
            return print_names();
        uint64_t *value = option == 'f' ? &from : option == 'c' ? &count : &traced;
        trace |= option == 't';
        if (option == '?' || !number(optarg, value))
            return usage(argv[0]);
    }
    if (optind < argc)
        return usage(argv[0]);
    return trace ? trace_one(traced) : run_many(from, count);
}
