/* sim/: a worker's queue pair as real peers behave, written from the protocol and from what was measured at
 * rxe and NICs. Independent on purpose: it is compiled where no header of the data plane can be found. */
#include <stdlib.h>
#include <string.h>

#include "sim_endpoint.h"
#include "sim_model_frame.h"

#define PSN_MASK 0xffffffu
#define NAK_60   0x60
#define NAK_61   0x61
#define NAK_62   0x62

struct message {
    struct sim_write write;
    uint32_t first; /* packet number, counted from 0 and never wrapping: PSN = start + number */
    uint32_t packets;
};

/* Packets are counted from 0 here; only the wire sees 24 bits. */
struct model {
    struct sim_endpoint head;
    struct model_path path;
    /* requester */
    struct message *messages;     /* ring of spec.send_queue */
    uint64_t posted, done;        /* messages */
    uint32_t total;               /* packets posted */
    uint32_t unacked, next, sent; /* oldest not acknowledged; next to send; first never sent */
    uint32_t since_request;
    bool request_outstanding, nak_obeyed;
    uint32_t nak_number, requested; /* the NAK that was obeyed; newest packet with AckReq */
    uint64_t timer_ns;
    uint32_t tries;
    /* responder */
    uint32_t expected_psn, msn;
    bool in_message, gap_told, owes_ack, owes_nak;
    uint8_t fatal; /* syndrome to send, once */
    uint64_t place;
    uint32_t residual, unasked;
};

static int32_t psn_minus(uint32_t a, uint32_t b)
{
    uint32_t d = (a - b) & PSN_MASK;

    return d < 0x800000 ? (int32_t)d : (int32_t)d - 0x1000000;
}

static struct sim_endpoint *make(const struct sim_endpoint_spec *spec)
{
    struct model *model = calloc(1, sizeof *model);

    model->head = (struct sim_endpoint){.ops = &sim_model_ops, .spec = *spec};
    model->messages = calloc(spec->send_queue, sizeof *model->messages);
    model->expected_psn = spec->expected_psn;
    model->path = (struct model_path){.udp_port = spec->udp_port,
                                      .p_key = spec->habits.limited_p_key ? 0x7fff : 0xffff,
                                      .peer_qpn = spec->peer_qpn,
                                      .mig_req = spec->habits.mig_req};
    memcpy(model->path.mac, spec->mac, 6);
    memcpy(model->path.peer_mac, spec->peer_mac, 6);
    memcpy(model->path.ip, spec->ip, 4);
    memcpy(model->path.peer_ip, spec->peer_ip, 4);
    return &model->head;
}

static void release(struct sim_endpoint *endpoint)
{
    struct model *model = (struct model *)endpoint;

    free(model->messages);
    free(model);
}

/* ---- Requester ---- */

static bool post(struct sim_endpoint *endpoint, const struct sim_write *write, uint64_t now_ns)
{
    struct model *model = (struct model *)endpoint;
    uint32_t mtu = endpoint->spec.mtu_bytes;

    (void)now_ns;
    if (model->posted - model->done == endpoint->spec.send_queue)
        return false;
    struct message *message = &model->messages[model->posted++ % endpoint->spec.send_queue];
    *message =
        (struct message){.write = *write, .first = model->total, .packets = (write->bytes + mtu - 1) / mtu};
    model->total += message->packets;
    return true;
}

static const struct message *message_of(const struct model *model, uint32_t number)
{
    for (uint64_t i = model->done; i < model->posted; i++) {
        const struct message *message = &model->messages[i % model->head.spec.send_queue];
        if (number - message->first < message->packets)
            return message;
    }
    return NULL;
}

static void describe(const struct model *model, uint32_t number, struct model_packet *packet)
{
    const struct message *message = message_of(model, number);
    uint32_t mtu = model->head.spec.mtu_bytes, index = number - message->first;
    bool last = index == message->packets - 1;
    uint32_t rest = message->write.bytes - index * mtu;

    *packet = (struct model_packet){.opcode = index == 0 ? (last ? MODEL_ONLY_IMM : MODEL_FIRST)
                                              : last     ? MODEL_LAST_IMM
                                                         : MODEL_MIDDLE,
                                    .psn = (model->head.spec.start_psn + number) & PSN_MASK,
                                    .ack_req = last,
                                    .va = message->write.va,
                                    .rkey = message->write.rkey,
                                    .dma_len = message->write.bytes,
                                    .imm = message->write.imm,
                                    .payload = message->write.data + index * mtu,
                                    .payload_bytes = rest < mtu ? rest : mtu};
}

static uint32_t send_request(struct model *model, uint64_t now_ns, uint8_t *out)
{
    const struct sim_habits *habits = &model->head.spec.habits;
    struct model_packet packet;

    if (model->next == model->total || model->next - model->unacked >= habits->max_unacked)
        return 0;
    describe(model, model->next, &packet);
    if (++model->since_request >= habits->request_every ||
        model->next + 1 - model->unacked == habits->max_unacked)
        packet.ack_req = true;
    if (model->unacked == model->sent || (packet.ack_req && !model->request_outstanding))
        model->timer_ns = now_ns;
    if (packet.ack_req) {
        model->since_request = 0;
        model->request_outstanding = true;
        model->requested = model->next;
    }
    model->next++;
    if (model->next > model->sent)
        model->sent = model->next;
    return model_write_frame(&model->path, &packet, out);
}

static void acknowledged(struct model *model, uint32_t number, uint64_t now_ns)
{
    if (number <= model->unacked)
        return;
    model->unacked = number;
    if (model->next < number)
        model->next = number;
    if (model->requested < number)
        model->request_outstanding = false;
    model->tries = 0;
    model->nak_obeyed = false;
    model->timer_ns = now_ns;
    while (model->done < model->posted) {
        const struct message *oldest = &model->messages[model->done % model->head.spec.send_queue];
        if (oldest->first + oldest->packets > number)
            return;
        model->done++;
    }
}

static void receive_response(struct model *model, const struct model_packet *packet, uint64_t now_ns)
{
    uint32_t unacked_psn = (model->head.spec.start_psn + model->unacked) & PSN_MASK;
    int32_t ahead = psn_minus(packet->psn, unacked_psn);

    if (ahead < 0 || (uint32_t)ahead >= model->sent - model->unacked)
        return; /* a ghost */
    uint32_t number = model->unacked + (uint32_t)ahead;
    if (packet->syndrome < 0x20) {
        acknowledged(model, number + 1, now_ns);
    } else if (packet->syndrome == NAK_60) {
        acknowledged(model, number, now_ns);
        if (model->nak_obeyed && model->nak_number == number && model->head.spec.habits.ignores_repeated_nak)
            return;
        model->nak_obeyed = true;
        model->nak_number = model->next = number;
        model->since_request = 0;
    } else if (packet->syndrome > NAK_60 && packet->syndrome < 0x64) {
        model->head.error = SIM_ENDPOINT_REFUSED;
    }
}

static void expire(struct sim_endpoint *endpoint, uint64_t now_ns)
{
    struct model *model = (struct model *)endpoint;
    const struct sim_habits *habits = &endpoint->spec.habits;
    bool running = model->unacked < model->sent && (habits->timer_always || model->request_outstanding);

    if (!running || now_ns - model->timer_ns < habits->retransmit_ns)
        return;
    if (model->tries++ == habits->retries) {
        endpoint->error = SIM_ENDPOINT_RETRIES;
        return;
    }
    model->timer_ns = now_ns;
    model->next = model->unacked;
    model->nak_obeyed = false;
    model->since_request = 0;
}

/* ---- Responder ---- */

/* 0, or the syndrome that refuses it. */
static uint8_t judge(const struct model *model, const struct model_packet *packet)
{
    const struct sim_endpoint_spec *spec = &model->head.spec;
    bool begins = packet->opcode == MODEL_FIRST || packet->opcode == MODEL_ONLY_IMM;
    bool ends = packet->opcode == MODEL_LAST_IMM || packet->opcode == MODEL_ONLY_IMM;
    uint32_t residual = begins ? packet->dma_len : model->residual;

    if (begins == model->in_message)
        return NAK_61;
    if (ends ? packet->payload_bytes != residual || residual > spec->mtu_bytes || residual == 0
             : packet->payload_bytes != spec->mtu_bytes || residual <= spec->mtu_bytes)
        return NAK_61;
    if (!begins)
        return 0;
    uint64_t offset = packet->va - spec->region.va;
    if (packet->rkey != spec->region.rkey || offset > spec->region.bytes ||
        packet->dma_len > spec->region.bytes - offset)
        return NAK_62;
    return 0;
}

static void execute(struct model *model, const struct model_packet *packet)
{
    bool ends = packet->opcode == MODEL_LAST_IMM || packet->opcode == MODEL_ONLY_IMM;

    if (!model->in_message) {
        model->place = packet->va - model->head.spec.region.va;
        model->residual = packet->dma_len;
    }
    memcpy(model->head.spec.region.data + model->place, packet->payload, packet->payload_bytes);
    model->place += packet->payload_bytes;
    model->residual -= packet->payload_bytes;
    model->in_message = !ends;
    model->expected_psn = (model->expected_psn + 1) & PSN_MASK;
    model->gap_told = model->owes_nak = false;
    uint32_t ack_every = model->head.spec.habits.ack_every;
    if (packet->ack_req || (ack_every > 0 && ++model->unasked >= ack_every)) {
        model->owes_ack = true;
        model->unasked = 0;
    }
    if (!ends)
        return;
    model->msn = (model->msn + 1) & PSN_MASK;
    model->head.receives--;
    model->head.spec.completed(model->head.spec.context, packet->imm);
}

static void receive_request(struct model *model, const struct model_packet *packet)
{
    int32_t distance = psn_minus(packet->psn, model->expected_psn);
    bool ends = packet->opcode == MODEL_LAST_IMM || packet->opcode == MODEL_ONLY_IMM;

    if (distance < 0) {
        model->owes_ack = true;
        return;
    }
    if (distance > 0) {
        model->owes_nak |= !model->gap_told || model->head.spec.habits.repeats_nak;
        model->gap_told = true;
        return;
    }
    model->fatal = judge(model, packet);
    if (model->fatal)
        model->head.error = SIM_ENDPOINT_VIOLATED;
    else if (ends && model->head.receives == 0)
        model->head.error = SIM_ENDPOINT_NO_RECEIVE;
    else
        execute(model, packet);
}

static void receive(struct sim_endpoint *endpoint, const uint8_t *frame, uint32_t bytes, uint64_t now_ns)
{
    struct model *model = (struct model *)endpoint;
    struct model_packet packet;

    if (!model_read_frame(&model->path, frame, bytes, &packet) || packet.qpn != endpoint->spec.qpn)
        return;
    if (packet.opcode == MODEL_ACK)
        receive_response(model, &packet, now_ns);
    else
        receive_request(model, &packet);
}

static uint32_t send_reply(struct model *model, uint8_t *out)
{
    struct model_packet packet = {.opcode = MODEL_ACK, .psn = model->expected_psn, .msn = model->msn};

    if (model->fatal) {
        packet.syndrome = model->fatal;
        model->fatal = 0;
    } else if (model->owes_nak) {
        packet.syndrome = NAK_60;
        model->owes_nak = false;
    } else {
        packet.psn = (model->expected_psn - 1) & PSN_MASK;
        packet.syndrome = 0x1f;
        model->owes_ack = false;
    }
    return model_write_frame(&model->path, &packet, out);
}

static uint32_t send(struct sim_endpoint *endpoint, uint64_t now_ns, uint8_t *out)
{
    struct model *model = (struct model *)endpoint;

    if (model->fatal || model->owes_ack || model->owes_nak)
        return send_reply(model, out);
    return send_request(model, now_ns, out);
}

static bool busy(const struct sim_endpoint *endpoint)
{
    const struct model *model = (const struct model *)endpoint;

    return model->unacked != model->total;
}

static struct sim_position position(const struct sim_endpoint *endpoint)
{
    const struct model *model = (const struct model *)endpoint;
    uint32_t start = endpoint->spec.start_psn;

    return (struct sim_position){model->expected_psn, (start + model->unacked) & PSN_MASK,
                                 (start + model->sent) & PSN_MASK};
}

const struct sim_endpoint_ops sim_model_ops = {make, release, post, receive, send, expire, busy, position};
