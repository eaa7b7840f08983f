/* Emits into mbufs: a header mbuf, the slot's payload attached where it lies (or copied, for a port that may
 * keep it), a trailer with the ICRC, chained. Runs on the lane's core only. Step of the story: "one header
 * per worker -> burst sent". */
#include "psc_io_internal.h"

#include <stdio.h>
#include <string.h>

#define HEADER_ROOM   (RTE_PKTMBUF_HEADROOM + PSC_HEADER_MAX)
#define MEMPOOL_CACHE 128

bool psc_io_tx_init(struct psc_io_tx *tx, const struct psc_io_lane *lane, uint32_t number)
{
    const struct psc_io_port *port = lane->port;
    uint32_t waiting = lane->outbox != NULL ? rte_ring_get_size(lane->outbox) + PSC_IO_BURST : 0;
    /* Every descriptor of the port may hold one, and a stock, a burst and the caches must still be full. */
    uint32_t count = port->tx_ring_packets + waiting + 4u * PSC_IO_BURST + 4u * MEMPOOL_CACHE;
    int socket = lane->socket;
    uint16_t payload_room;
    char name[RTE_MEMPOOL_NAMESIZE];

    /* What the dispatcher sends is freed on its core, where nobody may touch a slot's hold. */
    tx->lends_payload = port->lends_payload && lane->outbox == NULL;
    payload_room = tx->lends_payload ? 0 : RTE_PKTMBUF_HEADROOM + PSC_IO_RX_ROOM;
    tx->port_id = port->port_id;
    tx->queue = lane->tx_queue;
    tx->outbox = lane->outbox;
    snprintf(name, sizeof name, "psc_header_%u", number);
    tx->header_mempool = rte_pktmbuf_pool_create(name, count, MEMPOOL_CACHE, 0, HEADER_ROOM, socket);
    snprintf(name, sizeof name, "psc_payload_%u", number);
    tx->payload_mempool = rte_pktmbuf_pool_create(
        name, count, MEMPOOL_CACHE, RTE_ALIGN(sizeof(struct rte_mbuf_ext_shared_info), RTE_MBUF_PRIV_ALIGN),
        payload_room, socket);
    return tx->header_mempool != NULL && tx->payload_mempool != NULL;
}

void psc_io_tx_drop(struct psc_io_tx *tx)
{
    rte_pktmbuf_free_bulk(tx->pending + tx->pending_begin, tx->pending_end - tx->pending_begin);
    tx->pending_begin = tx->pending_end = 0;
}

void psc_io_tx_free(struct psc_io_tx *tx)
{
    rte_pktmbuf_free_bulk(tx->headers, tx->header_count);
    rte_pktmbuf_free_bulk(tx->payloads, tx->payload_count);
    rte_mempool_free(tx->header_mempool);
    rte_mempool_free(tx->payload_mempool);
}

uint32_t psc_io_tx_room(struct psc_io_tx *tx)
{
    uint32_t headers_missing = 2 * PSC_IO_BURST - tx->header_count;
    uint32_t payloads_missing = PSC_IO_BURST - tx->payload_count;

    if (tx->pending_begin != tx->pending_end)
        return 0;
    if (headers_missing > 0 &&
        rte_pktmbuf_alloc_bulk(tx->header_mempool, tx->headers + tx->header_count, headers_missing) == 0)
        tx->header_count += headers_missing;
    if (payloads_missing > 0 &&
        rte_pktmbuf_alloc_bulk(tx->payload_mempool, tx->payloads + tx->payload_count, payloads_missing) == 0)
        tx->payload_count += payloads_missing;
    return RTE_MIN(tx->header_count / 2, tx->payload_count);
}

/* The port has let go of a slot's payload. Runs inside tx_burst or a housekeeping turn: on the lane's own
 * core. */
static void release_hold(void *address, void *opaque)
{
    struct psc_hold *hold = opaque;

    (void)address;
    if (hold != NULL)
        hold->count--;
}

/* A payload mbuf that points to the emit's payload and holds its slot until the port is done with it. */
static struct rte_mbuf *attach_payload(struct psc_io_tx *tx, const struct psc_emit *emit)
{
    struct rte_mbuf *m = tx->payloads[--tx->payload_count];
    struct rte_mbuf_ext_shared_info *info = rte_mbuf_to_priv(m);

    info->free_cb = release_hold;
    info->fcb_opaque = emit->hold;
    rte_mbuf_ext_refcnt_set(info, 1);
    /* EAL runs with IOVA as virtual addresses, so the IO address of a slot is its address. */
    rte_pktmbuf_attach_extbuf(m, (void *)(uintptr_t)emit->payload, (rte_iova_t)(uintptr_t)emit->payload,
                              (uint16_t)emit->payload_bytes, info);
    m->data_off = 0;
    m->data_len = (uint16_t)emit->payload_bytes;
    return m;
}

static struct rte_mbuf *fill(struct rte_mbuf *m, const uint8_t *bytes, uint32_t count)
{
    memcpy(rte_pktmbuf_mtod(m, void *), bytes, count);
    m->data_len = (uint16_t)count;
    return m;
}

/* All of the room: a copy of one length needs no call. */
static struct rte_mbuf *fill_header(struct rte_mbuf *m, const struct psc_emit *emit)
{
    memcpy(rte_pktmbuf_mtod(m, void *), emit->header, sizeof emit->header);
    m->data_len = (uint16_t)emit->header_bytes;
    return m;
}

static struct rte_mbuf *fill_trailer(struct rte_mbuf *m, const struct psc_emit *emit)
{
    memcpy(rte_pktmbuf_mtod(m, void *), emit->trailer, sizeof emit->trailer);
    m->data_len = (uint16_t)emit->trailer_bytes;
    return m;
}

/* A payload is one path MTU or the answer to a frame that we have received: it fits. The slot is free at
 * once. */
static struct rte_mbuf *copy_payload(struct psc_io_tx *tx, const struct psc_emit *emit)
{
    struct rte_mbuf *m = fill(tx->payloads[--tx->payload_count], emit->payload, emit->payload_bytes);

    release_hold(NULL, emit->hold);
    return m;
}

/* `segment` behind `last`; the first segment keeps the whole frame's length and number of segments. */
static void chain(struct rte_mbuf **first, struct rte_mbuf **last, struct rte_mbuf *segment)
{
    if (*first == NULL) {
        *first = segment;
        segment->pkt_len = segment->data_len;
    } else {
        (*last)->next = segment;
        (*first)->nb_segs++;
        (*first)->pkt_len += segment->data_len;
    }
    *last = segment;
}

void psc_io_tx_add(struct psc_io_tx *tx, const struct psc_emit *emit)
{
    struct rte_mbuf *first = NULL, *last = NULL;

    if (emit->header_bytes > 0)
        chain(&first, &last, fill_header(tx->headers[--tx->header_count], emit));
    if (emit->payload_bytes > 0)
        chain(&first, &last, tx->lends_payload ? attach_payload(tx, emit) : copy_payload(tx, emit));
    if (emit->trailer_bytes > 0)
        chain(&first, &last, fill_trailer(tx->headers[--tx->header_count], emit));
    if (first == NULL)
        return;
    if (tx->pending_begin == tx->pending_end)
        tx->pending_begin = tx->pending_end = 0;
    tx->pending[tx->pending_end++] = first;
}

uint32_t psc_io_tx_flush(struct psc_io_tx *tx, struct psc_lane_stats *stats)
{
    uint32_t offered = tx->pending_end - tx->pending_begin;
    uint32_t taken;

    if (offered == 0)
        return 0;
    if (tx->outbox == NULL)
        taken = rte_eth_tx_burst(tx->port_id, tx->queue, tx->pending + tx->pending_begin, (uint16_t)offered);
    else
        taken =
            rte_ring_sp_enqueue_burst(tx->outbox, (void **)(tx->pending + tx->pending_begin), offered, NULL);
    tx->pending_begin += taken;
    if (taken < offered)
        stats->tx_stalls++;
    return taken;
}
