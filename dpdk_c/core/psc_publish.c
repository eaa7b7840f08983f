/* core/: results out. Steps of the story: "slot full -> result built once, one header per worker".
 * A result's bytes are the slot's own: they are lent to every frame that carries them, and a full packet's
 * CRC is computed once. */
#include <assert.h>

#include "psc_lane_state.h"

void psc_mark_publishable(struct psc_lane *lane, struct psc_job_pool *pool)
{
    if (pool->publishable)
        return;
    pool->publishable = true;
    lane->publishable[lane->publishable_count++] = pool;
}

void psc_want_to_send(struct psc_lane *lane, struct psc_qp *qp)
{
    psc_want_time(lane, qp);
    if (qp->sending)
        return;
    qp->sending = true;
    lane->senders.qps[lane->senders.count++] = qp;
}

/* The result's packets before `end` are final now: the CRCs of full ones (see build_headers) that did not
 * come with the last addition. */
static void make_crcs(const struct psc_job_pool *pool, const struct psc_slot *slot, uint32_t end)
{
    if (!PSC_ICRC_IS_MADE || psc_pool_makes_crcs(&pool->pool, slot->op))
        return;
    for (uint32_t packet = pool->published_packets; packet < end; packet++) {
        uint32_t bytes;
        const uint8_t *payload = psc_slot_payload(&pool->pool, slot, packet, &bytes);
        if (bytes == pool->pool.shape.packet_bytes)
            slot->packet_crc[packet] = psc_crc32(0, payload, bytes);
    }
}

void psc_post_message(struct psc_qp *qp, uint64_t tag, uint32_t packets)
{
    bool posted = psc_requester_post(&qp->requester, tag, packets);

    assert(posted); /* psc_job.c, at ring_messages, proves it */
    (void)posted;
}

static void post_result(struct psc_qp *qp, const struct psc_slot *slot)
{
    psc_post_message(qp, slot->round, slot->packets);
    qp->given_rounds = slot->round + 1;
}

/* The result's packets before `end` now exist: every rank may be sent them. */
static void publish_packets(struct psc_lane *lane, struct psc_job_pool *pool, const struct psc_slot *slot,
                            uint32_t end)
{
    uint32_t begin = pool->published_packets;

    make_crcs(pool, slot, end);
    for (uint32_t rank = 0; rank < pool->pool.shape.world_size; rank++) {
        struct psc_qp *qp = &pool->qps[rank];
        if (begin == 0)
            post_result(qp, slot);
        psc_requester_ready(&qp->requester, end - begin, lane->now_ns);
        psc_want_to_send(lane, qp);
    }
    pool->published_packets = end;
}

/* Rounds complete in order, so the stream of results has one place where it grows. */
static void publish_pool(struct psc_lane *lane, struct psc_job_pool *pool)
{
    const struct psc_slot *slot;

    while ((slot = psc_pool_find(&pool->pool, pool->publishing_round)) != NULL) {
        if (slot->summed_packets > pool->published_packets)
            publish_packets(lane, pool, slot, slot->summed_packets);
        if (slot->summed_packets < slot->packets)
            return;
        pool->publishing_round++;
        pool->published_packets = 0;
    }
}

void psc_add_contributions(struct psc_lane *lane)
{
    for (uint32_t i = 0; i < lane->publishable_count; i++)
        psc_pool_settle(&lane->publishable[i]->pool);
}

/* Once for the burst, as in psc_lane.c. */
static void count_contributed(struct psc_job_pool *pool)
{
    if (pool->job->spec.stats)
        PSC_COUNT(pool->job->spec.stats->contribution_bytes, pool->contributed_bytes);
    pool->contributed_bytes = 0;
}

void psc_publish_results(struct psc_lane *lane)
{
    for (uint32_t i = 0; i < lane->publishable_count; i++) {
        struct psc_job_pool *pool = lane->publishable[i];
        pool->publishable = false;
        count_contributed(pool);
        publish_pool(lane, pool);
    }
    lane->publishable_count = 0;
}

bool psc_lacks_results(const struct psc_qp *qp)
{
    return psc_round_distance(qp->given_rounds, qp->pool->publishing_round) < 0;
}

void psc_deliver_missing(struct psc_lane *lane, struct psc_qp *qp)
{
    while (psc_lacks_results(qp)) {
        const struct psc_slot *slot = psc_pool_find(&qp->pool->pool, qp->given_rounds);
        post_result(qp, slot);
        psc_requester_ready(&qp->requester, slot->packets, lane->now_ns);
        psc_want_to_send(lane, qp);
    }
}

/* What a packet carries, and where it is to be written: the same for a PSN however often it is sent. */
struct piece {
    const uint8_t *payload;
    uint32_t payload_bytes;
    uint32_t payload_crc; /* of a full packet */
    struct psc_hold *hold;
    uint64_t va;
    uint32_t dma_len;
    uint32_t imm;
};

static struct piece probe_piece(struct psc_lane *lane, const struct psc_qp *qp)
{
    return (struct piece){.payload = lane->zeros,
                          .payload_bytes = qp->job->spec.mtu,
                          .payload_crc = 0, /* of zeros after a zero seed */
                          .hold = &lane->zeros_hold,
                          .va = qp->spec.result_va,
                          .dma_len = qp->job->spec.mtu,
                          .imm = PSC_IMM_PROBE};
}

static struct piece result_piece(struct psc_job_pool *pool, const struct psc_qp *qp, uint32_t round,
                                 uint32_t packet)
{
    const struct psc_pool_shape *shape = &pool->pool.shape;
    const struct psc_slot *slot = psc_pool_find(&pool->pool, round);
    struct psc_result *result = &pool->results[psc_pool_slot_index(&pool->pool, round)];
    uint64_t place = round & (shape->window - 1);
    struct piece piece = {.payload_crc = PSC_ICRC_IS_MADE ? slot->packet_crc[packet] : 0,
                          .hold = &result->hold,
                          .va = qp->spec.result_va + place * shape->chunk_bytes,
                          .dma_len = slot->result_bytes,
                          .imm = slot->imm};

    piece.payload = psc_slot_payload(&pool->pool, slot, packet, &piece.payload_bytes);
    return piece;
}

/* A full packet's CRC is combined with the headers' in constant time. A message's shorter tail is read for
 * every worker: combining needs a table per length. */
static uint32_t build_headers(const struct psc_qp *qp, const struct psc_sending *sending,
                              const struct piece *piece, struct psc_emit *emit)
{
    const struct psc_header header = {.opcode = sending->opcode,
                                      .ack_req = sending->ack_req,
                                      .psn = sending->psn,
                                      .va = piece->va,
                                      .rkey = qp->spec.result_rkey,
                                      .dma_len = piece->dma_len,
                                      .imm = piece->imm};
    uint32_t crc;

    emit->header_bytes = psc_build(&qp->flow, &header, piece->payload_bytes, emit->header, &crc);
    if (!PSC_ICRC_IS_MADE || piece->payload_bytes == qp->job->spec.mtu)
        return psc_crc32_combine(&qp->job->mtu_shift, crc, piece->payload_crc);
    return psc_crc32(crc, piece->payload, piece->payload_bytes);
}

/* The packets between a message's first and last differ by their PSN alone. */
static uint32_t build_middle(struct psc_qp *qp, const struct psc_sending *sending, const struct piece *piece,
                             struct psc_emit *emit)
{
    const struct psc_job *job = qp->job;
    uint32_t crc;

    if (qp->middle.header_bytes == 0)
        psc_template_init(&qp->middle, &qp->flow, job->spec.mtu, &job->mtu_shift);
    emit->header_bytes = psc_build_middle(&qp->middle, sending->psn, sending->ack_req, &job->psn_shift,
                                          piece->payload_crc, emit->header, &crc);
    return crc;
}

/* Headers and ICRC around the lent payload. */
static void build_emit(struct psc_qp *qp, const struct psc_sending *sending, const struct piece *piece,
                       struct psc_emit *emit)
{
    uint32_t crc = sending->opcode == PSC_RC_WRITE_MIDDLE ? build_middle(qp, sending, piece, emit)
                                                          : build_headers(qp, sending, piece, emit);

    psc_icrc_finish(crc, emit->trailer);
    emit->trailer_bytes = sizeof(emit->trailer);
    emit->payload = piece->payload;
    emit->payload_bytes = piece->payload_bytes;
    emit->hold = piece->hold;
    emit->hold->count++;
}

/* Returns the bytes of a result that leave for the first time. */
static uint32_t send_packet(struct psc_lane *lane, struct psc_qp *qp, const struct psc_sending *sending,
                            struct psc_emit *emit)
{
    bool probe = sending->message->tag == PSC_TAG_PROBE;
    struct piece piece = probe ? probe_piece(lane, qp)
                               : result_piece(qp->pool, qp, (uint32_t)sending->message->tag, sending->index);

    build_emit(qp, sending, &piece, emit);
    if (!sending->again)
        return probe ? 0 : piece.payload_bytes;
    PSC_COUNT(lane->stats->retransmitted_packets, 1);
    return 0;
}

/* What the QP may send, at most `share` packets. True: it may have more. */
static bool send_from(struct psc_lane *lane, struct psc_qp *qp, uint32_t share, struct psc_outbox *out)
{
    struct psc_sending sending;
    uint64_t result_bytes = 0;
    uint32_t sent = 0;

    while (sent < share && !psc_outbox_full(out) &&
           psc_requester_next(&qp->requester, lane->now_ns, &sending)) {
        result_bytes += send_packet(lane, qp, &sending, psc_outbox_take(out));
        sent++;
    }
    if (qp->job->spec.stats)
        PSC_COUNT(qp->job->spec.stats->result_bytes, result_bytes);
    return sent == share || psc_outbox_full(out);
}

/* The outbox's room in equal shares, and again what somebody has left of his. Workers that get their results
 * together send their next contributions together, and what comes together is added in one pass. A QP leaves
 * the set when it has nothing that may be sent: an ACK, a result or a clock brings it back. The next turn
 * goes on behind who was served last: who always has something starves nobody. */
void psc_send_results(struct psc_lane *lane, struct psc_outbox *out)
{
    struct psc_qp_set *senders = &lane->senders;
    uint32_t share = 0, waiting = 0, at = senders->next;

    while (senders->count > 0 && !psc_outbox_full(out)) {
        if (waiting == 0) { /* for their share of the room: all */
            waiting = senders->count;
            share = (out->max - out->count + waiting - 1) / waiting;
        }
        waiting--;
        if (at >= senders->count)
            at = 0;
        struct psc_qp *qp = senders->qps[at];
        qp->sending = qp->state == PSC_QP_RTS && send_from(lane, qp, share, out);
        if (qp->sending)
            at++;
        else
            senders->qps[at] = senders->qps[--senders->count];
    }
    senders->next = at;
}
