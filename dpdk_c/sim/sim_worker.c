/* sim/: a worker: a host with a NIC and a process on it. The process posts rounds within its window, drains
 * results in order, and reposts their receives; process and host may stand still or die apart. */
#include <string.h>

#include "sim.h"

#define TICK_NS (SIM_MS / 2)

bool sim_worker_lives(const struct sim_worker *worker)
{
    return worker->standing >= SIM_JOINING && worker->standing <= SIM_LEAVING;
}

static bool frozen(const struct sim *sim, const struct sim_worker *worker)
{
    return sim->now_ns < worker->frozen_until_ns;
}

static void note(struct sim *sim, const struct sim_queue *queue, enum sim_step step, uint64_t number)
{
    sim_trace_note(&sim->trace, sim->now_ns, queue->worker->job->index, queue->worker->rank, SIM_NOBODY, step,
                   queue->pool, number);
}

/* ---- The NIC ---- */

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

/* A queue pair in ERR: the process waits a little for the appliance's verdict before it gives its own. */
static void notice_failure(struct sim *sim, struct sim_queue *queue)
{
    struct sim_worker *worker = queue->worker;
    enum sim_endpoint_error error = queue->endpoint->error;

    if (worker->failed_ns != 0 || !sim_worker_lives(worker))
        return;
    worker->failed_ns = sim->now_ns;
    note(sim, queue, SIM_STEP_FAILS, error);
    if (worker->job->tampered)
        return;
    if (error == SIM_ENDPOINT_VIOLATED)
        sim_violation(sim, SIM_RULE_REGION, worker, SIM_NOBODY, "the appliance's packet had to be refused");
    if (error == SIM_ENDPOINT_NO_RECEIVE)
        sim_violation(sim, SIM_RULE_RNR, worker, SIM_NOBODY,
                      "a result came and no receive was posted for it");
}

void sim_worker_pump(struct sim *sim, struct sim_worker *worker)
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
            notice_failure(sim, &worker->queues[p]);
    }
    sim_worker_pump(sim, worker);
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
void sim_worker_receive(struct sim *sim, struct sim_frame *frame)
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
        if (!queue->endpoint || queue->endpoint->error || sim_frame_qpn(frame->data) != queue->qpn)
            continue;
        uint32_t opcode = frame->data[SIM_BTH];
        sim_trace_note(&sim->trace, sim->now_ns, worker->job->index, worker->rank, sim_frame_psn(frame->data),
                       SIM_STEP_RECEIVES, opcode == 0x11 ? opcode << 8 | frame->data[SIM_BTH + 12] : opcode,
                       frame->bytes);
        queue->endpoint->ops->receive(queue->endpoint, frame->data, frame->bytes, sim->now_ns);
        if (queue->endpoint->error)
            notice_failure(sim, queue);
        break;
    }
    sim_free(sim, frame);
    if (worker->blocked)
        sim_worker_step_soon(sim, worker, 0);
    worker->blocked = false;
    sim_worker_pump(sim, worker);
}

/* ---- The process ---- */

static void completed(void *context, uint32_t imm)
{
    struct sim_queue *queue = context;
    struct sim *sim = queue->worker->job->sim;

    queue->worker->progress_ns = sim->now_ns;
    if (!queue->probe_completed && imm == PSC_IMM_PROBE) {
        queue->probe_completed = true;
        return;
    }
    sim_oracle_completed(sim, queue, imm);
    sim_worker_step_soon(sim, queue->worker, sim_up_to(sim, queue->worker->job->plan->think_ns));
}

/* Both queue pairs to RTR, W+1 receives each. */
void sim_worker_connect(struct sim_worker *worker)
{
    const struct sim_job_plan *plan = worker->job->plan;

    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        struct sim_queue *queue = &worker->queues[p];
        struct sim_endpoint_spec spec = {.peer_mac = {2, 0, 0, 0, 0, 1},
                                         .peer_ip = {10, 0, 0, 1},
                                         .udp_port = queue->udp_port,
                                         .qpn = queue->qpn,
                                         .peer_qpn = queue->appliance_qpn,
                                         .start_psn = queue->start_psn,
                                         .expected_psn = queue->appliance_psn,
                                         .mtu_bytes = plan->mtu_bytes,
                                         .send_queue = 3 * plan->pools[p].window + 1,
                                         .region = queue->region,
                                         .habits = plan->habits[worker->rank],
                                         .completed = completed,
                                         .context = queue};
        memcpy(spec.mac, worker->mac, 6);
        memcpy(spec.ip, worker->ip, 4);
        queue->endpoint = (plan->model[worker->rank] ? sim_model_ops : sim_own_ops).make(&spec);
        queue->endpoint->receives = plan->pools[p].window + 1;
    }
}

static const uint8_t zeros[4096];

void sim_worker_probe(struct sim *sim, struct sim_worker *worker)
{
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        struct sim_queue *queue = &worker->queues[p];
        const struct sim_write probe = {.data = zeros,
                                        .bytes = worker->job->plan->mtu_bytes,
                                        .va = queue->va_base,
                                        .rkey = queue->rkey,
                                        .imm = PSC_IMM_PROBE};
        if (queue->endpoint && !queue->endpoint->error)
            queue->endpoint->ops->post(queue->endpoint, &probe, sim->now_ns);
    }
    sim_worker_pump(sim, worker);
}

static bool may_post(const struct sim_worker *worker, const struct sim_queue *queue)
{
    const struct sim_job_plan *plan = worker->job->plan;
    const struct sim_queue *small = &worker->queues[1];
    uint32_t needed = queue->posted / 2 + 1;

    if (queue->endpoint->error || worker->wants_to_leave ||
        queue->posted == plan->pools[queue->pool].rounds ||
        queue->posted == queue->drained + plan->pools[queue->pool].window)
        return false;
    return !plan->coupled || queue->pool == 1 || small->drained >= needed ||
           small->drained == plan->pools[1].rounds;
}

/* What no rank that keeps the rules would send: another tensor, op or length, a round again, a round too
 * soon. */
static void falsify(const struct sim_job *job, const struct sim_queue *queue, struct sim_write *write,
                    uint32_t *window, uint32_t *round)
{
    if (!job->mismatched || job->mismatch_rank != queue->worker->rank || job->mismatch_pool != queue->pool ||
        job->mismatch_round != queue->posted)
        return;
    switch (job->mismatch_kind) {
    case 0:
        write->imm ^= 1;
        break;
    case 1:
        *window = *window % SIM_OPS + 1;
        break;
    case 2:
        write->bytes = write->bytes > 4 ? write->bytes - 4 : 8;
        break;
    case 3:
        --*round;
        break;
    default:
        ++*round;
        break;
    }
}

static void post_round(struct sim *sim, struct sim_queue *queue)
{
    struct sim_job *job = queue->worker->job;
    const struct sim_pool_plan *pool = &job->plan->pools[queue->pool];
    const struct sim_round *round = &job->rounds[queue->pool][queue->posted];
    uint8_t *buffer = queue->contributions + queue->posted % pool->window * pool->chunk_bytes;
    struct sim_write write = {.data = buffer, .bytes = round->bytes, .rkey = queue->rkey, .imm = round->imm};
    uint32_t window = round->op, number = queue->posted;

    sim_data_contribution(round, queue->worker->rank, (uint32_t *)(void *)buffer);
    falsify(job, queue, &write, &window, &number);
    write.va = queue->va_base + psc_va_offset(window, number);
    if (!queue->endpoint->ops->post(queue->endpoint, &write, sim->now_ns)) {
        queue->worker->blocked = true; /* ACKs are missing: the next step comes with them */
        return;
    }
    note(sim, queue, SIM_STEP_POSTS, queue->posted);
    queue->posted++;
}

static void drain_round(struct sim *sim, struct sim_queue *queue)
{
    sim_oracle_drained(sim, queue);
    note(sim, queue, SIM_STEP_DRAINS, queue->drained);
    queue->drained++;
    queue->endpoint->receives++;
}

static bool finished(const struct sim_worker *worker)
{
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        const struct sim_queue *queue = &worker->queues[p];
        uint32_t last = worker->wants_to_leave ? queue->posted : worker->job->plan->pools[p].rounds;
        if (queue->drained < last && !worker->abrupt)
            return false;
    }
    return true;
}

/* It wants nothing more, and says how many results it has. Its queue pairs live until `left`. */
static void leave(struct sim *sim, struct sim_worker *worker)
{
    worker->standing = SIM_LEAVING;
    for (uint32_t p = 0; p < SIM_POOLS; p++)
        worker->left_received[p] = worker->queues[p].drained;
    sim_wire_ask(sim, worker, SIM_ASK_LEAVE);
}

/* One action per pool; then the next, a little later. */
static void step(struct sim *sim, void *subject, uint64_t life)
{
    struct sim_worker *worker = subject;
    bool more = false;

    if (life != worker->job->life || sim->now_ns != worker->step_ns)
        return;
    worker->step_ns = 0;
    if (worker->standing != SIM_RUNNING)
        return;
    uint64_t stopped_ns =
        worker->frozen_until_ns > worker->paused_until_ns ? worker->frozen_until_ns : worker->paused_until_ns;
    if (sim->now_ns < stopped_ns) {
        sim_worker_step_soon(sim, worker, stopped_ns - sim->now_ns);
        return;
    }
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        struct sim_queue *queue = &worker->queues[p];
        if (queue->drained < queue->completed)
            drain_round(sim, queue);
        if (may_post(worker, queue))
            post_round(sim, queue);
    }
    for (uint32_t p = 0; p < SIM_POOLS; p++)
        more |= worker->queues[p].drained < worker->queues[p].completed ||
                (!worker->blocked && may_post(worker, &worker->queues[p]));
    if (finished(worker))
        leave(sim, worker);
    else if (more)
        sim_worker_step_soon(sim, worker, sim_up_to(sim, worker->job->plan->think_ns));
    sim_worker_pump(sim, worker);
}

void sim_worker_step_soon(struct sim *sim, struct sim_worker *worker, uint64_t delay_ns)
{
    if (worker->step_ns != 0 && worker->step_ns <= sim->now_ns + delay_ns)
        return;
    worker->step_ns = sim->now_ns + delay_ns;
    sim_agenda_add(&sim->agenda, worker->step_ns, step, worker, worker->job->life);
}

void sim_worker_go(struct sim *sim, struct sim_worker *worker)
{
    worker->standing = SIM_RUNNING;
    sim_worker_step_soon(sim, worker, 0);
}

/* Both queue pairs to ERR, flushed, destroyed. What the process knew stays for the verdict. */
void sim_worker_end(struct sim *sim, struct sim_worker *worker, enum sim_standing standing, uint32_t error)
{
    worker->standing = standing;
    worker->error = error;
    sim_trace_note(&sim->trace, sim->now_ns, worker->job->index, worker->rank, SIM_NOBODY, SIM_STEP_ENDS,
                   standing, error);
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        struct sim_queue *queue = &worker->queues[p];
        if (!queue->endpoint)
            continue;
        sim_oracle_guards(sim, queue);
        queue->endpoint->ops->release(queue->endpoint);
        queue->endpoint = NULL;
    }
}
