/* Emits into mbufs: a header mbuf, the slot's payload attached where it lies, a trailer with the ICRC,
 * chained; or all of it copied into one mbuf, for a port that may keep it. Runs on the lane's core only. Step
 * of the story: "one header per worker -> burst sent". */
#include "psc_io_internal.h"

#include <stdio.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define HEADER_ROOM   (RTE_PKTMBUF_HEADROOM + PSC_HEADER_MAX)
#define MEMPOOL_CACHE 128
#define LINE_BYTES    64 /* of the caches: what stream() writes begins with one */

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
    payload_room = tx->lends_payload ? 0 : RTE_PKTMBUF_HEADROOM + LINE_BYTES + PSC_IO_RX_ROOM;
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

/* Whoever has sent the frame that lay here before still has its lines. Taking them back one by one costs 1850
 * ns for 4 KiB where another core of an AMD EPYC (Zen 4) has read them; storing past the cache costs 143, and
 * that core then reads them as fast. `out` is aligned to a cache line. */
static void stream(uint8_t *out, const uint8_t *bytes, uint32_t count)
{
    uint32_t done = 0;

#ifdef __SSE2__
    for (; done + 64 <= count; done += 64)
        for (uint32_t i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(void *)(out + done + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(bytes + done + i)));
#endif
    memcpy(out + done, bytes + done, count - done);
}

/* For a port that may keep what it is given: a frame of its own, and the slot is free at once. A payload is
 * one path MTU or the answer to a frame that we have received: with its headers, and moved to the beginning
 * of a line, it fits. In one piece, for net_memif's zero-copy client (22.11) spoils a chain that its ring has
 * no room for: it counts nb_segs down before it looks, and the chain that is offered again ends in a NULL. */
static struct rte_mbuf *copy_frame(struct psc_io_tx *tx, const struct psc_emit *emit)
{
    struct rte_mbuf *m = tx->payloads[--tx->payload_count];
    uint8_t *payload = RTE_PTR_ALIGN_CEIL(rte_pktmbuf_mtod(m, uint8_t *) + emit->header_bytes, LINE_BYTES);

    m->data_off = (uint16_t)(payload - emit->header_bytes - (uint8_t *)m->buf_addr);
    m->pkt_len = emit->header_bytes + emit->payload_bytes + emit->trailer_bytes;
    m->data_len = (uint16_t)m->pkt_len;
    memcpy(payload - emit->header_bytes, emit->header, emit->header_bytes);
    if (emit->payload_bytes > 0)
        stream(payload, emit->payload, emit->payload_bytes);
    memcpy(payload + emit->payload_bytes, emit->trailer, emit->trailer_bytes);
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

/* Headers and trailer around the payload where it lies. */
static struct rte_mbuf *chain_frame(struct psc_io_tx *tx, const struct psc_emit *emit)
{
    struct rte_mbuf *first = NULL, *last = NULL;

    if (emit->header_bytes > 0)
        chain(&first, &last, fill_header(tx->headers[--tx->header_count], emit));
    if (emit->payload_bytes > 0)
        chain(&first, &last, attach_payload(tx, emit));
    if (emit->trailer_bytes > 0)
        chain(&first, &last, fill_trailer(tx->headers[--tx->header_count], emit));
    return first;
}

void psc_io_tx_add(struct psc_io_tx *tx, const struct psc_emit *emit)
{
    if (emit->header_bytes + emit->payload_bytes + emit->trailer_bytes == 0)
        return;
    if (tx->pending_begin == tx->pending_end)
        tx->pending_begin = tx->pending_end = 0;
    tx->pending[tx->pending_end++] = tx->lends_payload ? chain_frame(tx, emit) : copy_frame(tx, emit);
}

uint32_t psc_io_tx_flush(struct psc_io_tx *tx, struct psc_lane_stats *stats)
{
    uint32_t offered = tx->pending_end - tx->pending_begin;
    uint32_t taken;

    if (offered == 0)
        return 0;
#ifdef __SSE2__
    if (!tx->lends_payload)
        _mm_sfence(); /* stores past the cache are not ordered by a ring's release */
#endif
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
