/* bench/load: a worker's queue pairs. Contributions go out as RDMA WRITEs with immediate, one per round, as
 * far as the window allows; results come in, are compared with the sum byte by byte, and are acknowledged.
 * The receive order and the chain of checks are those of core/psc_receive.c and core/psc_request.c. */
#include "load.h"

#include <string.h>

#include "psc_psn.h"

#define P_KEY_MASK   0x7fffu
#define DSCP         26
#define UDP_PORT_MIN 0xc000u

void load_qp_add(struct load *load, const struct load_qp_spec *spec)
{
    struct load_qp *qp = &load->qps[load->qp_count++];

    *qp = (struct load_qp){.spec = *spec,
                           .flow = {.src_mac = load->local.mac,
                                    .dst_mac = load->peer_mac,
                                    .src = load->local.ip,
                                    .dst = load->peer,
                                    .udp_port = (uint16_t)(UDP_PORT_MIN | (spec->qpn & 0x3fffu)),
                                    .dscp = DSCP,
                                    .dest_qpn = spec->peer_qpn}};
    psc_responder_init(&qp->responder, load->mtu, spec->peer_start_psn);
    psc_requester_init(&qp->requester, &load->requester_config, qp->ring, 2 * PSC_MAX_WINDOW,
                       spec->start_psn);
}

void load_forget(struct load *load)
{
    load->qp_count = load->turn_qp = 0;
    for (uint32_t pool = 0; pool < PSC_POOL_CLASS_COUNT; pool++) {
        load_shapes_free(&load->shapes[pool]);
        load->round_limit[pool] = 0;
    }
}

/* ---- Posting ---- */

static void post(struct load_qp *qp, uint64_t tag, uint32_t packets, uint64_t now_ns)
{
    psc_requester_post(&qp->requester, tag, packets);
    psc_requester_ready(&qp->requester, packets, now_ns);
}

void load_probe(struct load *load, uint64_t now_ns)
{
    for (uint32_t i = 0; i < load->qp_count; i++) {
        load->qps[i].probe_posted = true;
        post(&load->qps[i], LOAD_TAG_PROBE, 1, now_ns);
    }
}

bool load_probed(const struct load *load)
{
    for (uint32_t i = 0; i < load->qp_count; i++)
        if (!load->qps[i].probe_received || !load->qps[i].probe_acknowledged)
            return false;
    return load->qp_count > 0;
}

/* A round is posted once the one that had its slot, W before it, has been received: it is drained at once,
 * for it has been looked at packet by packet. */
void load_post(struct load *load, uint64_t now_ns)
{
    for (uint32_t i = 0; i < load->qp_count; i++) {
        struct load_qp *qp = &load->qps[i];
        uint32_t limit = RTE_MIN(load->round_limit[qp->spec.pool], qp->received + qp->spec.window);

        while (qp->posted < limit && qp->lost.fault == PSC_FAULT_NONE) {
            post(qp, qp->posted, load_shape_of(load, qp->spec.pool, qp->posted)->packets, now_ns);
            qp->posted++;
        }
    }
}

uint32_t load_received(const struct load *load, uint32_t pool)
{
    uint32_t least = UINT32_MAX;

    for (uint32_t i = 0; i < load->qp_count; i++)
        if (load->qps[i].spec.pool == pool)
            least = RTE_MIN(least, load->qps[i].received);
    return least;
}

uint32_t load_posted(const struct load *load, uint32_t pool)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < load->qp_count; i++)
        if (load->qps[i].spec.pool == pool)
            most = RTE_MAX(most, load->qps[i].posted);
    return most;
}

const struct load_qp *load_lost(const struct load *load)
{
    for (uint32_t i = 0; i < load->qp_count; i++)
        if (load->qps[i].lost.fault != PSC_FAULT_NONE)
            return &load->qps[i];
    return NULL;
}

/* ---- Results ---- */

/* At FIRST and ONLY: the address and length of the result that is due, or of the probe. Rounds come in order.
 */
static bool access_ok(const struct load *load, const struct load_qp *qp, const struct psc_packet *packet,
                      struct psc_refusal *refusal)
{
    const struct load_qp_spec *spec = &qp->spec;
    bool probe = !qp->probe_received;

    if (!(packet->row->flags & PSC_OPF_FIRST))
        return true;
    if (packet->rkey != spec->result_rkey)
        return psc_refuse(refusal, PSC_FAULT_REMOTE_ACCESS, spec->result_rkey, packet->rkey);
    uint64_t va = spec->result_va + (probe ? 0 : (uint64_t)(qp->received % spec->window) * spec->chunk_bytes);
    uint32_t bytes = probe ? load->mtu : load_shape_of(load, spec->pool, qp->received)->result_bytes;
    if (packet->va != va)
        return psc_refuse(refusal, PSC_FAULT_REMOTE_ACCESS, va, packet->va);
    if (packet->dma_len != bytes)
        return psc_refuse(refusal, PSC_FAULT_LENGTH_MISMATCH, bytes, packet->dma_len);
    return true;
}

/* At LAST and ONLY: the immediate of the round that is due, which this rank has posted. */
static bool immediate_ok(const struct load *load, const struct load_qp *qp, const struct psc_packet *packet,
                         struct psc_refusal *refusal)
{
    uint32_t due = PSC_IMM_PROBE;

    if (!(packet->row->flags & PSC_OPF_LAST))
        return true;
    if (qp->probe_received && qp->received == qp->posted)
        return psc_refuse(refusal, PSC_FAULT_ROUND_MISMATCH, qp->posted, qp->received);
    if (qp->probe_received)
        due = load_immediate_of(load_shape_of(load, qp->spec.pool, qp->received), qp->received);
    if (!(packet->row->flags & PSC_OPF_IMM) || packet->imm != due)
        return psc_refuse(refusal, PSC_FAULT_IMM_MISMATCH, due, packet->imm);
    return true;
}

static void remember_wrong(struct load *load, const struct load_qp *qp, const struct load_shape *shape,
                           const struct psc_packet *packet, uint32_t at_bytes)
{
    struct load_wrong *wrong = &load->first_wrong;
    uint32_t i = 0;

    if (load->counters.wrong_packets++ > 0)
        return;
    while (packet->payload[i] == shape->result[at_bytes + i])
        i++;
    i &= ~3u; /* the word that holds it; results are whole words */
    *wrong = (struct load_wrong){.rank = qp->spec.rank,
                                 .pool = qp->spec.pool,
                                 .round = qp->received,
                                 .op = shape->op,
                                 .offset_bytes = at_bytes + i};
    memcpy(&wrong->expected, shape->result + at_bytes + i, sizeof wrong->expected);
    memcpy(&wrong->got, packet->payload + i, sizeof wrong->got);
}

static void take_result(struct load *load, struct load_qp *qp, const struct psc_packet *packet)
{
    const struct load_shape *shape = load_shape_of(load, qp->spec.pool, qp->received);
    uint32_t at_bytes = psc_responder_offset_bytes(&qp->responder, packet);

    if (memcmp(packet->payload, shape->result + at_bytes, packet->payload_bytes) != 0)
        remember_wrong(load, qp, shape, packet, at_bytes);
    load->counters.result_bytes += packet->payload_bytes;
    if (packet->row->flags & PSC_OPF_LAST) {
        qp->received++;
        load->counters.rounds++;
    }
}

static enum psc_drop receive_request(struct load *load, struct load_qp *qp, const struct psc_packet *packet)
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
    /* clang-format off */
    if (!psc_responder_sequence_ok(&qp->responder, packet, &refusal) ||
        !psc_responder_operation_ok(packet, &refusal) ||
        !psc_responder_lengths_ok(&qp->responder, packet, &refusal) ||
        !access_ok(load, qp, packet, &refusal) ||
        !immediate_ok(load, qp, packet, &refusal)) {
        /* clang-format on */
        psc_responder_refused(&qp->responder, refusal.fault);
        qp->lost = refusal;
        load->counters.wrong_messages++;
        return PSC_DROP_REFUSED;
    }
    if (qp->probe_received)
        take_result(load, qp, packet);
    qp->probe_received = true;
    psc_responder_executed(&qp->responder, packet);
    return PSC_DROP_NONE;
}

/* ---- Acknowledgements ---- */

static enum psc_drop receive_response(struct load *load, struct load_qp *qp, const struct psc_packet *packet,
                                      uint64_t now_ns)
{
    uint64_t tag;

    if (packet->opcode != PSC_RC_ACK)
        return PSC_DROP_OPCODE;
    if (packet->syndrome == PSC_SYNDROME_ACK)
        load->counters.acks_received++;
    else
        load->counters.naks_received++;
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
        if (tag == LOAD_TAG_PROBE)
            qp->probe_acknowledged = true;
    return PSC_DROP_NONE;
}

/* ---- Frames in ---- */

static struct load_qp *find_qp(struct load *load, uint32_t qpn)
{
    for (uint32_t i = 0; i < load->qp_count; i++)
        if (load->qps[i].spec.qpn == qpn)
            return &load->qps[i];
    return NULL;
}

static bool icrc_ok(struct load *load, const struct psc_packet *packet)
{
    if (packet->payload_bytes > 0 && ++load->icrc_turn < load->check_icrc_every)
        return true;
    load->icrc_turn = 0;
    return psc_icrc_ok(packet);
}

static enum psc_drop receive_roce(struct load *load, const struct psc_packet *packet, uint64_t now_ns)
{
    struct load_qp *qp = find_qp(load, packet->dest_qpn);

    if (qp == NULL)
        return PSC_DROP_UNKNOWN_QP;
    if (qp->lost.fault != PSC_FAULT_NONE)
        return PSC_DROP_QP_STATE;
    if (!psc_packet_is_from(packet, &load->peer))
        return PSC_DROP_FOREIGN_PEER;
    if ((packet->p_key & P_KEY_MASK) != P_KEY_MASK)
        return PSC_DROP_P_KEY;
    if (!icrc_ok(load, packet))
        return PSC_DROP_ICRC;
    if (packet->row->flags & PSC_OPF_CNP)
        return PSC_DROP_NONE;
    if (packet->row->flags & PSC_OPF_RESPONSE)
        return receive_response(load, qp, packet, now_ns);
    return receive_request(load, qp, packet);
}

/* ARP and ping; and where the appliance is, which is what our own question was for. */
static void hear_host(struct load *load, const uint8_t *frame, uint32_t bytes)
{
    struct psc_ip who;
    struct psc_mac mac;

    if (psc_neighbour_heard(frame, bytes, &load->local, &who, &mac) && psc_ip_equal(&who, &load->peer)) {
        load->peer_mac = mac;
        load->peer_known = true;
    }
    if (load->answer_count == LOAD_BURST || bytes > LOAD_FRAME_ROOM)
        return; /* whoever asks and gets no answer will ask again */
    uint32_t answer_bytes = psc_host_answer(frame, bytes, &load->local, load->answers[load->answer_count]);
    if (answer_bytes > 0)
        load->answer_bytes[load->answer_count++] = answer_bytes;
}

void load_receive(struct load *load, const uint8_t *frame, uint32_t bytes, uint64_t now_ns)
{
    struct psc_packet packet;
    enum psc_drop why = PSC_DROP_NONE;

    switch (psc_parse(frame, bytes, &load->local, &packet, &why)) {
    case PSC_FRAME_ROCE:
        why = receive_roce(load, &packet, now_ns);
        break;
    case PSC_FRAME_DROP:
        break;
    default:
        hear_host(load, frame, bytes);
        break;
    }
    load->counters.drops[why] += why != PSC_DROP_NONE;
}

/* ---- Time ---- */

void load_expire(struct load *load, uint64_t now_ns)
{
    for (uint32_t i = 0; i < load->qp_count; i++) {
        struct load_qp *qp = &load->qps[i];

        switch (psc_requester_expire(&qp->requester, now_ns)) {
        case PSC_EXPIRY_TIMEOUT:
            load->counters.timeouts++;
            break;
        case PSC_EXPIRY_EXHAUSTED:
            if (qp->lost.fault == PSC_FAULT_NONE)
                psc_refuse(&qp->lost, PSC_FAULT_RETRY_EXCEEDED, load->requester_config.retries,
                           qp->requester.timeouts);
            break;
        default:
            break;
        }
    }
}
