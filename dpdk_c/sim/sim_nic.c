/* sim/: a worker's host as the network sees it: a NIC with two queue pairs, and a kernel that answers to ARP.
 * It goes on while the process stands still. */
#include <string.h>

#include "sim.h"

#define TICK_NS (SIM_MS / 2)

static bool frozen(const struct sim *sim, const struct sim_worker *worker)
{
    return sim->now_ns < worker->frozen_until_ns;
}

static void timer(struct sim *sim, void *subject, uint64_t number);

static void plan_timer(struct sim *sim, struct sim_worker *worker)
{
    bool busy = false;

    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        const struct sim_endpoint *endpoint = worker->queues[p].endpoint;
        busy |= endpoint && !endpoint->error && endpoint->ops->busy(endpoint);
    }
    if (!busy || worker->timer_ns != 0)
        return;
    worker->timer_ns = sim->now_ns + TICK_NS;
    sim_agenda_add(&sim->agenda, worker->timer_ns, timer, worker, worker->job->life);
}

/* A queue pair is in ERR: the epoch is over for this worker. */
static void notice_failure(struct sim *sim, struct sim_queue *queue, uint64_t unheard_ns)
{
    struct sim_worker *worker = queue->worker;
    enum sim_endpoint_error error = queue->endpoint->error;

    if (worker->broken || !sim_worker_lives(worker))
        return;
    worker->broken = true;
    worker->fault_ns = worker->fault_ns ? worker->fault_ns : sim->now_ns;
    sim_trace_note(&sim->trace, sim->now_ns, worker->job->index, worker->rank, SIM_NOBODY, SIM_STEP_FAILS,
                   queue->pool, error);
    sim_after(sim, unheard_ns + sim_up_to(sim, worker->job->plan->think_ns), sim_worker_say_broken, worker,
              worker->job->life);
    if (worker->job->tampered)
        return;
    if (error == SIM_ENDPOINT_VIOLATED)
        sim_violation(sim, SIM_RULE_REGION, worker, SIM_NOBODY, "the appliance's packet had to be refused");
    if (error == SIM_ENDPOINT_NO_RECEIVE)
        sim_violation(sim, SIM_RULE_RNR, worker, SIM_NOBODY,
                      "a result came and no receive was posted for it");
}

void sim_nic_pump(struct sim *sim, struct sim_worker *worker)
{
    uint8_t frame[SIM_FRAME_MAX];
    uint32_t bytes;

    if (frozen(sim, worker))
        return;
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        struct sim_queue *queue = &worker->queues[p];
        struct sim_endpoint *endpoint = queue->endpoint;
        while (!sim->over && endpoint && queue->endpoint == endpoint &&
               (endpoint->error == SIM_ENDPOINT_SOUND || endpoint->error == SIM_ENDPOINT_VIOLATED) &&
               (bytes = endpoint->ops->send(endpoint, sim->now_ns, frame)) > 0) {
            sim_oracle_sent(sim, queue, frame, bytes);
            sim_network_send(sim, worker, true, frame, bytes);
            if (endpoint->error == SIM_ENDPOINT_VIOLATED)
                break;
        }
    }
    plan_timer(sim, worker);
}

static void timer(struct sim *sim, void *subject, uint64_t life)
{
    struct sim_worker *worker = subject;

    if (life != worker->job->life || sim->now_ns != worker->timer_ns)
        return;
    worker->timer_ns = 0;
    if (frozen(sim, worker)) {
        worker->timer_ns = worker->frozen_until_ns;
        sim_agenda_add(&sim->agenda, worker->timer_ns, timer, worker, life);
        return;
    }
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        struct sim_endpoint *endpoint = worker->queues[p].endpoint;
        if (!endpoint || endpoint->error)
            continue;
        endpoint->ops->expire(endpoint, sim->now_ns);
        if (endpoint->error)
            notice_failure(sim, &worker->queues[p], 0);
    }
    sim_nic_pump(sim, worker);
}

static void answer_arp(struct sim *sim, struct sim_worker *worker, const uint8_t *request)
{
    uint8_t reply[60] = {0};

    memcpy(reply, request + 6, 6);
    memcpy(reply + 6, worker->mac, 6);
    memcpy(reply + 12, request + 12, 8);
    reply[21] = 2;
    memcpy(reply + 22, worker->mac, 6);
    memcpy(reply + 28, worker->ip, 4);
    memcpy(reply + 32, request + 22, 10);
    sim_network_send(sim, worker, true, reply, sizeof reply);
}

static bool is_arp_for(const struct sim_worker *worker, const struct sim_frame *frame)
{
    return frame->intact && frame->bytes >= 42 && frame->data[12] == 8 && frame->data[13] == 6 &&
           frame->data[21] == 1 && memcmp(frame->data + 38, worker->ip, 4) == 0;
}

/* A host answers to ARP while it runs; a queue pair to its own number while it is not in ERR. */
void sim_nic_receive(struct sim *sim, struct sim_frame *frame)
{
    struct sim_worker *worker = frame->worker;
    bool roce = sim_frame_is_roce(frame->data, frame->bytes);

    if (frozen(sim, worker)) {
        sim_free(sim, frame);
        return;
    }
    if (is_arp_for(worker, frame))
        answer_arp(sim, worker, frame->data);
    for (uint32_t p = 0; roce && p < SIM_POOLS; p++) {
        struct sim_queue *queue = &worker->queues[p];
        if (!queue->endpoint || queue->endpoint->error ||
            sim_frame_qpn(frame->data) != queue->endpoint->spec.qpn)
            continue;
        uint32_t opcode = frame->data[SIM_BTH];
        sim_trace_note(&sim->trace, sim->now_ns, worker->job->index, worker->rank, sim_frame_psn(frame->data),
                       SIM_STEP_RECEIVES, opcode == 0x11 ? opcode << 8 | frame->data[SIM_BTH + 12] : opcode,
                       frame->bytes);
        queue->endpoint->ops->receive(queue->endpoint, frame->data, frame->bytes, sim->now_ns);
        if (queue->endpoint->error)
            notice_failure(sim, queue, 0);
        break;
    }
    sim_free(sim, frame);
    if (worker->blocked)
        sim_worker_step_soon(sim, worker, 0);
    worker->blocked = false;
    sim_nic_pump(sim, worker);
}

bool sim_nic_break(struct sim *sim, struct sim_worker *worker, uint32_t pool, uint64_t unheard_ns)
{
    struct sim_queue *queue = &worker->queues[pool];

    if (!sim_worker_lives(worker) || !queue->endpoint || queue->endpoint->error)
        return false;
    queue->endpoint->error = SIM_ENDPOINT_RETRIES;
    notice_failure(sim, queue, unheard_ns);
    return true;
}
