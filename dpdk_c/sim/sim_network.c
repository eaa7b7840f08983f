/* sim/: the network between each worker and the appliance: two links that keep order, take time, and are hit
 * by the planned faults. */
#include <string.h>

#include "sim.h"

struct sim_link *sim_network_link(struct sim_worker *worker, bool to_appliance)
{
    return to_appliance ? &worker->to_appliance : &worker->from_appliance;
}

bool sim_network_hole(const struct sim *sim, const struct sim_link *link)
{
    return sim->now_ns >= link->hole_from_ns && sim->now_ns < link->hole_to_ns;
}

static void note(struct sim *sim, const struct sim_frame *frame, enum sim_step step, uint64_t a, uint64_t b)
{
    bool roce = sim_frame_is_roce(frame->data, frame->bytes);

    sim_trace_note(&sim->trace, sim->now_ns, frame->worker->job->index, frame->worker->rank,
                   roce ? sim_frame_psn(frame->data) : SIM_NOBODY, step, a, b);
}

static bool hit(struct sim *sim, const struct sim_frame *frame, enum sim_trouble trouble)
{
    if (!sim_chance(&sim->random, sim->plan.rate_ppm[trouble]))
        return false;
    sim->tally.happened[trouble]++;
    note(sim, frame, SIM_STEP_TROUBLE, trouble, frame->to_appliance);
    return true;
}

static struct sim_frame *copy_of(struct sim *sim, const struct sim_frame *frame)
{
    struct sim_frame *copy = sim_alloc(sim, sizeof *frame + frame->bytes);

    memcpy(copy, frame, sizeof *frame + frame->bytes);
    return copy;
}

static void arrive(struct sim *sim, void *subject, uint64_t number)
{
    struct sim_frame *frame = subject;

    (void)number;
    if (frame->to_appliance)
        sim_appliance_receive(sim, frame);
    else
        sim_nic_receive(sim, frame);
}

/* A ghost gets its PSN only now, from where the queue pair stands. */
static void haunt(struct sim *sim, void *subject, uint64_t unseeable)
{
    struct sim_frame *frame = subject;

    if (sim_network_hole(sim, sim_network_link(frame->worker, frame->to_appliance)) ||
        !sim_damage_haunt(sim, frame, unseeable != 0)) {
        sim_free(sim, frame);
        return;
    }
    enum sim_trouble trouble = unseeable ? SIM_TAMPER : SIM_GHOST;
    sim->tally.happened[trouble]++;
    note(sim, frame, SIM_STEP_TROUBLE, trouble, frame->to_appliance);
    if (frame->to_appliance)
        sim_appliance_receive_first(sim, frame);
    else
        sim_nic_receive(sim, frame);
}

/* Keeps a few old frames of a link, and now and then lets one of them come again. */
static void remember_and_haunt(struct sim *sim, struct sim_link *link, const struct sim_frame *frame)
{
    uint32_t ghost_ppm = sim->plan.rate_ppm[SIM_GHOST], tamper_ppm = sim->plan.rate_ppm[SIM_TAMPER];

    if (ghost_ppm == 0 && tamper_ppm == 0)
        return;
    if (link->olds < 4) {
        link->old[link->olds++] = copy_of(sim, frame);
    } else if (sim_chance(&sim->random, 60000)) {
        uint64_t place = sim_below(&sim->random, 4);
        sim_free(sim, link->old[place]);
        link->old[place] = copy_of(sim, frame);
    }
    bool unseeable = sim_chance(&sim->random, tamper_ppm / 2);
    if (!unseeable && !sim_chance(&sim->random, ghost_ppm))
        return;
    struct sim_frame *ghost = copy_of(sim, link->old[sim_below(&sim->random, link->olds)]);
    ghost->intact = false;
    sim_after(sim, sim_up_to(sim, 3 * sim->plan.latency_ns), haunt, ghost, unseeable);
}

static void damage(struct sim *sim, struct sim_frame *frame)
{
    /* Of ARP only Ethernet's own CRC takes care, which no frame with flipped bits survives. */
    if (sim_frame_is_roce(frame->data, frame->bytes) && hit(sim, frame, SIM_CORRUPTION))
        sim_damage_corrupt(sim, frame);
    if (hit(sim, frame, SIM_TRUNCATION))
        sim_damage_truncate(sim, frame);
    if (frame->intact && hit(sim, frame, SIM_MARK))
        sim_damage_mark(frame);
    if (frame->intact && hit(sim, frame, SIM_TAMPER))
        sim_damage_tamper(sim, frame);
}

static void send_copies(struct sim *sim, struct sim_frame *frame, uint64_t arrival_ns)
{
    uint64_t after_ns = arrival_ns - sim->now_ns;

    if (hit(sim, frame, SIM_DUPLICATION))
        sim_after(sim, after_ns + sim_up_to(sim, 2 * sim->plan.latency_ns), arrive, copy_of(sim, frame), 0);
    if (hit(sim, frame, SIM_LATE))
        sim_after(sim, after_ns + sim_up_to(sim, sim->plan.late_by_ns), arrive, copy_of(sim, frame), 0);
}

/* The link keeps order; reordered and delayed frames are overtaken. */
static uint64_t arrival_of(struct sim *sim, struct sim_link *link, const struct sim_frame *frame)
{
    const struct sim_plan *plan = &sim->plan;
    uint64_t at_ns = sim->now_ns + plan->latency_ns + sim_up_to(sim, plan->jitter_ns);

    if (at_ns < link->last_arrival_ns + plan->frame_ns)
        at_ns = link->last_arrival_ns + plan->frame_ns;
    if (hit(sim, frame, SIM_DELAY))
        return at_ns + sim_up_to(sim, plan->mild ? 2 * plan->retransmit_ns : 50 * SIM_MS);
    if (hit(sim, frame, SIM_REORDER))
        return at_ns + sim_up_to(sim, 20 * plan->frame_ns + plan->latency_ns);
    link->last_arrival_ns = at_ns;
    return at_ns;
}

void sim_network_send(struct sim *sim, struct sim_worker *worker, bool to_appliance, const uint8_t *data,
                      uint32_t bytes)
{
    struct sim_link *link = sim_network_link(worker, to_appliance);
    struct sim_frame *frame = sim_alloc(sim, sizeof *frame + bytes);

    *frame = (struct sim_frame){worker, worker->job->life, to_appliance, true, bytes};
    memcpy(frame->data, data, bytes);
    sim->frames++;
    bool roce = sim_frame_is_roce(data, bytes);
    uint32_t opcode = roce ? data[SIM_BTH] : 0;
    note(sim, frame, SIM_STEP_SENDS, opcode == 0x11 ? opcode << 8 | data[SIM_BTH + 12] : opcode, bytes);
    sim_faults_strike(sim);
    if (sim_network_hole(sim, link) || hit(sim, frame, SIM_LOSS)) {
        sim_free(sim, frame);
        return;
    }
    if (roce)
        remember_and_haunt(sim, link, frame);
    uint64_t arrival_ns = arrival_of(sim, link, frame);
    send_copies(sim, frame, arrival_ns);
    damage(sim, frame);
    sim_after(sim, arrival_ns - sim->now_ns, arrive, frame, 0);
}
