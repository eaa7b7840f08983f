/* core/: a request that has reached its QP: may it be executed, and what does executing do.
 * Joins the responder of qp/ with the pool of agg/. Steps of the story: "responder step", "slot added". */
#include "psc_lane_state.h"
#include "psc_psn.h"

/* Where the message of a packet points: read from the address of a FIRST or ONLY, known of later packets. */
struct target {
    uint32_t window; /* op window; 0: the probe */
    uint32_t round;
    enum psc_op op; /* PSC_OP_PROBE also for a window that does not exist */
};

/* The rank's round in progress, else its next. */
static uint32_t current_round(const struct psc_qp *qp)
{
    return qp->pool->pool.ledger[qp->spec.rank].begun_rounds - qp->responder.in_message;
}

static struct target target_of(const struct psc_qp *qp, const struct psc_packet *packet)
{
    const struct psc_job_spec *job = &qp->job->spec;

    if (qp->responder.in_message || !(packet->row->flags & PSC_OPF_RETH))
        return (struct target){.window = UINT32_MAX, .round = current_round(qp)};
    uint64_t offset = packet->va - qp->spec.va_base;
    struct target target = {.window = psc_va_window(offset), .round = psc_va_round(offset)};
    if (target.window >= 1 && target.window <= job->op_count)
        target.op = (enum psc_op)job->ops[target.window - 1];
    return target;
}

bool psc_foresee(struct psc_qp *qp, const struct psc_packet *packet, struct psc_foresight *foreseen)
{
    const struct psc_responder *responder = &qp->responder;
    struct psc_foresight *at = &qp->foresight;
    uint16_t flags = packet->row->flags;
    uint32_t round = at->round, range = at->range + 1;

    if (!(flags & PSC_OPF_WRITE))
        return false;
    if (flags & PSC_OPF_FIRST) {
        round = psc_va_round(packet->va - qp->spec.va_base);
        range = 0;
    } else if (packet->psn == responder->expected_psn && responder->in_message) {
        round = current_round(qp);
        range = psc_responder_offset_bytes(responder, packet) >> qp->pool->pool.packet_shift;
    } else if (packet->psn != at->next_psn) {
        return false;
    }
    foreseen->round = at->round = round;
    foreseen->range = at->range = range;
    at->next_psn = psc_psn_add(packet->psn, 1);
    return true;
}

/* Rule 5: a rank that is at round r has the result of r-W, so that one must have been sent to it whole. */
static bool has_result(const struct psc_qp *qp, uint32_t round)
{
    const struct psc_ledger_row *row = &qp->pool->pool.ledger[qp->spec.rank];

    return psc_round_distance(row->acknowledged_rounds, round) > 0 ||
           psc_requester_sent(&qp->requester, round);
}

/* Rules 2 and 5, at FIRST and ONLY. */
static bool round_ok(const struct psc_qp *qp, const struct psc_packet *packet, const struct target *target,
                     struct psc_refusal *refusal)
{
    const struct psc_pool *pool = &qp->pool->pool;
    uint32_t rank = qp->spec.rank;

    if (qp->responder.in_message)
        return true;
    if (target->op == PSC_OP_PROBE) /* has no round; a window that does not exist is left to access_ok */
        return pool->ledger[rank].begun_rounds == qp->pool->first_round || target->window != 0 ||
               psc_refuse(refusal, PSC_FAULT_ROUND_MISMATCH, pool->ledger[rank].begun_rounds, 0);
    if (!psc_pool_round_ok(pool, rank, target->round, target->op, packet->dma_len, refusal))
        return false;
    if (!has_result(qp, target->round - pool->shape.window))
        return psc_refuse(refusal, PSC_FAULT_ROUND_MISMATCH,
                          pool->ledger[rank].acknowledged_rounds + pool->shape.window - 1, target->round);
    return true;
}

/* A contribution is made of its op's units, and its immediate is its identity: one that ends without cannot
 * be matched to the others'. */
static bool form_ok(const struct psc_packet *packet, const struct target *target, struct psc_refusal *refusal)
{
    uint16_t flags = packet->row->flags;
    uint32_t unit_bytes = psc_op_form(target->op)->unit_bytes;

    if ((flags & PSC_OPF_LAST) && !(flags & PSC_OPF_IMM))
        return psc_refuse(refusal, PSC_FAULT_INVALID_REQUEST, PSC_RC_WRITE_LAST_IMM, packet->opcode);
    if ((flags & PSC_OPF_FIRST) && (packet->dma_len == 0 || packet->dma_len % unit_bytes != 0))
        return psc_refuse(refusal, PSC_FAULT_INVALID_REQUEST, unit_bytes, packet->dma_len);
    return true;
}

/* Rule 2, at FIRST and ONLY, for the whole message: the rkey, an address that names the beginning of a slot
 * (contract/psc_wire.h) or the probe, which is one MTU long and has no rounds; and a slot with room for the
 * result. */
static bool access_ok(const struct psc_qp *qp, const struct psc_packet *packet, const struct target *target,
                      struct psc_refusal *refusal)
{
    if (!(packet->row->flags & PSC_OPF_FIRST))
        return true;
    if (packet->rkey != qp->spec.rkey)
        return psc_refuse(refusal, PSC_FAULT_REMOTE_ACCESS, qp->spec.rkey, packet->rkey);
    /* Modulo 2^64: an address below the base has a huge window. */
    uint64_t offset = packet->va - qp->spec.va_base;
    uint32_t window = psc_va_window(offset);
    if (window > qp->job->spec.op_count)
        return psc_refuse(refusal, PSC_FAULT_REMOTE_ACCESS, qp->job->spec.op_count, window);
    if (window == 0 && psc_va_round(offset) != 0)
        return psc_refuse(refusal, PSC_FAULT_REMOTE_ACCESS, 0, psc_va_round(offset));
    if (psc_va_byte(offset) != 0)
        return psc_refuse(refusal, PSC_FAULT_REMOTE_ACCESS, 0, psc_va_byte(offset));
    uint32_t range_bytes =
        window == 0 ? qp->responder.mtu_bytes : psc_pool_contribution_max(&qp->pool->pool, target->op);
    if (packet->dma_len > range_bytes)
        return psc_refuse(refusal, PSC_FAULT_REMOTE_ACCESS, range_bytes, packet->dma_len);
    return true;
}

/* Rule 4, at LAST and ONLY. */
static bool immediate_ok(const struct psc_qp *qp, const struct psc_packet *packet,
                         const struct target *target, struct psc_refusal *refusal)
{
    if (!(packet->row->flags & PSC_OPF_LAST))
        return true;
    if (target->window != 0)
        return psc_pool_immediate_ok(&qp->pool->pool, target->round, packet->imm, refusal);
    if (packet->dma_len != qp->responder.mtu_bytes)
        return psc_refuse(refusal, PSC_FAULT_INVALID_REQUEST, qp->responder.mtu_bytes, packet->dma_len);
    return packet->imm == PSC_IMM_PROBE ||
           psc_refuse(refusal, PSC_FAULT_INVALID_REQUEST, PSC_IMM_PROBE, packet->imm);
}

/* Everything that is checked before a byte is added, one rule a line, in the order of the protocol. */
static bool request_ok(const struct psc_qp *qp, const struct psc_packet *packet, const struct target *target,
                       struct psc_refusal *refusal)
{
    const struct psc_responder *responder = &qp->responder;

    /* clang-format off */
    return psc_responder_sequence_ok(responder, packet, refusal) &&
           psc_responder_operation_ok(packet, refusal) &&
           round_ok(qp, packet, target, refusal) &&
           form_ok(packet, target, refusal) &&
           psc_responder_lengths_ok(responder, packet, refusal) &&
           access_ok(qp, packet, target, refusal) &&
           immediate_ok(qp, packet, target, refusal);
    /* clang-format on */
}

/* Rule 6: every rank has acknowledged what the slot holds, and no frame outside points into it. */
static bool slot_writable(const struct psc_job_pool *pool, uint32_t round)
{
    return psc_pool_find(&pool->pool, round) ||
           (psc_pool_slot_writable(&pool->pool, round) &&
            pool->results[psc_pool_slot_index(&pool->pool, round)].hold.count == 0);
}

/* The worker's probe has passed; now ours may: one full packet of zeros that writes where result 0 will. What
 * the rank lacks of earlier epochs comes behind it: a result in that place would be lost under the zeros. */
static void execute_probe(struct psc_lane *lane, struct psc_qp *qp)
{
    if (qp->probe_received)
        return;
    qp->probe_received = true;
    psc_post_message(qp, PSC_TAG_PROBE, 1);
    psc_requester_ready(&qp->requester, 1, lane->now_ns);
    psc_want_to_send(lane, qp);
    psc_deliver_missing(lane, qp);
}

static void begin_contribution(struct psc_lane *lane, struct psc_qp *qp, const struct psc_packet *packet,
                               const struct target *target)
{
    struct psc_job_pool *pool = qp->pool;

    psc_deliver_missing(lane, qp); /* if it sent no probe: still before any newer result */
    psc_requester_acked_through(&qp->requester, target->round - pool->pool.shape.window, lane->now_ns);
    psc_settle_acknowledged(lane, qp);
    if (psc_pool_begin(&pool->pool, qp->spec.rank, target->op, packet->dma_len))
        pool->results[psc_pool_slot_index(&pool->pool, target->round)].begun_ns = lane->now_ns;
}

static void count_completed(struct psc_lane *lane, struct psc_job_pool *pool)
{
    struct psc_job_stats *stats = pool->job->spec.stats;

    pool->completed_ns = lane->now_ns;
    if (stats) {
        PSC_COUNT(stats->rounds_completed, 1);
        stats->last_round_time_us = (lane->now_ns + lane->config.realtime_offset_ns) / 1000;
    }
}

/* Whether a payload with sub-blocks is what its op calls for shows as it is read; any other is. */
static bool add_payload(struct psc_qp *qp, const struct psc_packet *packet, struct psc_refusal *refusal)
{
    struct psc_pool *pool = &qp->pool->pool;

    if (psc_pool_reads(pool, qp->spec.rank))
        return psc_pool_read(pool, qp->spec.rank, packet->payload, packet->payload_bytes, refusal);
    psc_pool_add(pool, qp->spec.rank, psc_responder_offset_bytes(&qp->responder, packet), packet->payload,
                 packet->payload_bytes);
    return true;
}

/* False: refused, and its round is void. */
static bool execute_contribution(struct psc_lane *lane, struct psc_qp *qp, const struct psc_packet *packet,
                                 const struct target *target, struct psc_refusal *refusal)
{
    struct psc_job_pool *pool = qp->pool;
    uint16_t flags = packet->row->flags;

    if (flags & PSC_OPF_FIRST)
        begin_contribution(lane, qp, packet, target);
    if (!add_payload(qp, packet, refusal))
        return false;
    if ((flags & PSC_OPF_LAST) && psc_pool_finish(&pool->pool, qp->spec.rank, packet->imm))
        count_completed(lane, pool);
    PSC_COUNT(pool->contributed_bytes, packet->payload_bytes);
    psc_mark_publishable(lane, pool);
    return true;
}

/* The round waits for a rank that has left: it can never be complete. */
static bool waits_for_left_rank(struct psc_lane *lane, struct psc_qp *qp, uint32_t round)
{
    uint64_t gone = psc_pool_missing(&qp->pool->pool, round) & qp->job->left_ranks;

    if (!gone)
        return false;
    const struct psc_qp *left = &qp->pool->qps[__builtin_ctzll(gone)];
    const struct psc_refusal why = {.fault = PSC_FAULT_RANK_LEFT,
                                    .expected = qp->pool->pool.ledger[left->spec.rank].begun_rounds,
                                    .got = round};
    psc_fault_job(lane, left, round, &why);
    return true;
}

/* A NAK for its peer, and the end of the job's epoch. */
static enum psc_drop refuse(struct psc_lane *lane, struct psc_qp *qp, uint32_t round,
                            const struct psc_refusal *refusal)
{
    psc_responder_refused(&qp->responder, refusal->fault);
    psc_fault_job(lane, qp, round, refusal);
    return PSC_DROP_REFUSED;
}

static enum psc_drop execute(struct psc_lane *lane, struct psc_qp *qp, const struct psc_packet *packet,
                             const struct target *target)
{
    bool begins_round = (packet->row->flags & PSC_OPF_FIRST) && target->window != 0;
    struct psc_refusal refusal;

    if (begins_round && waits_for_left_rank(lane, qp, target->round))
        return PSC_DROP_QP_STATE;
    if (begins_round && !slot_writable(qp->pool, target->round)) {
        psc_responder_postponed(&qp->responder);
        return PSC_DROP_NO_BUFFER;
    }
    if (target->window == 0)
        execute_probe(lane, qp);
    else if (!execute_contribution(lane, qp, packet, target, &refusal))
        return refuse(lane, qp, target->round, &refusal);
    psc_responder_executed(&qp->responder, packet);
    qp->request_ns = lane->now_ns;
    psc_want_time(lane, qp);
    return PSC_DROP_NONE;
}

/* The responder's verdict on a request; what it then owes the peer stands in the responder. */
static enum psc_drop respond(struct psc_lane *lane, struct psc_qp *qp, const struct psc_packet *packet)
{
    struct psc_refusal refusal;

    switch (psc_responder_place(&qp->responder, packet->psn)) {
    case PSC_PLACE_PAST:
        return PSC_DROP_DUPLICATE;
    case PSC_PLACE_FUTURE:
        return PSC_DROP_GAP;
    case PSC_PLACE_IN_ORDER:
        break;
    }
    if (qp->job->left_ranks >> qp->spec.rank & 1)
        return PSC_DROP_QP_STATE;
    const struct target target = target_of(qp, packet);
    if (qp->job->state == PSC_JOB_ENDING && target.window != 0) {
        /* Silence: a NAK would spend the retries of a QP that results still go to. */
        psc_responder_postponed(&qp->responder);
        return PSC_DROP_QP_STATE;
    }
    if (request_ok(qp, packet, &target, &refusal))
        return execute(lane, qp, packet, &target);
    return refuse(lane, qp, current_round(qp), &refusal);
}

enum psc_drop psc_receive_request(struct psc_lane *lane, struct psc_qp *qp, const struct psc_packet *packet)
{
    enum psc_drop verdict = respond(lane, qp, packet);

    psc_want_to_reply(lane, qp);
    return verdict;
}
