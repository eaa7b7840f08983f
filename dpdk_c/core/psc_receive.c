/* core/: received frames, from bytes to the QP that each is for. Steps of the story: "parsed", "QP found".
 * Every drop here is silent and counted: whoever sent it may be anybody. */
#include "psc_lane_state.h"

#define CNP_INTERVAL_NS 50000u
#define P_KEY_MASK      0x7fffu /* the top bit says full or limited member */

/* Frames that are parsed before the first of them is executed. */
#define RECEIVE_BATCH 8

struct received {
    enum psc_frame_kind kind;
    enum psc_drop why;
    bool unchecked; /* its ICRC may still be checked with others' */
    struct psc_packet packet;
};

static struct psc_qp *find_qp(const struct psc_lane *lane, uint32_t qpn)
{
    struct psc_qp *qp = lane->qps[(qpn >> PSC_LANE_BITS) & (PSC_LANE_QPS - 1)];

    return qp && qp->spec.qpn == qpn ? qp : NULL;
}

/* The peer's packets meet congestion on their way to us: tell it, but not with every packet. */
static void notice_congestion(struct psc_lane *lane, struct psc_qp *qp)
{
    if (qp->cnp_ns != 0 && lane->now_ns - qp->cnp_ns < CNP_INTERVAL_NS)
        return;
    qp->cnp_owed = true;
    psc_want_to_reply(lane, qp);
}

/* Receive order from the QP on. A foreign source is dropped, never NAKed: a blind sender must not kill a QP.
 */
static enum psc_drop receive_roce(struct psc_lane *lane, const struct psc_packet *packet)
{
    struct psc_qp *qp = find_qp(lane, packet->dest_qpn);
    uint16_t flags = packet->row->flags;

    if (!qp)
        return PSC_DROP_UNKNOWN_QP;
    if (qp->state != PSC_QP_RTS)
        return PSC_DROP_QP_STATE;
    if (!psc_packet_is_from(packet, &qp->flow.dst))
        return PSC_DROP_FOREIGN_PEER;
    if ((packet->p_key & P_KEY_MASK) != P_KEY_MASK)
        return PSC_DROP_P_KEY;
    if (!psc_icrc_ok(packet))
        return PSC_DROP_ICRC;
    if (flags & PSC_OPF_CNP) {
        PSC_COUNT(lane->stats->cnps_received, 1);
        return PSC_DROP_NONE;
    }
    if (flags & PSC_OPF_RESPONSE)
        return psc_receive_response(lane, qp, packet);
    if (packet->congestion_experienced)
        notice_congestion(lane, qp);
    return psc_receive_request(lane, qp, packet);
}

/* The ICRCs of this packet and of the next ones of the batch that can be checked with it: just before they
 * are added, so that a group that is added together is read from L2 once. Nothing has been decided about any
 * of them, and receive_roce asks again for those that are not found sound here. */
static void check_icrcs(struct received *received, const struct received *end)
{
    struct psc_packet *group[PSC_ICRC_TOGETHER];
    struct received *members[PSC_ICRC_TOGETHER];
    uint32_t count = 0;

    for (struct received *other = received; other < end && count < PSC_ICRC_TOGETHER; other++)
        if (other->unchecked && psc_icrc_together(&received->packet, &other->packet)) {
            group[count] = &other->packet;
            members[count++] = other;
        }
    if (count == PSC_ICRC_TOGETHER)
        psc_icrc_check(group);
    else
        count = count > 0; /* nor do those that come later find enough */
    while (count > 0)
        members[--count]->unchecked = false;
}

static void receive(struct psc_lane *lane, const struct psc_frame *frame, const struct received *received,
                    struct psc_outbox *out)
{
    enum psc_drop why = received->why;

    switch (received->kind) {
    case PSC_FRAME_ROCE:
        why = receive_roce(lane, &received->packet);
        break;
    case PSC_FRAME_NEIGHBOUR:
        psc_neighbour_learn(lane, frame);
        why = lane->config.silent_host ? PSC_DROP_NONE : psc_answer_host(lane, frame, out);
        break;
    case PSC_FRAME_PING:
        why = lane->config.silent_host ? PSC_DROP_NONE : psc_answer_host(lane, frame, out);
        break;
    case PSC_FRAME_DROP:
        break;
    }
    if (why != PSC_DROP_NONE)
        PSC_COUNT(lane->stats->drops[why], 1);
}

/* Whoever is foreign is dropped before its ICRC matters. */
static void parse(const struct psc_lane *lane, const struct psc_frame *frame, struct received *received)
{
    const struct psc_packet *packet = &received->packet;

    received->kind =
        psc_parse(frame->data, frame->bytes, &lane->config.local, &received->packet, &received->why);
    const struct psc_qp *qp = received->kind == PSC_FRAME_ROCE ? find_qp(lane, packet->dest_qpn) : NULL;
    received->unchecked = qp && psc_packet_is_from(packet, &qp->flow.dst);
}

static void receive_batch(struct psc_lane *lane, const struct psc_frame *frames, uint32_t n,
                          struct psc_outbox *out)
{
    struct received received[RECEIVE_BATCH];

    for (uint32_t i = 0; i < n; i++)
        parse(lane, &frames[i], &received[i]);
    for (uint32_t i = 0; i < n; i++) {
        if (received[i].unchecked)
            check_icrcs(&received[i], received + n);
        receive(lane, &frames[i], &received[i], out);
    }
}

void psc_receive_frames(struct psc_lane *lane, const struct psc_frame *frames, uint32_t n,
                        struct psc_outbox *out)
{
    for (; n > RECEIVE_BATCH; frames += RECEIVE_BATCH, n -= RECEIVE_BATCH)
        receive_batch(lane, frames, RECEIVE_BATCH, out);
    receive_batch(lane, frames, n, out);
}
