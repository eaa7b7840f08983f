/* sim/: the appliance's port. It is lent the slots' bytes, reads them when it transmits and not before, and
 * lets go of them some time later, as a NIC does. */
#include <string.h>

#include "sim.h"

#define LAGGING_PPM 200000u /* of the frames go to the queue that stands still */

uint32_t sim_port_room(const struct sim *sim)
{
    return sim->plan.tx_ring - sim->appliance.port_count;
}

uint32_t sim_port_borrows(const struct sim *sim, const void *memory, size_t bytes)
{
    uintptr_t begin = (uintptr_t)memory;
    uint32_t count = 0;

    for (uint32_t i = 0; i < sim->appliance.port_count; i++)
        count += (uintptr_t)sim->appliance.port[i].emit.payload - begin < bytes;
    return count;
}

/* The worker that a frame of the lane is for. */
static struct sim_worker *receiver_of(struct sim *sim, const uint8_t *frame)
{
    bool arp = frame[13] == 6;

    for (uint32_t j = 0; j < sim->plan.jobs; j++)
        for (uint32_t rank = 0; rank < sim->plan.job[j].ranks; rank++) {
            struct sim_worker *worker = &sim->jobs[j].workers[rank];
            if (memcmp(frame + (arp ? 38 : 30), worker->ip, 4) == 0)
                return worker;
        }
    return NULL;
}

static void transmit_one(struct sim *sim, const struct sim_lent *lent)
{
    uint8_t frame[SIM_FRAME_MAX];
    const struct psc_emit *emit = &lent->emit;
    uint32_t bytes = emit->header_bytes;

    memcpy(frame, emit->header, bytes);
    if (emit->payload_bytes > 0)
        memcpy(frame + bytes, emit->payload, emit->payload_bytes);
    bytes += emit->payload_bytes;
    memcpy(frame + bytes, emit->trailer, emit->trailer_bytes);
    bytes += emit->trailer_bytes;
    struct sim_worker *worker = receiver_of(sim, frame);
    if (!worker)
        return;
    if (emit->payload_bytes > 0 && sim_data_hash(emit->payload, emit->payload_bytes) != lent->hash)
        sim_violation(sim, SIM_RULE_OVERWRITTEN, worker,
                      emit->header_bytes ? sim_frame_psn(emit->header) : SIM_NOBODY,
                      "the bytes of a frame changed while the port held it");
    sim_network_send(sim, worker, false, frame, bytes);
}

struct holds {
    uint32_t generation, count;
    struct psc_hold *hold[];
};

/* Of a process that is gone nothing is given back. */
static void let_go(struct sim *sim, void *subject, uint64_t number)
{
    struct holds *holds = subject;

    (void)number;
    if (sim->appliance.lane && holds->generation == sim->appliance.generation)
        for (uint32_t i = 0; i < holds->count; i++)
            holds->hold[i]->count--;
    sim_free(sim, holds);
}

static void transmit(struct sim *sim, void *subject, uint64_t number);

static void transmit_at(struct sim *sim, uint64_t at_ns)
{
    struct sim_appliance *appliance = &sim->appliance;

    if (at_ns < appliance->stalled_until_ns)
        at_ns = appliance->stalled_until_ns;
    if (appliance->transmit_ns != 0 && appliance->transmit_ns <= at_ns)
        return;
    appliance->transmit_ns = at_ns;
    sim_agenda_add(&sim->agenda, at_ns, transmit, NULL, 0);
}

/* Sends what may go; returns when the next of the rest may, 0: nothing is left. */
static uint64_t transmit_due(struct sim *sim, struct holds *holds)
{
    struct sim_appliance *appliance = &sim->appliance;
    uint64_t next_ns = 0;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < appliance->port_count; i++) {
        const struct sim_lent *lent = &appliance->port[i];
        if (lent->not_before_ns > sim->now_ns) {
            if (next_ns == 0 || lent->not_before_ns < next_ns)
                next_ns = lent->not_before_ns;
            appliance->port[kept++] = *lent;
            continue;
        }
        transmit_one(sim, lent);
        if (lent->emit.hold)
            holds->hold[holds->count++] = lent->emit.hold;
    }
    appliance->port_count = kept;
    return next_ns;
}

static void transmit(struct sim *sim, void *subject, uint64_t number)
{
    struct sim_appliance *appliance = &sim->appliance;

    (void)subject, (void)number;
    if (!appliance->lane || sim->now_ns != appliance->transmit_ns)
        return;
    appliance->transmit_ns = 0;
    if (sim->now_ns < appliance->stalled_until_ns) {
        transmit_at(sim, appliance->stalled_until_ns);
        return;
    }
    struct holds *holds = sim_alloc(sim, sizeof *holds + appliance->port_count * sizeof(struct psc_hold *));
    *holds = (struct holds){.generation = appliance->generation};
    uint64_t next_ns = transmit_due(sim, holds);
    if (next_ns != 0)
        transmit_at(sim, next_ns);
    if (sim->plan.hold_ns == 0)
        let_go(sim, holds, 0);
    else
        sim_after(sim, sim_up_to(sim, sim->plan.hold_ns), let_go, holds, 0);
    sim_appliance_wake(sim, sim->now_ns + sim->plan.poll_ns);
}

void sim_port_take(struct sim *sim, const struct psc_emit *emits, uint32_t count)
{
    struct sim_appliance *appliance = &sim->appliance;
    bool lagging = sim->now_ns < appliance->lagging_until_ns;

    for (uint32_t i = 0; i < count; i++) {
        const struct psc_emit *emit = &emits[i];
        if (sim_chance(&sim->random, sim->plan.rate_ppm[SIM_NO_MBUFS])) {
            sim->tally.happened[SIM_NO_MBUFS]++;
            if (emit->hold)
                emit->hold->count--;
            continue;
        }
        bool late = lagging && sim_chance(&sim->random, LAGGING_PPM);
        appliance->port[appliance->port_count++] =
            (struct sim_lent){.emit = *emit,
                              .hash = sim_data_hash(emit->payload, emit->payload_bytes),
                              .not_before_ns = late ? appliance->lagging_until_ns : 0};
    }
    if (appliance->port_count > 0)
        transmit_at(sim, sim->now_ns + 100);
}
