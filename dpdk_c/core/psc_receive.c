/* core/: one received frame, from bytes to the QP that it is for. Steps of the story: "parsed", "QP found".
 * Every drop here is silent and counted: whoever sent it may be anybody. */
#include "psc_lane_state.h"

#define CNP_INTERVAL_NS 50000u
#define P_KEY_MASK      0x7fffu /* the top bit says full or limited member */

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
    if (!psc_ip_equal(&packet->src, &qp->flow.dst))
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

void psc_receive_frame(struct psc_lane *lane, const struct psc_frame *frame, struct psc_outbox *out)
{
    struct psc_packet packet;
    enum psc_drop why = PSC_DROP_NONE;

    switch (psc_parse(frame->data, frame->bytes, &lane->config.local, &packet, &why)) {
    case PSC_FRAME_ROCE:
        why = receive_roce(lane, &packet);
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
