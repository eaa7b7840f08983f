/* memory/: requests into plain memory, and WRITEs out of it. The receive order and the chain of checks are
 * those of core/psc_receive.c and core/psc_request.c, with the region's one rule where contributions have
 * theirs. */
#include "psc_target.h"

#include <stdlib.h>
#include <string.h>

#include "psc_requester.h"
#include "psc_responder.h"

#define P_KEY_MASK          0x7fffu
#define MAX_UNACKED_PACKETS 128
#define RETRIES             6
#define PROGRESS_NS         UINT64_C(30000000000) /* an emulated peer may stand still for seconds */
#define DSCP                26

/* One queue pair over one region. */
struct psc_target_qp {
    struct psc_target_qp_spec spec;
    struct psc_flow flow;
    struct psc_responder responder;
    struct psc_requester requester;
    struct psc_message ring[PSC_TARGET_WRITES];
    struct psc_target_write writes[PSC_TARGET_WRITES]; /* by tag modulo PSC_TARGET_WRITES */
    uint64_t posted_writes;                            /* the next one's tag */
    uint64_t message_offset_bytes;                     /* in the region, of the peer's message in progress */
    uint64_t executed_bytes, executed_messages, acknowledged_writes, sent_packets_again;
    struct psc_refusal lost; /* why nothing is executed or sent any more; fault NONE: it lives */
};

struct psc_target {
    struct psc_local local;
    struct psc_requester_config requester_config;
    struct psc_target_qp qps[PSC_TARGET_QPS];
    uint32_t qp_count;
    uint64_t drops[PSC_DROP_COUNT];
    uint32_t answer_bytes; /* of an ARP or ping answer that waits to leave; 0: none */
    uint8_t answer[PSC_TARGET_FRAME_BYTES];
};

struct psc_target *psc_target_new(const struct psc_local *local, uint64_t retransmit_ns)
{
    struct psc_target *target = calloc(1, sizeof *target);

    if (!target)
        return NULL;
    target->local = *local;
    target->requester_config = (struct psc_requester_config){.max_unacked_packets = MAX_UNACKED_PACKETS,
                                                             .retries = RETRIES,
                                                             .retransmit_ns = retransmit_ns,
                                                             .progress_ns = PROGRESS_NS,
                                                             .immediates = false};
    return target;
}

void psc_target_free(struct psc_target *target)
{
    free(target);
}

int psc_target_connect(struct psc_target *target, const struct psc_target_qp_spec *spec)
{
    if (target->qp_count == PSC_TARGET_QPS)
        return -1;
    struct psc_target_qp *qp = &target->qps[target->qp_count];
    *qp = (struct psc_target_qp){.spec = *spec,
                                 .flow = {.src_mac = target->local.mac,
                                          .dst_mac = spec->peer_mac,
                                          .src = target->local.ip,
                                          .dst = spec->peer,
                                          .vlan = target->local.vlan,
                                          .udp_port = spec->udp_port,
                                          .dscp = DSCP,
                                          .dest_qpn = spec->peer_qpn}};
    psc_responder_init(&qp->responder, spec->mtu_bytes, spec->peer_start_psn);
    psc_requester_init(&qp->requester, &target->requester_config, qp->ring, PSC_TARGET_WRITES,
                       spec->start_psn);
    return (int)target->qp_count++;
}

void psc_target_disconnect(struct psc_target *target)
{
    target->qp_count = 0;
}

struct psc_target_counters psc_target_counters(const struct psc_target *target, int qp_index)
{
    const struct psc_target_qp *qp = &target->qps[qp_index];

    return (struct psc_target_counters){.executed_bytes = qp->executed_bytes,
                                        .executed_messages = qp->executed_messages,
                                        .acknowledged_writes = qp->acknowledged_writes,
                                        .sent_packets_again = qp->sent_packets_again,
                                        .expected_psn = qp->responder.expected_psn,
                                        .msn = qp->responder.msn,
                                        .unacked_psn = qp->requester.unacked_psn,
                                        .fault = qp->lost.fault,
                                        .expected = qp->lost.expected,
                                        .got = qp->lost.got};
}

const uint64_t *psc_target_drops(const struct psc_target *target)
{
    return target->drops;
}

/* ---- Requests ---- */

/* The region's rule, at FIRST and ONLY, for the whole message: the rkey, and a range inside the region. */
static bool access_ok(const struct psc_region *region, const struct psc_packet *packet,
                      struct psc_refusal *refusal)
{
    if (!(packet->row->flags & PSC_OPF_FIRST))
        return true;
    if (packet->rkey != region->rkey)
        return psc_refuse(refusal, PSC_FAULT_REMOTE_ACCESS, region->rkey, packet->rkey);
    /* Modulo 2^64: an address below the base is far beyond the end. */
    uint64_t offset_bytes = packet->va - region->va_base;
    if (offset_bytes > region->bytes || packet->dma_len > region->bytes - offset_bytes)
        return psc_refuse(refusal, PSC_FAULT_REMOTE_ACCESS, region->bytes, offset_bytes);
    return true;
}

static bool request_ok(const struct psc_target_qp *qp, const struct psc_packet *packet,
                       struct psc_refusal *refusal)
{
    /* clang-format off */
    return psc_responder_sequence_ok(&qp->responder, packet, refusal) &&
           psc_responder_operation_ok(packet, refusal) &&
           psc_responder_lengths_ok(&qp->responder, packet, refusal) &&
           access_ok(&qp->spec.region, packet, refusal);
    /* clang-format on */
}

static void execute(struct psc_target_qp *qp, const struct psc_packet *packet)
{
    if (packet->row->flags & PSC_OPF_FIRST)
        qp->message_offset_bytes = packet->va - qp->spec.region.va_base;
    uint64_t at = qp->message_offset_bytes + psc_responder_offset_bytes(&qp->responder, packet);
    if (packet->payload_bytes > 0)
        memcpy(qp->spec.region.memory + at, packet->payload, packet->payload_bytes);
    qp->executed_bytes += packet->payload_bytes;
    if (packet->row->flags & PSC_OPF_LAST)
        qp->executed_messages++;
    psc_responder_executed(&qp->responder, packet);
}

static enum psc_drop receive_request(struct psc_target_qp *qp, const struct psc_packet *packet)
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
    if (request_ok(qp, packet, &refusal)) {
        execute(qp, packet);
        return PSC_DROP_NONE;
    }
    psc_responder_refused(&qp->responder, refusal.fault);
    qp->lost = refusal;
    return PSC_DROP_REFUSED;
}

/* ---- Responses ---- */

static enum psc_drop receive_response(struct psc_target_qp *qp, const struct psc_packet *packet,
                                      uint64_t now_ns)
{
    uint64_t tag;

    if (packet->opcode != PSC_RC_ACK)
        return PSC_DROP_OPCODE;
    switch (psc_requester_response(&qp->requester, packet->psn, packet->syndrome, now_ns)) {
    case PSC_RESPONSE_TAKEN:
        break;
    case PSC_RESPONSE_STALE:
        return PSC_DROP_STALE_ACK;
    case PSC_RESPONSE_RESERVED:
        return PSC_DROP_RESERVED_SYNDROME;
    case PSC_RESPONSE_FATAL:
        psc_refuse(&qp->lost, PSC_FAULT_NAK_RECEIVED, PSC_SYNDROME_ACK, packet->syndrome);
        return PSC_DROP_NONE;
    }
    while (psc_requester_pop(&qp->requester, &tag))
        qp->acknowledged_writes++;
    return PSC_DROP_NONE;
}

/* ---- Frames in ---- */

static struct psc_target_qp *find_qp(struct psc_target *target, uint32_t qpn)
{
    for (uint32_t i = 0; i < target->qp_count; i++)
        if (target->qps[i].spec.qpn == qpn)
            return &target->qps[i];
    return NULL;
}

static enum psc_drop receive_roce(struct psc_target *target, const struct psc_packet *packet, uint64_t now_ns)
{
    struct psc_target_qp *qp = find_qp(target, packet->dest_qpn);
    uint16_t flags = packet->row->flags;

    if (!qp)
        return PSC_DROP_UNKNOWN_QP;
    if (qp->lost.fault != PSC_FAULT_NONE)
        return PSC_DROP_QP_STATE;
    if (!psc_packet_is_from(packet, &qp->spec.peer))
        return PSC_DROP_FOREIGN_PEER;
    if ((packet->p_key & P_KEY_MASK) != P_KEY_MASK)
        return PSC_DROP_P_KEY;
    if (!psc_icrc_ok(packet))
        return PSC_DROP_ICRC;
    if (flags & PSC_OPF_CNP)
        return PSC_DROP_NONE;
    return flags & PSC_OPF_RESPONSE ? receive_response(qp, packet, now_ns) : receive_request(qp, packet);
}

/* ARP and ping. One answer at a time waits to leave: whoever asks and gets none will ask again. */
static void answer_host(struct psc_target *target, const uint8_t *frame, uint32_t bytes)
{
    if (target->answer_bytes == 0 && bytes <= PSC_TARGET_FRAME_BYTES)
        target->answer_bytes = psc_host_answer(frame, bytes, &target->local, target->answer);
}

void psc_target_receive(struct psc_target *target, const uint8_t *frame, uint32_t bytes, uint64_t now_ns)
{
    struct psc_packet packet;
    enum psc_drop why = PSC_DROP_NONE;

    switch (psc_parse(frame, bytes, &target->local, &packet, &why)) {
    case PSC_FRAME_ROCE:
        why = receive_roce(target, &packet, now_ns);
        break;
    case PSC_FRAME_DROP:
        break;
    default:
        answer_host(target, frame, bytes);
        break;
    }
    target->drops[why] += why != PSC_DROP_NONE;
}

/* ---- Frames out ---- */

bool psc_target_post(struct psc_target *target, int qp_index, const struct psc_target_write *write,
                     uint64_t now_ns)
{
    struct psc_target_qp *qp = &target->qps[qp_index];
    uint32_t mtu_bytes = qp->spec.mtu_bytes;
    uint32_t packets = write->bytes == 0 ? 1 : (write->bytes + mtu_bytes - 1) / mtu_bytes;

    if (!psc_requester_post(&qp->requester, qp->posted_writes, packets))
        return false;
    qp->writes[qp->posted_writes++ % PSC_TARGET_WRITES] = *write;
    psc_requester_ready(&qp->requester, packets, now_ns);
    return true;
}

/* Pad and ICRC behind headers and payload. */
static void finish(struct psc_target_frame *frame, uint32_t crc)
{
    uint32_t pad_bytes = (0 - frame->payload_bytes) & 3;

    memset(frame->trailer, 0, pad_bytes);
    crc = psc_crc32(psc_crc32(crc, frame->payload, frame->payload_bytes), frame->trailer, pad_bytes);
    psc_icrc_finish(crc, frame->trailer + pad_bytes);
    frame->trailer_bytes = pad_bytes + 4;
}

static void build_reply(struct psc_target_qp *qp, struct psc_target_frame *frame)
{
    struct psc_header header;
    uint32_t crc;

    psc_responder_take_reply(&qp->responder, &header);
    *frame = (struct psc_target_frame){.payload = frame->trailer};
    frame->header_bytes = psc_build(&qp->flow, &header, 0, frame->header, &crc);
    finish(frame, crc);
}

static void build_write(const struct psc_target_qp *qp, const struct psc_sending *sending,
                        struct psc_target_frame *frame)
{
    const struct psc_target_write *write = &qp->writes[sending->message->tag % PSC_TARGET_WRITES];
    const struct psc_header header = {.opcode = sending->opcode,
                                      .ack_req = sending->ack_req,
                                      .psn = sending->psn,
                                      .va = write->va,
                                      .rkey = write->rkey,
                                      .dma_len = write->bytes};
    uint32_t offset_bytes = sending->index * qp->spec.mtu_bytes;
    uint32_t left_bytes = write->bytes - offset_bytes;
    uint32_t crc;

    *frame = (struct psc_target_frame){.payload = write->source + offset_bytes,
                                       .payload_bytes =
                                           left_bytes < qp->spec.mtu_bytes ? left_bytes : qp->spec.mtu_bytes};
    frame->header_bytes = psc_build(&qp->flow, &header, frame->payload_bytes, frame->header, &crc);
    finish(frame, crc);
}

/* A lost QP says one thing more: the NAK that tells its peer why. */
static bool emit_of(struct psc_target_qp *qp, uint64_t now_ns, struct psc_target_frame *frame)
{
    struct psc_sending sending;
    bool lives = qp->lost.fault == PSC_FAULT_NONE;

    if (qp->responder.owed == PSC_REPLY_NAK_FATAL || (lives && qp->responder.owed != PSC_REPLY_NONE)) {
        build_reply(qp, frame);
        return true;
    }
    if (!lives || !psc_requester_next(&qp->requester, now_ns, &sending))
        return false;
    build_write(qp, &sending, frame);
    qp->sent_packets_again += sending.again;
    return true;
}

bool psc_target_emit(struct psc_target *target, uint64_t now_ns, struct psc_target_frame *frame)
{
    if (target->answer_bytes > 0) {
        *frame = (struct psc_target_frame){.payload = target->answer, .payload_bytes = target->answer_bytes};
        target->answer_bytes = 0;
        return true;
    }
    for (uint32_t i = 0; i < target->qp_count; i++)
        if (emit_of(&target->qps[i], now_ns, frame))
            return true;
    return false;
}

void psc_target_expire(struct psc_target *target, uint64_t now_ns)
{
    for (uint32_t i = 0; i < target->qp_count; i++) {
        struct psc_target_qp *qp = &target->qps[i];
        if (psc_requester_expire(&qp->requester, now_ns) == PSC_EXPIRY_EXHAUSTED &&
            qp->lost.fault == PSC_FAULT_NONE)
            psc_refuse(&qp->lost, PSC_FAULT_RETRY_EXCEEDED, RETRIES, qp->requester.timeouts);
    }
}
