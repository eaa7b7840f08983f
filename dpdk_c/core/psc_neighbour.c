/* core/: the MAC of a QP's next hop: the peer itself on our link, else the gateway. Asked by ARP or neighbour
 * discovery before the QP goes to RTS; learned only about addresses that a QP needs, so that strangers cannot
 * fill the table. */
#include <string.h>

#include "psc_lane_state.h"

#define ASK_INTERVAL_NS UINT64_C(100000000)
#define ASK_TIMES       10 /* a second altogether */
#define FRESH_NS        UINT64_C(60000000000)

static bool same_prefix(const struct psc_ip *a, const struct psc_ip *b, uint32_t bits)
{
    for (uint32_t i = 0; i < bits; i++)
        if ((a->b[i / 8] ^ b->b[i / 8]) >> (7 - i % 8) & 1)
            return false;
    return true;
}

static const struct psc_ip *next_hop_of(const struct psc_lane *lane, const struct psc_ip *peer)
{
    const struct psc_lane_config *config = &lane->config;
    uint32_t mapped_bits = psc_ip_is_v4(peer) ? 96 : 0; /* IPv4 stands behind ::ffff: */

    return same_prefix(peer, &config->local.ip, mapped_bits + config->prefix_bits) ? peer : &config->gateway;
}

static struct psc_neighbour *find(struct psc_lane *lane, const struct psc_ip *ip)
{
    for (uint32_t i = 0; i < lane->neighbour_count; i++)
        if (psc_ip_equal(&lane->neighbours[i].ip, ip))
            return &lane->neighbours[i];
    return NULL;
}

/* There are as many entries as QPs, and a QP uses one: an entry without users always exists. */
static struct psc_neighbour *find_or_add(struct psc_lane *lane, const struct psc_ip *ip)
{
    struct psc_neighbour *neighbour = find(lane, ip);

    if (neighbour)
        return neighbour;
    if (lane->neighbour_count < PSC_LANE_QPS) {
        neighbour = &lane->neighbours[lane->neighbour_count++];
    } else {
        for (neighbour = lane->neighbours; neighbour->users > 0;)
            neighbour++;
    }
    *neighbour = (struct psc_neighbour){.ip = *ip};
    return neighbour;
}

static void ready_to_send(struct psc_lane *lane, struct psc_qp *qp)
{
    struct psc_event event = psc_event_of(PSC_EVENT_CONNECTED, qp->job);

    qp->state = PSC_QP_RTS;
    event.pool = qp->spec.pool;
    event.rank = qp->spec.rank;
    psc_event_push(lane, &event);
}

void psc_neighbour_connect(struct psc_lane *lane, struct psc_qp *qp)
{
    struct psc_neighbour *neighbour = find_or_add(lane, next_hop_of(lane, &qp->spec.peer));

    qp->next_hop = neighbour;
    neighbour->users++;
    if (neighbour->known && lane->now_ns - neighbour->learned_ns < FRESH_NS) {
        qp->flow.dst_mac = neighbour->mac;
        qp->middle.header_bytes = 0; /* made of another MAC, if any */
        ready_to_send(lane, qp);
        return;
    }
    if (neighbour->known || neighbour->asked == ASK_TIMES) { /* too old to trust, or given up: ask again */
        neighbour->known = false;
        neighbour->asked = 0;
    }
    lane->sweep_ns = 0;
}

void psc_neighbour_release(struct psc_qp *qp)
{
    struct psc_neighbour *neighbour = qp->next_hop;

    if (!neighbour)
        return;
    qp->next_hop = NULL;
    if (--neighbour->users == 0)
        neighbour->asked = 0;
}

/* For each QP of the lane that sends to this neighbour. */
static void tell_users(struct psc_lane *lane, const struct psc_neighbour *neighbour)
{
    for (uint32_t i = 0; i < PSC_LANE_QPS; i++) {
        struct psc_qp *qp = lane->qps[i];
        if (!qp || qp->next_hop != neighbour)
            continue;
        qp->flow.dst_mac = neighbour->mac;
        qp->middle.header_bytes = 0; /* made of another MAC, if any */
        if (qp->state == PSC_QP_INIT)
            ready_to_send(lane, qp);
    }
}

void psc_neighbour_learn(struct psc_lane *lane, const struct psc_frame *frame)
{
    struct psc_ip ip;
    struct psc_mac mac;

    if (!psc_neighbour_heard(frame->data, frame->bytes, &lane->config.local, &ip, &mac))
        return;
    struct psc_neighbour *neighbour = find(lane, &ip);
    if (!neighbour)
        return;
    bool news = !neighbour->known || memcmp(&neighbour->mac, &mac, sizeof(mac)) != 0;
    neighbour->mac = mac;
    neighbour->known = true;
    neighbour->asked = 0;
    neighbour->learned_ns = lane->now_ns;
    if (news) /* most ARP packets are not: all QPs are looked through for this */
        tell_users(lane, neighbour);
}

static void give_up(struct psc_lane *lane, const struct psc_neighbour *neighbour)
{
    const struct psc_refusal why = {.fault = PSC_FAULT_UNREACHABLE, .expected = ASK_TIMES, .got = 0};

    for (uint32_t i = 0; i < PSC_LANE_QPS; i++) {
        struct psc_qp *qp = lane->qps[i];
        if (qp && qp->next_hop == neighbour && qp->state == PSC_QP_INIT)
            psc_fault_job(lane, qp, 0, &why);
    }
}

static void ask(struct psc_lane *lane, struct psc_neighbour *neighbour, struct psc_outbox *out)
{
    struct psc_answer *answer = psc_answer_find(lane);

    if (!answer || psc_outbox_full(out))
        return; /* the next sweep */
    uint32_t bytes = psc_neighbour_request(&lane->config.local, &neighbour->ip, answer->data);
    if (bytes > 0) /* 0: of another family than ours; nobody could answer */
        psc_answer_emit(answer, bytes, out);
    neighbour->asked++;
    neighbour->asked_ns = lane->now_ns;
}

void psc_neighbours_ask(struct psc_lane *lane, struct psc_outbox *out)
{
    for (uint32_t i = 0; i < lane->neighbour_count; i++) {
        struct psc_neighbour *neighbour = &lane->neighbours[i];
        if (neighbour->known || neighbour->users == 0)
            continue;
        if (neighbour->asked > 0 && lane->now_ns - neighbour->asked_ns < ASK_INTERVAL_NS)
            continue;
        if (neighbour->asked < ASK_TIMES)
            ask(lane, neighbour, out);
        else
            give_up(lane, neighbour);
    }
}
