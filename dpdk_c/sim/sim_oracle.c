/* sim/: the rules, checked as things happen. The oracle knows every round's sum, immediate and place in the
 * streams beforehand, so each packet that the lane sends is compared with the one packet that it must be. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sim.h"

#define RETH (SIM_BTH + 12u)

void sim_violation(struct sim *sim, enum sim_rule rule, const struct sim_worker *worker, uint32_t psn,
                   const char *format, ...)
{
    char what[160];
    va_list arguments;

    if (sim->over)
        return;
    sim->over = true;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    sim->tally.rule = rule;
    snprintf(sim->tally.text, sizeof sim->tally.text, "%.3f us, job %u rank %u, psn %06x: %s",
             (double)sim->now_ns / 1000, worker->job->index, worker->rank, psn & PSC_PSN_MASK, what);
}

const uint32_t *sim_oracle_sum(struct sim_job *job, uint32_t pool, uint32_t round)
{
    const struct sim_pool_plan *plan = &job->plan->pools[pool];
    uint32_t place = round % (4 * plan->window);
    uint32_t *sum = job->sums[pool] + (size_t)place * plan->chunk_bytes / 4;

    if (job->sum_round[pool][place] != round) {
        sim_data_sum(&job->rounds[pool][round], job->plan->ranks, sum);
        job->sum_round[pool][place] = round;
    }
    return sum;
}

/* The round that a packet of a pool's program belongs to; packet 0 is the probe's. */
static uint32_t round_of(const struct sim_job *job, uint32_t pool, uint32_t packet)
{
    uint32_t low = 0, high = job->plan->pools[pool].rounds;

    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (job->rounds[pool][middle].first_packet <= packet)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Everything that a PSN must carry alike each time; AckReq may differ. */
static uint64_t content_of(const uint8_t *frame, uint32_t bytes)
{
    return sim_data_hash(frame + RETH, bytes - RETH - 4) ^ sim_mix(frame[SIM_BTH] + 1u) ^ 1;
}

void sim_oracle_sent(struct sim *sim, struct sim_queue *queue, const uint8_t *frame, uint32_t bytes)
{
    struct sim_stream *stream = &queue->out;
    uint32_t psn = sim_frame_psn(frame), packet = (psn - stream->start_psn) & PSC_PSN_MASK;
    uint64_t content = content_of(frame, bytes);

    if (frame[SIM_BTH] == PSC_RC_ACK || packet >= stream->packets)
        return;
    sim->tally.wrapped |= psn < stream->start_psn;
    if (stream->content[packet] == 0)
        stream->content[packet] = content;
    /* A contribution whose result has come may be overwritten: a repetition then carries what it likes. */
    if (stream->content[packet] != content &&
        (packet == 0 || round_of(queue->worker->job, queue->pool, stream->base + packet) >= queue->drained))
        sim_violation(sim, SIM_RULE_SAME_PSN, queue->worker, psn, "a contribution's packet has changed");
}

static struct sim_queue *queue_of_appliance_qpn(struct sim *sim, const struct sim_frame *frame)
{
    for (uint32_t p = 0; p < SIM_POOLS; p++)
        if (sim_frame_qpn(frame->data) == frame->worker->queues[p].appliance_qpn)
            return &frame->worker->queues[p];
    (void)sim;
    return NULL;
}

void sim_oracle_delivered(struct sim *sim, const struct sim_frame *frame)
{
    if (!frame->intact || frame->life != frame->worker->job->life ||
        !sim_frame_is_roce(frame->data, frame->bytes) || frame->data[SIM_BTH] == PSC_RC_ACK)
        return;
    struct sim_queue *queue = queue_of_appliance_qpn(sim, frame);
    if (!queue || !queue->out.delivered)
        return;
    struct sim_stream *stream = &queue->out;
    uint32_t packet = (sim_frame_psn(frame->data) - stream->start_psn) & PSC_PSN_MASK;
    if (packet < stream->packets)
        stream->delivered[packet] = true;
    while (stream->whole < stream->packets && stream->delivered[stream->whole])
        stream->whole++;
}

static void check_reply(struct sim *sim, const struct sim_queue *queue, const uint8_t *header)
{
    const struct sim_job *job = queue->worker->job;
    uint32_t syndrome = header[RETH], psn = sim_frame_psn(header);
    bool nak = syndrome >= PSC_SYNDROME_NAK_SEQUENCE;
    uint32_t acknowledged = (psn + !nak - queue->out.start_psn) & PSC_PSN_MASK;

    if (syndrome >= 0x20 && syndrome < 0x40)
        sim_violation(sim, SIM_RULE_RNR, queue->worker, psn, "the appliance says receiver not ready");
    else if (syndrome != PSC_SYNDROME_ACK && (syndrome < 0x60 || syndrome > 0x62))
        sim_violation(sim, SIM_RULE_HONEST, queue->worker, psn, "the appliance sends syndrome %02x",
                      syndrome);
    else if (syndrome > PSC_SYNDROME_NAK_SEQUENCE && !job->mismatched)
        sim_violation(sim, SIM_RULE_HONEST, queue->worker, psn, "the appliance refuses it with %02x",
                      syndrome);
    else if (acknowledged > queue->out.whole)
        sim_violation(sim, SIM_RULE_WHOLE, queue->worker, psn,
                      "%u packets are acknowledged, %u have arrived in order", acknowledged,
                      queue->out.whole);
}

static uint64_t be(const uint8_t *at, uint32_t bytes)
{
    uint64_t value = 0;

    for (uint32_t i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

/* What the headers of this packet of the result must be; NULL: they are. */
static const char *header_fault(const struct sim_queue *queue, const struct sim_round *round, uint32_t number,
                                uint32_t index, const uint8_t *header)
{
    const struct sim_pool_plan *pool = &queue->worker->job->plan->pools[queue->pool];
    bool first = index == 0, last = index == round->packets - 1;
    uint32_t opcode = first  ? (last ? PSC_RC_WRITE_ONLY_IMM : PSC_RC_WRITE_FIRST)
                      : last ? PSC_RC_WRITE_LAST_IMM
                             : PSC_RC_WRITE_MIDDLE;
    const uint8_t *at = header + RETH;

    if (header[SIM_BTH] != opcode)
        return "opcode";
    if (first) {
        if (be(at, 8) != queue->region.va + (uint64_t)(number % pool->window) * pool->chunk_bytes)
            return "address";
        if (be(at + 8, 4) != queue->region.rkey || be(at + 12, 4) != round->bytes)
            return "rkey or length";
        at += 16;
    }
    return last && be(at, 4) != round->imm ? "immediate" : NULL;
}

static void check_whole(struct sim *sim, struct sim_queue *queue, uint32_t number, uint32_t psn)
{
    struct sim_job *job = queue->worker->job;
    const struct sim_round *round = &job->rounds[queue->pool][number];

    for (uint32_t rank = 0; rank < job->plan->ranks; rank++) {
        const struct sim_queue *other = &job->workers[rank].queues[queue->pool];
        if (number < other->out.first_round) /* it was whole in an earlier epoch */
            continue;
        if (other->posted <= number ||
            other->out.base + other->out.whole < round->first_packet + round->packets)
            sim_violation(sim, SIM_RULE_WHOLE, queue->worker, psn,
                          "round %u of pool %u is published, the contribution of rank %u is not whole",
                          number, queue->pool, rank);
    }
    if (job->mismatched && job->mismatch_pool == queue->pool && job->mismatch_round == number)
        sim_violation(sim, SIM_RULE_WHOLE, queue->worker, psn,
                      "round %u is published, rank %u meant something else", number, job->mismatch_rank);
}

static void check_result(struct sim *sim, struct sim_queue *queue, const struct psc_emit *emit)
{
    struct sim_job *job = queue->worker->job;
    uint32_t psn = sim_frame_psn(emit->header);
    uint32_t packet = (psn - queue->in.start_psn) & PSC_PSN_MASK, mtu = job->plan->mtu_bytes;

    sim->tally.wrapped |= psn < queue->in.start_psn;
    if (packet == 0) /* the probe */
        return;
    if (packet >= queue->in.packets) {
        sim_violation(sim, SIM_RULE_SAME_PSN, queue->worker, psn, "a packet beyond the last round");
        return;
    }
    uint32_t number = round_of(job, queue->pool, queue->in.base + packet);
    const struct sim_round *round = &job->rounds[queue->pool][number];
    uint32_t index = queue->in.base + packet - round->first_packet, rest = round->bytes - index * mtu;
    const char *fault = header_fault(queue, round, number, index, emit->header);
    if (fault)
        sim_violation(sim, SIM_RULE_SAME_PSN, queue->worker, psn, "packet %u of round %u has a wrong %s",
                      index, number, fault);
    else if (emit->payload_bytes != (rest < mtu ? rest : mtu) ||
             memcmp(emit->payload, sim_oracle_sum(job, queue->pool, number) + index * mtu / 4,
                    emit->payload_bytes) != 0)
        sim_violation(sim, SIM_RULE_SUM, queue->worker, psn,
                      "packet %u of round %u of pool %u is not the sum", index, number, queue->pool);
    else if (index == round->packets - 1)
        check_whole(sim, queue, number, psn);
}

void sim_oracle_emitted(struct sim *sim, const struct psc_emit *emit)
{
    if (emit->header_bytes == 0) /* ARP */
        return;
    struct sim_queue *queue = sim_life_queue(sim, sim_frame_qpn(emit->header));
    if (!queue) {
        sim_violation(sim, SIM_RULE_SILENT, &sim->jobs[0].workers[0], sim_frame_psn(emit->header),
                      "a frame to QPN %06x, which is nobody's in this epoch", sim_frame_qpn(emit->header));
        return;
    }
    const struct sim_job *job = queue->worker->job;
    bool fatal = emit->header[SIM_BTH] == PSC_RC_ACK && emit->header[RETH] > PSC_SYNDROME_NAK_SEQUENCE;
    if ((job->silent || (job->dead >> queue->worker->rank & 1)) && !fatal)
        sim_violation(sim, SIM_RULE_SILENT, queue->worker, sim_frame_psn(emit->header),
                      "a frame with opcode %02x, and %s", emit->header[SIM_BTH],
                      job->silent ? "the epoch has ended" : "the rank has been named dead");
    if (queue->worker->job->tampered || emit->header[SIM_BTH] == PSC_CNP)
        return;
    if (emit->header[SIM_BTH] == PSC_RC_ACK)
        check_reply(sim, queue, emit->header);
    else
        check_result(sim, queue, emit);
}

void sim_oracle_completed(struct sim *sim, struct sim_queue *queue, uint32_t imm)
{
    struct sim_job *job = queue->worker->job;
    const struct sim_pool_plan *pool = &job->plan->pools[queue->pool];
    uint32_t number = queue->completed;

    if (number >= queue->posted) { /* more results than rounds */
        if (!job->tampered)
            sim_violation(sim, SIM_RULE_WHOLE, queue->worker, SIM_NOBODY,
                          "a result of round %u, which it has not posted", number);
        return;
    }
    const struct sim_round *round = &job->rounds[queue->pool][number];
    const uint8_t *result = queue->region.data + (size_t)(number % pool->window) * pool->chunk_bytes;
    bool right = memcmp(result, sim_oracle_sum(job, queue->pool, number), round->bytes) == 0;
    if (job->tampered)
        sim->tally.undetectable += !right || imm != round->imm;
    else if (imm != round->imm)
        sim_violation(sim, SIM_RULE_IMMEDIATE, queue->worker, SIM_NOBODY,
                      "round %u came with another immediate", number);
    else if (!right)
        sim_violation(sim, SIM_RULE_SUM, queue->worker, SIM_NOBODY,
                      "the result of round %u of pool %u is not the sum", number, queue->pool);
    queue->arrived[number] = sim_data_hash(result, round->bytes);
    queue->completed++;
    sim->tally.redelivered += number < queue->out.first_round;
    sim_trace_note(&sim->trace, sim->now_ns, job->index, queue->worker->rank, SIM_NOBODY, SIM_STEP_RESULT,
                   queue->pool, number);
}

void sim_oracle_drained(struct sim *sim, struct sim_queue *queue)
{
    struct sim_job *job = queue->worker->job;
    const struct sim_pool_plan *pool = &job->plan->pools[queue->pool];
    uint32_t number = queue->drained;
    const uint8_t *result = queue->region.data + (size_t)(number % pool->window) * pool->chunk_bytes;

    if (!job->tampered &&
        sim_data_hash(result, job->rounds[queue->pool][number].bytes) != queue->arrived[number])
        sim_violation(sim, SIM_RULE_TORN, queue->worker, SIM_NOBODY,
                      "the result of round %u changed after its immediate", number);
}

void sim_oracle_stop(struct sim_job *job)
{
    job->still = true;
    job->executed_bytes = job->stats.contribution_bytes;
}

void sim_oracle_stopped(struct sim *sim, struct sim_job *job)
{
    if (job->still && job->executed_bytes != job->stats.contribution_bytes)
        sim_violation(sim, SIM_RULE_SILENT, &job->workers[0], SIM_NOBODY,
                      "%" PRIu64
                      " bytes of contributions have been added since the epoch, or the job, was ended",
                      job->stats.contribution_bytes - job->executed_bytes);
    job->still = false;
}

/* Rule 7: a leave is answered when every rank has every complete result; who does not wait for what it lacks
 * wants nothing. And what a rank has returned is complete, whatever ends. */
void sim_oracle_event(struct sim *sim, const struct psc_event *event)
{
    struct sim_job *job = &sim->jobs[event->tag];
    bool over = event->kind == PSC_EVENT_FAULT || event->kind == PSC_EVENT_ENDED;

    job->silent |= over;
    if (event->kind == PSC_EVENT_FAULT)
        sim_oracle_stop(job);
    if ((!over && event->kind != PSC_EVENT_LEFT) || job->tampered)
        return;
    for (uint32_t rank = 0; rank < job->plan->ranks; rank++)
        for (uint32_t p = 0; p < SIM_POOLS; p++) {
            const struct sim_queue *queue = &job->workers[rank].queues[p];
            if (queue->completed > event->complete[p])
                sim_violation(sim, SIM_RULE_SPLIT, queue->worker, SIM_NOBODY,
                              "it has %u results of pool %u, and only %u are complete", queue->completed, p,
                              event->complete[p]);
            if (event->kind == PSC_EVENT_LEFT && queue->completed < event->complete[p] &&
                !queue->worker->abrupt)
                sim_violation(sim, SIM_RULE_ALIKE, queue->worker, SIM_NOBODY,
                              "rank %u may leave, and this rank has %u of %u results of pool %u", event->rank,
                              queue->completed, event->complete[p], p);
        }
}
