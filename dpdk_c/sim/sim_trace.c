/* sim/: the trace. One line: time, who, PSN, step and its two numbers. */
#include "sim_trace.h"

#include <inttypes.h>
#include <stdio.h>

#include "sim_plan.h"
#include "sim_random.h"

struct row {
    const char *step, *a, *b;
};

static const struct row rows[SIM_STEPS] = {
    [SIM_STEP_SENDS] = {"sends", "opcode", "bytes"},
    [SIM_STEP_RECEIVES] = {"is reached by", "opcode", "bytes"},
    [SIM_STEP_TROUBLE] = {"trouble", "kind", "towards appliance"},
    [SIM_STEP_TURN] = {"turn", "frames in", "frames out"},
    [SIM_STEP_DROPS] = {"drops", "reason", "frames"},
    [SIM_STEP_POSTS] = {"posts", "pool", "round"},
    [SIM_STEP_RESULT] = {"has result", "pool", "round"},
    [SIM_STEP_DRAINS] = {"drains", "pool", "round"},
    [SIM_STEP_TELLS] = {"is told", "message", "value"},
    [SIM_STEP_ASKS] = {"says", "message", "life"},
    [SIM_STEP_EVENT] = {"event", "kind", "value"},
    [SIM_STEP_ENDS] = {"ends", "standing", "error"},
    [SIM_STEP_FAILS] = {"queue pair fails", "pool", "error"},
};

/* In the order of enum sim_telling, sim_asking and psc_event_kind. */
static const char *const tellings[] = {"offer", "connected", "ready", "halted", "ended", "left"};
static const char *const askings[] = {"connect", "broken", "resume", "leave", "joins again", "closed"};
static const char *const events[] = {"none",  "connected", "probed", "waiting",
                                     "fault", "ended",     "left",   "detached"};

static const char *word_of(enum sim_step step, uint64_t number)
{
    const char *const *words = step == SIM_STEP_TELLS ? tellings : step == SIM_STEP_ASKS ? askings : events;
    uint64_t count = step == SIM_STEP_TELLS  ? sizeof tellings / sizeof *tellings
                     : step == SIM_STEP_ASKS ? sizeof askings / sizeof *askings
                                             : sizeof events / sizeof *events;

    return number < count ? words[number] : "?";
}

static const char *opcode_name(uint64_t opcode)
{
    switch (opcode) {
    case 0x06:
        return "WRITE_FIRST";
    case 0x07:
        return "WRITE_MIDDLE";
    case 0x09:
        return "WRITE_LAST_IMM";
    case 0x0b:
        return "WRITE_ONLY_IMM";
    case 0x81:
        return "CNP";
    default:
        return opcode >> 8 == 0x11 ? "ACK" : "other";
    }
}

static void print_line(uint64_t now_ns, uint32_t job, uint32_t rank, uint32_t psn, enum sim_step step,
                       uint64_t a, uint64_t b)
{
    const struct row *row = &rows[step];

    printf("%14.3f us  ", (double)now_ns / 1000);
    if (rank == SIM_NOBODY)
        printf("appliance    ");
    else
        printf("job %u rank %-2u", job, rank);
    if (psn == SIM_NOBODY)
        printf("             ");
    else
        printf("  psn %06x ", psn);
    printf(" %-14s", row->step);
    if (step == SIM_STEP_SENDS || step == SIM_STEP_RECEIVES) {
        printf(" %s", opcode_name(a));
        if (a >> 8 == 0x11)
            printf(" syndrome %02" PRIx64, a & 0xff);
        printf(", %" PRIu64 " %s\n", b, row->b);
    } else if (step == SIM_STEP_TROUBLE) {
        printf(" %s%s\n", sim_trouble_name[a], b == 1 ? ", towards the appliance" : "");
    } else if (step == SIM_STEP_TELLS || step == SIM_STEP_ASKS || step == SIM_STEP_EVENT) {
        printf(" %s, %s %" PRIu64 "\n", word_of(step, a), row->b, b);
    } else {
        printf(" %s %" PRIu64 ", %s %" PRIu64 "\n", row->a, a, row->b, b);
    }
}

void sim_trace_note(struct sim_trace *trace, uint64_t now_ns, uint32_t job, uint32_t rank, uint32_t psn,
                    enum sim_step step, uint64_t a, uint64_t b)
{
    uint64_t who = (uint64_t)psn << 32 | (uint64_t)(rank & 0xff) << 16 | job << 8 | step;

    trace->notes++;
    trace->hash = (trace->hash ^ now_ns) * UINT64_C(0x9fb21c651e98df25);
    trace->hash = (trace->hash ^ trace->hash >> 29 ^ who) * UINT64_C(0xd6e8feb86659fd93);
    trace->hash = (trace->hash ^ trace->hash >> 32 ^ a ^ b << 40) * UINT64_C(0x9fb21c651e98df25);
    if (trace->print)
        print_line(now_ns, job, rank, psn, step, a, b);
}
