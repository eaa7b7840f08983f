/* core/: received frames, from bytes to the QP that each is for. Steps of the story: "parsed", "QP found";
 * between them the ICRCs, several at a time. Every drop here is silent and counted: whoever sent it may be
 * anybody. */
#include "psc_lane_state.h"

#define CNP_INTERVAL_NS 50000u
#define P_KEY_MASK      0x7fffu /* the top bit says full or limited member */

/* Frames that are parsed ahead of the one that is executed: enough to find four that are added together
 * behind a few that are not, few enough for L1 to keep their headers. A power of two. */
#define LOOKED_AHEAD 8
#define POOLS_AHEAD  8

struct received {
    enum psc_frame_kind kind;
    enum psc_drop why;
    bool unchecked;    /* its ICRC may still be checked with others' */
    bool foreseen;     /* of an unchecked one: `at` is known */
    struct psc_qp *qp; /* that a RoCE packet is for; NULL: none */
    bool from_peer;    /* of that QP */
    struct psc_foresight at;
    struct psc_packet packet;
};

struct burst {
    uint32_t parsed;                        /* frames */
    struct received received[LOOKED_AHEAD]; /* frame i at i mod LOOKED_AHEAD */
    struct psc_pool *ahead[POOLS_AHEAD];    /* these have made sums ahead */
    uint32_t ahead_count;
};

static struct received *received_of(struct burst *burst, uint32_t frame)
{
    return &burst->received[frame % LOOKED_AHEAD];
}

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
static enum psc_drop receive_roce(struct psc_lane *lane, const struct received *received)
{
    const struct psc_packet *packet = &received->packet;
    struct psc_qp *qp = received->qp;
    uint16_t flags = packet->row->flags;

    if (!qp)
        return PSC_DROP_UNKNOWN_QP;
    if (qp->state != PSC_QP_RTS)
        return PSC_DROP_QP_STATE;
    if (!received->from_peer)
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

/* There is always room: asked for before anything is noted. */
static void note_ahead(struct burst *burst, struct psc_pool *pool)
{
    for (uint32_t i = 0; i < burst->ahead_count; i++)
        if (burst->ahead[i] == pool)
            return;
    burst->ahead[burst->ahead_count++] = pool;
}

static bool alike(const struct received *a, const struct received *b)
{
    return b->unchecked && a->packet.payload_bytes == b->packet.payload_bytes;
}

static bool to_one_range(const struct received *a, const struct received *b)
{
    return b->foreseen && a->qp->pool == b->qp->pool && a->at.round == b->at.round &&
           a->at.range == b->at.range;
}

/* From `frame` on, those that may be checked with it, and only those of its range if it is said so. */
static bool find_group(struct burst *burst, uint32_t frame, bool of_range,
                       struct psc_packet *group[static PSC_CRC_TOGETHER])
{
    const struct received *first = received_of(burst, frame);
    struct received *members[PSC_CRC_TOGETHER];
    uint32_t count = 0;

    for (; frame < burst->parsed && count < PSC_CRC_TOGETHER; frame++) {
        struct received *other = received_of(burst, frame);
        if (alike(first, other) && (!of_range || to_one_range(first, other)))
            members[count++] = other;
    }
    if (count < PSC_CRC_TOGETHER)
        return false;
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++) {
        members[i]->unchecked = false;
        group[i] = &members[i]->packet;
    }
    return true;
}

/* Packets that are the first of one range are added while they are checked. Whether they may be is decided
 * when each is executed; until then their sum is of no account. */
static bool add_ahead(struct burst *burst, const struct received *first,
                      struct psc_packet *const group[static PSC_CRC_TOGETHER])
{
    struct psc_crc_message messages[PSC_CRC_TOGETHER];
    struct psc_pool *pool = &first->qp->pool->pool;
    uint32_t left;

    if (burst->ahead_count == POOLS_AHEAD || first->packet.payload_bytes != pool->shape.packet_bytes)
        return false;
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        messages[i] = psc_icrc_message(group[i]);
    if (!psc_pool_add_ahead(pool, first->at.round, first->at.range, messages, &left))
        return false;
    note_ahead(burst, pool);
    psc_icrc_checked(group, left);
    return true;
}

/* The ICRCs of this packet and of others that come soon: just before they are added, so that a group that is
 * added together is read from L2 once. Nothing has been decided about any of them, and receive_roce asks
 * again for those that are not found sound here. */
static void check_icrcs(struct burst *burst, uint32_t frame)
{
    const struct received *first = received_of(burst, frame);
    struct psc_packet *group[PSC_CRC_TOGETHER];

    if (first->foreseen && find_group(burst, frame, true, group)) {
        if (!add_ahead(burst, first, group))
            psc_icrc_check(group);
    } else if (find_group(burst, frame, false, group)) {
        psc_icrc_check(group);
    }
}

static void receive(struct psc_lane *lane, const struct psc_frame *frame, const struct received *received,
                    struct psc_outbox *out)
{
    enum psc_drop why = received->why;

    switch (received->kind) {
    case PSC_FRAME_ROCE:
        why = receive_roce(lane, received);
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
    struct psc_qp *qp = received->kind == PSC_FRAME_ROCE ? find_qp(lane, packet->dest_qpn) : NULL;
    received->qp = qp;
    received->from_peer = qp && psc_packet_is_from(packet, &qp->flow.dst);
    received->unchecked = received->from_peer && psc_icrc_together(packet);
    received->foreseen = received->unchecked && psc_foresee(qp, packet, &received->at);
}

void psc_receive_frames(struct psc_lane *lane, const struct psc_frame *frames, uint32_t n,
                        struct psc_outbox *out)
{
    struct burst burst;

    burst.parsed = 0;
    burst.ahead_count = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (; burst.parsed < n && burst.parsed < i + LOOKED_AHEAD; burst.parsed++) {
            if (burst.parsed + LOOKED_AHEAD < n)
                __builtin_prefetch(frames[burst.parsed + LOOKED_AHEAD].data);
            parse(lane, &frames[burst.parsed], received_of(&burst, burst.parsed));
        }
        if (received_of(&burst, i)->unchecked)
            check_icrcs(&burst, i);
        receive(lane, &frames[i], received_of(&burst, i), out);
    }
    while (burst.ahead_count > 0)
        psc_pool_forget_ahead(burst.ahead[--burst.ahead_count]);
}
