/* Frames to the lane that they are for, where a port has several and does not sort them itself: a dispatcher
 * reads the port and hands bursts over by rings; where flow rules sort, a lane hands over what they got
 * wrong. Only mbuf pointers move; no state of a lane is touched. Step of the story: "burst received", before
 * the lane's own turn. */
#include "psc_io_internal.h"

#include <rte_launch.h>
#include <sys/prctl.h>
#include <time.h>

#define LANE_MASK (PSC_IO_MAX_LANES - 1u)

/* A burst by lanes; a frame that all lanes learn from may stand in several. */
struct sorted {
    struct rte_mbuf *mbufs[PSC_IO_MAX_LANES][PSC_IO_BURST];
    uint32_t count[PSC_IO_MAX_LANES];
};

static void put(struct sorted *sorted, const struct psc_io_lane *lane, struct rte_mbuf *m)
{
    sorted->mbufs[lane->number][sorted->count[lane->number]++] = m;
}

/* A copy for each lane but `keeper`, which gets the frame itself. A lane that gets none asks again. */
static void copy_to_others(const struct psc_io_port *port, const struct psc_io_lane *keeper,
                           struct rte_mbuf *m, struct sorted *sorted)
{
    for (uint32_t i = 0; i < PSC_IO_MAX_LANES; i++) {
        struct rte_mbuf *copy;

        if (port->lanes[i] == NULL || port->lanes[i] == keeper)
            continue;
        copy = rte_pktmbuf_copy(m, m->pool, 0, UINT32_MAX);
        if (copy != NULL)
            put(sorted, port->lanes[i], copy);
    }
}

/* A frame that names no lane of this port goes to `keeper`, whose parser drops and counts it, if it is not a
 * ping. */
static void sort(const struct psc_io_port *port, struct psc_io_lane *keeper, struct rte_mbuf *m,
                 struct sorted *sorted)
{
    uint8_t room[PSC_PEEK_BYTES];
    uint32_t bytes = RTE_MIN(m->pkt_len, (uint32_t)PSC_PEEK_BYTES), qpn = 0;
    const uint8_t *frame = rte_pktmbuf_read(m, 0, bytes, room);
    enum psc_peek_kind kind = psc_peek(frame, bytes, &qpn);
    struct psc_io_lane *lane = kind == PSC_PEEK_ROCE ? port->lanes[qpn & LANE_MASK] : NULL;

    if (kind == PSC_PEEK_NEIGHBOUR || (kind == PSC_PEEK_OTHER && port->own_addresses))
        copy_to_others(port, keeper, m, sorted);
    put(sorted, lane != NULL ? lane : keeper, m);
}

/* Returns how many the lane's ring had no room for. */
static uint32_t hand_over(const struct psc_io_lane *lane, struct rte_mbuf **mbufs, uint32_t count)
{
    uint32_t taken = rte_ring_enqueue_burst(lane->inbox, (void **)mbufs, count, NULL);

    if (taken < count)
        rte_pktmbuf_free_bulk(mbufs + taken, count - taken);
    return count - taken;
}

/* ---- A lane that shares its port by flow rules. ---- */

/* In order: frames of one QP come by one queue, so by one way. */
uint32_t psc_io_receive_steered(struct psc_io_lane *lane, struct rte_mbuf **mbufs)
{
    const struct psc_io_port *port = lane->port;
    uint32_t given = rte_ring_sc_dequeue_burst(lane->inbox, (void **)mbufs, PSC_IO_BURST / 2, NULL);
    struct rte_mbuf *burst[PSC_IO_BURST / 2];
    struct sorted sorted;
    uint32_t received = rte_eth_rx_burst(port->port_id, lane->rx_queue, burst, PSC_IO_BURST / 2);

    if (received == 0)
        return given;
    for (uint32_t i = 0; i < PSC_IO_MAX_LANES; i++)
        sorted.count[i] = 0;
    for (uint32_t i = 0; i < received; i++)
        sort(port, lane, burst[i], &sorted);
    for (uint32_t i = 0; i < PSC_IO_MAX_LANES; i++)
        if (i != lane->number && sorted.count[i] > 0)
            lane->stats->drops[PSC_DROP_NO_BUFFER] +=
                hand_over(port->lanes[i], sorted.mbufs[i], sorted.count[i]);
    for (uint32_t i = 0; i < sorted.count[lane->number]; i++)
        mbufs[given + i] = sorted.mbufs[lane->number][i];
    return given + sorted.count[lane->number];
}

/* ---- The dispatcher. ---- */

/* It alone writes them, and the EAL thread reads them meanwhile. */
static void count(uint64_t *counter, uint64_t more)
{
    __atomic_store_n(counter, *counter + more, __ATOMIC_RELAXED);
}

static uint32_t dispatch(struct psc_io_dispatcher *dispatcher, uint16_t queue)
{
    const struct psc_io_port *port = dispatcher->port;
    struct rte_mbuf *mbufs[PSC_IO_BURST];
    struct sorted sorted;
    uint32_t received = rte_eth_rx_burst(port->port_id, queue, mbufs, PSC_IO_BURST);

    if (received == 0)
        return 0;
    for (uint32_t i = 0; i < PSC_IO_MAX_LANES; i++)
        sorted.count[i] = 0;
    for (uint32_t i = 0; i < received; i++)
        sort(port, port->host, mbufs[i], &sorted);
    for (uint32_t i = 0; i < PSC_IO_MAX_LANES; i++)
        if (sorted.count[i] > 0) {
            uint32_t refused = hand_over(port->lanes[i], sorted.mbufs[i], sorted.count[i]);

            count(&dispatcher->refused[i], refused);
            count(&dispatcher->frames, sorted.count[i] - refused);
        }
    return received;
}

/* Frames of a lane that has no transmit queue, lane by lane, a burst each. */
static uint32_t send_for_lanes(struct psc_io_dispatcher *dispatcher)
{
    const struct psc_io_port *port = dispatcher->port;
    uint32_t sent;

    for (uint32_t i = 0; i < PSC_IO_MAX_LANES && dispatcher->pending_begin == dispatcher->pending_end; i++) {
        const struct psc_io_lane *lane = port->lanes[dispatcher->turn++ & LANE_MASK];

        dispatcher->pending_begin = dispatcher->pending_end = 0;
        if (lane != NULL)
            dispatcher->pending_end =
                rte_ring_sc_dequeue_burst(lane->outbox, (void **)dispatcher->pending, PSC_IO_BURST, NULL);
    }
    if (dispatcher->pending_begin == dispatcher->pending_end)
        return 0;
    sent = rte_eth_tx_burst(port->port_id, 0, dispatcher->pending + dispatcher->pending_begin,
                            (uint16_t)(dispatcher->pending_end - dispatcher->pending_begin));
    dispatcher->pending_begin += sent;
    return sent;
}

static void sleep_idle(const struct psc_io_dispatcher *dispatcher)
{
    struct timespec pause = {.tv_nsec = (long)dispatcher->idle_sleep_us * 1000};

    nanosleep(&pause, NULL);
}

uint32_t psc_io_dispatcher_turn(struct psc_io_dispatcher *dispatcher)
{
    const struct psc_io_port *port = dispatcher->port;
    uint32_t moved = port->tx_queues < port->lane_count ? send_for_lanes(dispatcher) : 0;

    for (uint16_t queue = 0; queue < port->rx_queues; queue++)
        moved += dispatch(dispatcher, queue);
    return moved;
}

int psc_io_dispatcher_main(void *argument)
{
    struct psc_io_dispatcher *dispatcher = argument;

    prctl(PR_SET_TIMERSLACK, 1000ul); /* else the kernel may add 50 us to every sleep */
    while (!__atomic_load_n(&dispatcher->stop, __ATOMIC_ACQUIRE))
        if (psc_io_dispatcher_turn(dispatcher) == 0 && dispatcher->idle_sleep_us > 0)
            sleep_idle(dispatcher);
    __atomic_store_n(&dispatcher->ended, 1, __ATOMIC_RELEASE);
    return 0;
}
