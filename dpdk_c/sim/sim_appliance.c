/* sim/: the appliance's lane: the real core/, fed with what has arrived, at the appliance's own time. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define MAX_EMITS 64u
#define LANE      3u

static void *alloc(void *context, size_t bytes)
{
    struct sim_appliance *appliance = context;
    void *memory = NULL;

    if (posix_memalign(&memory, 64, bytes) != 0)
        abort();
    memset(memory, 0, bytes);
    appliance->blocks++;
    appliance->last_bytes = bytes;
    return memory;
}

static void give_back(void *context, void *memory)
{
    struct sim_appliance *appliance = context;

    appliance->blocks--;
    free(memory);
}

static struct psc_memory memory_of(struct sim *sim)
{
    return (struct psc_memory){.alloc = alloc, .release = give_back, .context = &sim->appliance};
}

uint64_t sim_appliance_now_ns(const struct sim *sim)
{
    return sim->now_ns + sim->appliance.skew_ns;
}

void sim_appliance_start(struct sim *sim)
{
    struct sim_appliance *appliance = &sim->appliance;
    const struct sim_plan *plan = &sim->plan;
    const struct psc_memory memory = memory_of(sim);
    const struct psc_lane_config config = {
        .local = {.mac = {{2, 0, 0, 0, 0, 1}}, .ip = {{[10] = 0xff, 0xff, 10, 0, 0, 1}}},
        .prefix_bits = 16,
        .dscp = 26,
        .lane = LANE,
        .max_unacked_packets = (uint16_t)plan->max_unacked,
        .retransmit_ns = plan->retransmit_ns,
        .retries = 6,
        .progress_ns = plan->progress_ns,
        .waiting_event_ns = plan->waiting_ns};

    appliance->generation++;
    appliance->event_ns = 0;
    appliance->stats = (struct psc_lane_stats){0};
    appliance->lane = psc_lane_new(&config, &memory, &appliance->stats);
    if (!appliance->rx) {
        appliance->rx = calloc(plan->rx_ring, sizeof(struct sim_frame *));
        appliance->port = calloc(plan->tx_ring, sizeof *appliance->port);
    }
    sim_appliance_wake(sim, sim->now_ns);
}

/* The process is gone, and with it everything that it had. */
void sim_appliance_kill(struct sim *sim)
{
    struct sim_appliance *appliance = &sim->appliance;

    for (uint32_t i = 0; i < appliance->rx_count; i++)
        sim_free(sim, appliance->rx[i]);
    appliance->rx_count = appliance->port_count = 0;
    appliance->transmit_ns = appliance->poll_ns = 0;
    appliance->stalled_until_ns = appliance->paused_until_ns = 0;
    psc_lane_free(appliance->lane);
    appliance->lane = NULL;
    for (uint32_t j = 0; j < sim->plan.jobs; j++) {
        struct sim_job *job = &sim->jobs[j];
        if (!job->handle)
            continue;
        psc_job_free(job->handle);
        job->handle = NULL;
        job->state = SIM_LIFE_GONE;
        if (job->fault == PSC_FAULT_NONE)
            job->fault = SIM_FAULT_APPLIANCE_DIED;
    }
}

struct psc_job *sim_appliance_new_job(struct sim *sim, const struct psc_job_spec *spec, size_t *bytes)
{
    const struct psc_memory memory = memory_of(sim);
    struct psc_job *job = psc_job_new(spec, &memory);

    *bytes = sim->appliance.last_bytes;
    return job;
}

/* An event on its way from the lane's core to the control core. */
struct passing {
    uint32_t generation;
    struct psc_event event;
};

static void reach_control(struct sim *sim, void *subject, uint64_t number)
{
    struct passing *passing = subject;
    const struct sim_appliance *appliance = &sim->appliance;

    if (appliance->lane && passing->generation == appliance->generation) {
        if (sim->now_ns < appliance->paused_until_ns) {
            sim_agenda_add(&sim->agenda, appliance->paused_until_ns, reach_control, passing, number);
            return;
        }
        sim_control_event(sim, &passing->event);
    }
    sim_free(sim, passing);
}

/* The oracle hears at once what the control plane hears in order and a little later: commands and events
 * cross. */
static void hand_over_events(struct sim *sim)
{
    struct sim_appliance *appliance = &sim->appliance;
    struct psc_event event;

    while (appliance->lane && psc_lane_next_event(appliance->lane, &event)) {
        sim_oracle_event(sim, &event);
        if (sim->plan.event_ns == 0) {
            sim_control_event(sim, &event);
            continue;
        }
        struct passing *passing = sim_alloc(sim, sizeof *passing);
        *passing = (struct passing){.generation = appliance->generation, .event = event};
        uint64_t at_ns = sim->now_ns + sim_up_to(sim, sim->plan.event_ns);
        appliance->event_ns = at_ns > appliance->event_ns ? at_ns : appliance->event_ns;
        sim_agenda_add(&sim->agenda, appliance->event_ns, reach_control, passing, 0);
    }
}

bool sim_appliance_command(struct sim *sim, const struct psc_command *command)
{
    bool done = psc_lane_apply(sim->appliance.lane, command, sim_appliance_now_ns(sim));

    hand_over_events(sim);
    sim_appliance_wake(sim, sim->now_ns);
    return done;
}

/* The ring takes it, or it is lost. */
static bool enter_ring(struct sim *sim, struct sim_frame *frame, uint32_t place)
{
    struct sim_appliance *appliance = &sim->appliance;
    uint32_t room = sim->now_ns < appliance->short_until_ns ? 4 : sim->plan.rx_ring;

    if (!appliance->lane || appliance->rx_count >= room) {
        if (appliance->lane && room < sim->plan.rx_ring)
            sim->tally.happened[SIM_OVERFLOW]++;
        sim_free(sim, frame);
        return false;
    }
    memmove(appliance->rx + place + 1, appliance->rx + place,
            (appliance->rx_count - place) * sizeof *appliance->rx);
    appliance->rx[place] = frame;
    appliance->rx_count++;
    return true;
}

void sim_appliance_receive(struct sim *sim, struct sim_frame *frame)
{
    if (enter_ring(sim, frame, sim->appliance.rx_count))
        sim_appliance_wake(sim, sim->now_ns + sim_up_to(sim, sim->plan.poll_ns));
}

void sim_appliance_receive_first(struct sim *sim, struct sim_frame *frame)
{
    if (enter_ring(sim, frame, 0))
        sim_appliance_wake(sim, sim->now_ns);
}

/* What the lane made of the frames of one turn, for whoever reads the trace. */
static void note_drops(struct sim *sim, const uint64_t before[PSC_DROP_COUNT])
{
    for (uint32_t i = 0; i < PSC_DROP_COUNT; i++) {
        uint64_t dropped = sim->appliance.stats.drops[i] - before[i];
        if (dropped > 0)
            sim_trace_note(&sim->trace, sim->now_ns, 0, SIM_NOBODY, SIM_NOBODY, SIM_STEP_DROPS, i, dropped);
    }
}

static uint32_t take_burst(struct sim *sim, struct sim_frame **taken, struct psc_frame *burst)
{
    struct sim_appliance *appliance = &sim->appliance;
    uint32_t count = appliance->rx_count < sim->plan.burst ? appliance->rx_count : sim->plan.burst;

    for (uint32_t i = 0; i < count; i++) {
        taken[i] = appliance->rx[i];
        burst[i] = (struct psc_frame){.data = taken[i]->data, .bytes = taken[i]->bytes};
        sim_oracle_delivered(sim, taken[i]);
    }
    appliance->rx_count -= count;
    memmove(appliance->rx, appliance->rx + count, appliance->rx_count * sizeof *appliance->rx);
    return count;
}

static void turn(struct sim *sim, void *subject, uint64_t number)
{
    struct sim_appliance *appliance = &sim->appliance;
    struct sim_frame *taken[32];
    struct psc_frame burst[32];
    struct psc_emit emits[MAX_EMITS];
    uint64_t drops[PSC_DROP_COUNT];

    (void)subject, (void)number;
    if (!appliance->lane || sim->now_ns != appliance->poll_ns)
        return;
    appliance->poll_ns = 0;
    memcpy(drops, appliance->stats.drops, sizeof drops);
    uint32_t room = sim_port_room(sim), max = room < MAX_EMITS ? room : MAX_EMITS;
    uint32_t received = take_burst(sim, taken, burst);
    uint32_t sent = psc_lane_poll(appliance->lane, burst, received, sim_appliance_now_ns(sim), emits, max);
    if (received > 0 || sent > 0)
        sim_trace_note(&sim->trace, sim->now_ns, 0, SIM_NOBODY, SIM_NOBODY, SIM_STEP_TURN, received, sent);
    note_drops(sim, drops);
    for (uint32_t i = 0; i < received; i++)
        sim_free(sim, taken[i]);
    hand_over_events(sim); /* first: what the lane has declared dead it must not send for in the same turn */
    for (uint32_t i = 0; i < sent; i++)
        sim_oracle_emitted(sim, &emits[i]);
    sim_port_take(sim, emits, sent);
    bool more = appliance->rx_count > 0 || (sent > 0 && sent == max && sim_port_room(sim) > 0);
    sim_appliance_wake(sim, sim->now_ns + (more ? sim->plan.poll_ns : sim->plan.retransmit_ns / 4));
}

void sim_appliance_wake(struct sim *sim, uint64_t at_ns)
{
    struct sim_appliance *appliance = &sim->appliance;

    if (at_ns < appliance->paused_until_ns)
        at_ns = appliance->paused_until_ns;
    if (!appliance->lane || (appliance->poll_ns != 0 && appliance->poll_ns <= at_ns))
        return;
    appliance->poll_ns = at_ns;
    sim_agenda_add(&sim->agenda, at_ns, turn, NULL, 0);
}
