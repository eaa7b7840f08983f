/* bench/load: frames out. Contributions, whose payloads' CRCs were computed once, probes, acknowledgements,
 * and answers to ARP and ping. */
#include "load.h"

#include "psc_psn.h"

static void emit_reply(struct load *load, struct load_qp *qp, struct psc_emit *emit)
{
    struct psc_header header;
    uint32_t crc;

    if (psc_responder_take_reply(&qp->responder, &header) == PSC_REPLY_ACK)
        load->counters.acks_sent++;
    else
        load->counters.naks_sent++;
    *emit = (struct psc_emit){.trailer_bytes = 4};
    emit->header_bytes = psc_build(&qp->flow, &header, 0, emit->header, &crc);
    psc_icrc_finish(crc, emit->trailer);
}

static void emit_payload(const struct load *load, const struct psc_flow *flow,
                         const struct psc_header *header, const uint8_t *payload, uint32_t payload_bytes,
                         uint32_t payload_crc, struct psc_emit *emit)
{
    uint32_t crc;

    emit->payload = payload;
    emit->payload_bytes = payload_bytes;
    emit->hold = NULL;
    emit->header_bytes = psc_build(flow, header, payload_bytes, emit->header, &crc);
    crc = payload_bytes == load->mtu ? psc_crc32_combine(&load->shift, crc, payload_crc)
                                     : psc_crc32(crc, payload, payload_bytes);
    psc_icrc_finish(crc, emit->trailer);
    emit->trailer_bytes = 4;
}

/* Packet `index` of a round's contribution. Contributions are whole words, so nothing is padded. */
static void emit_contribution(const struct load *load, const struct load_qp *qp, uint32_t round,
                              uint32_t index, struct psc_header *header, struct psc_emit *emit)
{
    const struct load_shape *shape = load_shape_of(load, qp->spec.pool, round);
    uint32_t offset_bytes = index * load->mtu;

    header->va = qp->spec.va_base + psc_va_offset(shape->op_window, round);
    header->rkey = qp->spec.rkey;
    header->dma_len = shape->bytes;
    header->imm = load_immediate_of(shape, round);
    emit_payload(load, &qp->flow, header,
                 shape->contributions + qp->spec.rank * shape->rank_bytes + offset_bytes,
                 RTE_MIN(load->mtu, shape->bytes - offset_bytes),
                 shape->contribution_crcs[qp->spec.rank * shape->packets + index], emit);
}

static void emit_probe(const struct load *load, const struct load_qp *qp, struct psc_header *header,
                       struct psc_emit *emit)
{
    header->va = qp->spec.va_base;
    header->rkey = qp->spec.rkey;
    header->dma_len = load->mtu;
    header->imm = PSC_IMM_PROBE;
    emit_payload(load, &qp->flow, header, load->zeros, load->mtu, psc_crc32(0, load->zeros, load->mtu), emit);
}

static void emit_request(struct load *load, const struct load_qp *qp, const struct psc_sending *sending,
                         struct psc_emit *emit)
{
    struct psc_header header = {.opcode = sending->opcode, .ack_req = sending->ack_req, .psn = sending->psn};

    if (sending->message->tag == LOAD_TAG_PROBE)
        emit_probe(load, qp, &header, emit);
    else
        emit_contribution(load, qp, (uint32_t)sending->message->tag, sending->index, &header, emit);
    load->counters.sent_again += sending->again;
    if (!sending->again && sending->message->tag != LOAD_TAG_PROBE) {
        load->counters.contribution_packets++;
        load->counters.contribution_bytes += emit->payload_bytes;
    }
}

static uint32_t emit_replies(struct load *load, struct psc_emit *emits, uint32_t max)
{
    uint32_t n = 0;

    while (load->answer_count > 0 && n < max) {
        load->answer_count--;
        emits[n++] = (struct psc_emit){.payload = load->answers[load->answer_count],
                                       .payload_bytes = load->answer_bytes[load->answer_count]};
    }
    for (uint32_t i = 0; i < load->qp_count && n < max; i++) {
        struct load_qp *qp = &load->qps[i];
        bool lives = qp->lost.fault == PSC_FAULT_NONE;

        if (qp->responder.owed == PSC_REPLY_NAK_FATAL || (lives && qp->responder.owed != PSC_REPLY_NONE))
            emit_reply(load, qp, &emits[n++]);
    }
    return n;
}

/* Replies first; then one packet of each QP in turn, so that the ranks' contributions reach a slot together.
 */
uint32_t load_emit(struct load *load, struct psc_emit *emits, uint32_t max, uint64_t now_ns)
{
    uint32_t n = emit_replies(load, emits, max);
    uint32_t silent = 0;

    while (n < max && silent < load->qp_count) {
        struct load_qp *qp = &load->qps[load->turn_qp];
        struct psc_sending sending;

        load->turn_qp = (load->turn_qp + 1) % load->qp_count;
        if (qp->lost.fault != PSC_FAULT_NONE || !psc_requester_next(&qp->requester, now_ns, &sending)) {
            silent++;
            continue;
        }
        silent = 0;
        emit_request(load, qp, &sending, &emits[n++]);
    }
    return n;
}

void load_blind_frame(struct load *load, uint64_t number, struct psc_emit *emit)
{
    const struct load_qp *qp = &load->qps[number % load->qp_count];
    uint32_t packets = load_shape_of(load, qp->spec.pool, 0)->packets;
    uint32_t packet = (uint32_t)(number / load->qp_count);
    uint32_t index = packet % packets;
    struct psc_header header = {.psn = psc_psn_add(qp->spec.start_psn, packet)};

    header.opcode = index == 0 ? PSC_RC_WRITE_FIRST : PSC_RC_WRITE_MIDDLE;
    if (index == packets - 1)
        header.opcode = index == 0 ? PSC_RC_WRITE_ONLY_IMM : PSC_RC_WRITE_LAST_IMM;
    emit_contribution(load, qp, packet / packets, index, &header, emit);
}
