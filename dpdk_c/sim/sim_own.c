/* sim/: a worker's queue pair built from our own state machines, the other way round: qp/'s requester sends
 * contributions, qp/'s responder takes results into a plain memory region. So both ends of the wire run the
 * same code in these runs, as they do when two appliances are tested against each other. */
#include <stdlib.h>
#include <string.h>

#include "psc_requester.h"
#include "psc_responder.h"
#include "sim_endpoint.h"

/* The requester knows packets' numbers; what they carry stands here, by the message's tag. */
struct own {
    struct sim_endpoint head;
    struct psc_requester_config config;
    struct psc_requester requester;
    struct psc_responder responder;
    struct psc_message *ring;
    struct sim_write *writes; /* by tag mod send_queue */
    uint64_t posted;          /* the next tag */
    struct psc_local local;
    struct psc_flow flow;
    uint64_t place; /* of the message in progress, in the region */
};

static struct psc_ip ip_of(const uint8_t v4[4])
{
    struct psc_ip ip = {{[10] = 0xff, [11] = 0xff}};

    memcpy(ip.b + 12, v4, 4);
    return ip;
}

static struct sim_endpoint *make(const struct sim_endpoint_spec *spec)
{
    struct own *own = calloc(1, sizeof *own);

    own->head = (struct sim_endpoint){.ops = &sim_own_ops, .spec = *spec};
    own->config = (struct psc_requester_config){.max_unacked_packets = spec->habits.max_unacked,
                                                .retries = spec->habits.retries,
                                                .retransmit_ns = spec->habits.retransmit_ns,
                                                .progress_ns = UINT64_MAX,
                                                .immediates = true};
    own->ring = calloc(spec->send_queue, sizeof *own->ring);
    own->writes = calloc(spec->send_queue, sizeof *own->writes);
    psc_requester_init(&own->requester, &own->config, own->ring, spec->send_queue, spec->start_psn);
    psc_responder_init(&own->responder, spec->mtu_bytes, spec->expected_psn);
    memcpy(own->local.mac.b, spec->mac, 6);
    own->local.ip = ip_of(spec->ip);
    own->flow = (struct psc_flow){.src = own->local.ip,
                                  .dst = ip_of(spec->peer_ip),
                                  .src_mac = own->local.mac,
                                  .udp_port = spec->udp_port,
                                  .dscp = 26,
                                  .dest_qpn = spec->peer_qpn};
    memcpy(own->flow.dst_mac.b, spec->peer_mac, 6);
    return &own->head;
}

static void release(struct sim_endpoint *endpoint)
{
    struct own *own = (struct own *)endpoint;

    free(own->ring);
    free(own->writes);
    free(own);
}

static bool post(struct sim_endpoint *endpoint, const struct sim_write *write, uint64_t now_ns)
{
    struct own *own = (struct own *)endpoint;
    uint32_t packets = (write->bytes + endpoint->spec.mtu_bytes - 1) / endpoint->spec.mtu_bytes;

    if (!psc_requester_post(&own->requester, own->posted, packets))
        return false;
    psc_requester_ready(&own->requester, packets, now_ns);
    own->writes[own->posted++ % endpoint->spec.send_queue] = *write;
    return true;
}

/* A result ends with an immediate: its completion is what a worker waits for. */
static bool form_ok(const struct psc_packet *packet)
{
    return !(packet->row->flags & PSC_OPF_LAST) || (packet->row->flags & PSC_OPF_IMM);
}

static bool access_ok(const struct own *own, const struct psc_packet *packet)
{
    const struct sim_region *region = &own->head.spec.region;
    uint64_t offset = packet->va - region->va;

    if (!(packet->row->flags & PSC_OPF_FIRST))
        return true;
    return packet->rkey == region->rkey && offset <= region->bytes &&
           packet->dma_len <= region->bytes - offset;
}

static void execute(struct own *own, const struct psc_packet *packet)
{
    const struct sim_region *region = &own->head.spec.region;

    if (packet->row->flags & PSC_OPF_FIRST)
        own->place = packet->va - region->va;
    memcpy(region->data + own->place + psc_responder_offset_bytes(&own->responder, packet), packet->payload,
           packet->payload_bytes);
    psc_responder_executed(&own->responder, packet);
    if (!(packet->row->flags & PSC_OPF_LAST))
        return;
    own->head.receives--;
    own->head.spec.completed(own->head.spec.context, packet->imm);
}

static void receive_request(struct own *own, const struct psc_packet *packet)
{
    struct psc_responder *responder = &own->responder;
    struct psc_refusal refusal = {.fault = PSC_FAULT_REMOTE_ACCESS};

    if (psc_responder_place(responder, packet->psn) != PSC_PLACE_IN_ORDER)
        return;
    if (!psc_responder_sequence_ok(responder, packet, &refusal) ||
        !psc_responder_operation_ok(packet, &refusal) ||
        !psc_responder_lengths_ok(responder, packet, &refusal) || !form_ok(packet) ||
        !access_ok(own, packet)) {
        psc_responder_refused(responder, refusal.fault);
        own->head.error = SIM_ENDPOINT_VIOLATED;
    } else if ((packet->row->flags & PSC_OPF_LAST) && own->head.receives == 0) {
        own->head.error = SIM_ENDPOINT_NO_RECEIVE;
    } else {
        execute(own, packet);
    }
}

static void receive(struct sim_endpoint *endpoint, const uint8_t *frame, uint32_t bytes, uint64_t now_ns)
{
    struct own *own = (struct own *)endpoint;
    struct psc_packet packet;
    enum psc_drop why;
    uint64_t tag;

    if (psc_parse(frame, bytes, &own->local, &packet, &why) != PSC_FRAME_ROCE ||
        packet.dest_qpn != endpoint->spec.qpn || !psc_packet_is_from(&packet, &own->flow.dst) ||
        !psc_icrc_ok(&packet) || (packet.row->flags & PSC_OPF_CNP))
        return;
    if (packet.row->flags & PSC_OPF_REQUEST) {
        receive_request(own, &packet);
        return;
    }
    if (psc_requester_response(&own->requester, packet.psn, packet.syndrome, now_ns) == PSC_RESPONSE_FATAL)
        endpoint->error = SIM_ENDPOINT_REFUSED;
    while (psc_requester_pop(&own->requester, &tag))
        ;
}

/* Headers, payload, pad and ICRC. */
static uint32_t whole_frame(const struct own *own, const struct psc_header *header, const uint8_t *payload,
                            uint32_t payload_bytes, uint8_t *out)
{
    uint32_t crc, bytes = psc_build(&own->flow, header, payload_bytes, out, &crc);

    if (payload_bytes > 0)
        memcpy(out + bytes, payload, payload_bytes);
    bytes += payload_bytes;
    psc_icrc_finish(psc_crc32(crc, out + bytes - payload_bytes, payload_bytes), out + bytes);
    return bytes + 4;
}

static uint32_t send(struct sim_endpoint *endpoint, uint64_t now_ns, uint8_t *out)
{
    struct own *own = (struct own *)endpoint;
    struct psc_header header;
    struct psc_sending sending;

    if (own->responder.owed != PSC_REPLY_NONE) {
        psc_responder_take_reply(&own->responder, &header);
        return whole_frame(own, &header, NULL, 0, out);
    }
    if (!psc_requester_next(&own->requester, now_ns, &sending))
        return 0;
    const struct sim_write *write = &own->writes[sending.message->tag % endpoint->spec.send_queue];
    uint32_t offset = sending.index * endpoint->spec.mtu_bytes;
    uint32_t rest = write->bytes - offset;
    header = (struct psc_header){.opcode = sending.opcode,
                                 .ack_req = sending.ack_req,
                                 .psn = sending.psn,
                                 .va = write->va,
                                 .rkey = write->rkey,
                                 .dma_len = write->bytes,
                                 .imm = write->imm};
    return whole_frame(own, &header, write->data + offset,
                       rest < endpoint->spec.mtu_bytes ? rest : endpoint->spec.mtu_bytes, out);
}

static void expire(struct sim_endpoint *endpoint, uint64_t now_ns)
{
    struct own *own = (struct own *)endpoint;

    if (psc_requester_expire(&own->requester, now_ns) == PSC_EXPIRY_EXHAUSTED)
        endpoint->error = SIM_ENDPOINT_RETRIES;
}

static bool busy(const struct sim_endpoint *endpoint)
{
    const struct own *own = (const struct own *)endpoint;

    return own->requester.unacked_psn != own->requester.posted_psn;
}

static struct sim_position position(const struct sim_endpoint *endpoint)
{
    const struct own *own = (const struct own *)endpoint;

    return (struct sim_position){own->responder.expected_psn, own->requester.unacked_psn,
                                 own->requester.fresh_psn};
}

const struct sim_endpoint_ops sim_own_ops = {make, release, post, receive, send, expire, busy, position};
