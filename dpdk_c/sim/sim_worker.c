/* sim/: a worker's process: it posts rounds within its window, drains results in order, reposts their
 * receives, and takes up from there when an epoch ends; process and host (sim_nic.c) may stand still or die
 * apart. */
#include <string.h>

#include "sim.h"

bool sim_worker_lives(const struct sim_worker *worker)
{
    return worker->standing >= SIM_JOINING && worker->standing <= SIM_LEAVING;
}

uint64_t sim_worker_stopped_ns(const struct sim_worker *worker)
{
    return worker->frozen_until_ns > worker->paused_until_ns ? worker->frozen_until_ns
                                                             : worker->paused_until_ns;
}

static void note(struct sim *sim, const struct sim_queue *queue, enum sim_step step, uint64_t number)
{
    sim_trace_note(&sim->trace, sim->now_ns, queue->worker->job->index, queue->worker->rank, SIM_NOBODY, step,
                   queue->pool, number);
}

/* The process says so, once it runs. Before the first ready it says nothing: it gives up (sim_wire.c). One
 * that is leaving, or has been told already, has nothing to say. */
void sim_worker_say_broken(struct sim *sim, void *subject, uint64_t life)
{
    struct sim_worker *worker = subject;

    if (life != worker->job->life || !worker->broken || !worker->been_ready ||
        (worker->standing != SIM_RUNNING && worker->standing != SIM_JOINING))
        return;
    if (sim->now_ns < sim_worker_stopped_ns(worker))
        sim_agenda_add(&sim->agenda, sim_worker_stopped_ns(worker), sim_worker_say_broken, worker, life);
    else
        sim_wire_ask(sim, worker, SIM_ASK_BROKEN);
}

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

    worker->standing = SIM_JOINING;
    worker->broken = worker->blocked = false;
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
        queue->posted = queue->out.first_round; /* what is void is written again, from the stored bytes */
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
    sim_nic_pump(sim, worker);
}

static bool may_post(const struct sim_worker *worker, const struct sim_queue *queue)
{
    const struct sim_job_plan *plan = worker->job->plan;
    const struct sim_queue *small = &worker->queues[1];
    uint32_t needed = queue->posted / 2 + 1;

    if (queue->endpoint->error || (worker->wants_to_leave && queue->posted == queue->stored) ||
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
        *window = *window % (SIM_OPS - 1) + 1; /* never a stream's: what is none is another fault */
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
    uint32_t window = sim_data_window(round->op), number = queue->posted;

    if (queue->posted == queue->stored)
        sim_data_contribution(round, queue->worker->rank, (uint32_t *)(void *)buffer);
    falsify(job, queue, &write, &window, &number);
    write.va = queue->va_base + psc_va_offset(window, number);
    if (!queue->endpoint->ops->post(queue->endpoint, &write, sim->now_ns)) {
        queue->worker->blocked = true; /* ACKs are missing: the next step comes with them */
        return;
    }
    note(sim, queue, SIM_STEP_POSTS, queue->posted);
    if (queue->posted++ == queue->stored)
        queue->stored++;
    else
        sim->tally.replayed++;
}

static void drain_round(struct sim *sim, struct sim_queue *queue)
{
    sim_oracle_drained(sim, queue);
    note(sim, queue, SIM_STEP_DRAINS, queue->drained);
    queue->drained++;
}

static bool finished(const struct sim_worker *worker)
{
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        const struct sim_queue *queue = &worker->queues[p];
        uint32_t last = worker->wants_to_leave ? queue->stored : worker->job->plan->pools[p].rounds;
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
    uint64_t stopped_ns = sim_worker_stopped_ns(worker);
    if (sim->now_ns < stopped_ns) {
        sim_worker_step_soon(sim, worker, stopped_ns - sim->now_ns);
        return;
    }
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        struct sim_queue *queue = &worker->queues[p];
        if (queue->drained < queue->completed) {
            drain_round(sim, queue);
            queue->endpoint->receives++;
        }
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
    sim_nic_pump(sim, worker);
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
    worker->been_ready = true;
    if (worker->broken) /* meanwhile: what it says about it crosses this word */
        sim_after(sim, 0, sim_worker_say_broken, worker, worker->job->life);
    else
        worker->fault_ns = 0;
    sim_worker_step_soon(sim, worker, 0);
}

/* Both queue pairs to ERR, flushed, destroyed. */
static void destroy(struct sim *sim, struct sim_worker *worker)
{
    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        struct sim_queue *queue = &worker->queues[p];
        if (!queue->endpoint)
            continue;
        sim_oracle_guards(sim, queue);
        queue->endpoint->ops->release(queue->endpoint);
        queue->endpoint = NULL;
    }
}

/* The epoch is over: what has landed whole is a result, and that is what it says. Who is leaving has nothing
 * to say. */
void sim_worker_halt(struct sim *sim, struct sim_worker *worker)
{
    destroy(sim, worker);
    for (uint32_t p = 0; p < SIM_POOLS; p++)
        while (worker->queues[p].drained < worker->queues[p].completed)
            drain_round(sim, &worker->queues[p]);
    if (worker->standing == SIM_LEAVING)
        return;
    worker->standing = SIM_HALTED;
    worker->fault_ns = worker->fault_ns ? worker->fault_ns : sim->now_ns;
    sim_wire_ask(sim, worker, SIM_ASK_RESUME);
}

/* What the process knew stays for the verdict. */
void sim_worker_end(struct sim *sim, struct sim_worker *worker, enum sim_standing standing, uint32_t error)
{
    worker->standing = standing;
    worker->error = error;
    sim_trace_note(&sim->trace, sim->now_ns, worker->job->index, worker->rank, SIM_NOBODY, SIM_STEP_ENDS,
                   standing, error);
    destroy(sim, worker);
}
