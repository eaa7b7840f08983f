/* Emits into mbufs: a header mbuf, the slot's payload attached where it lies, a trailer with the ICRC,
 * chained; or all of it copied into one mbuf, for a port that may keep it. Runs on the lane's core only. Step
 * of the story: "one header per worker -> burst sent". */
#include "psc_io_internal.h"

#include <stdio.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define LINE_BYTES 64 /* of the caches: what stream() writes begins with one */
#define MEMPOOL_CACHE                                                                                        \
    512                  /* more than a turn takes and gives back, so that the same mbufs come round again   \
                          */
#define LENT_SEGMENTS 3u /* of a frame: headers, payload where it lies, ICRC */
#define LENT_ROOM     (RTE_PKTMBUF_HEADROOM + PSC_HEADER_MAX)
#define COPIED_ROOM   (RTE_PKTMBUF_HEADROOM + LINE_BYTES + PSC_IO_RX_ROOM)

_Static_assert(MEMPOOL_CACHE >= 2 * LENT_SEGMENTS * PSC_IO_BURST, "a turn's frames and those before them");

/* One mempool for all segments: whoever frees a chain gives it back in one piece, while segments of two
 * mempools in turn go back one by one. */
bool psc_io_tx_init(struct psc_io_tx *tx, const struct psc_io_lane *lane, uint32_t number)
{
    const struct psc_io_port *port = lane->port;
    uint32_t waiting = lane->outbox != NULL ? rte_ring_get_size(lane->outbox) + PSC_IO_BURST : 0;
    char name[RTE_MEMPOOL_NAMESIZE];

    /* What the dispatcher sends is freed on its core, where nobody may touch a slot's hold. */
    tx->lends_payload = port->lends_payload && lane->outbox == NULL;
    tx->segments = tx->lends_payload ? LENT_SEGMENTS : 1;
    tx->port_id = port->port_id;
    tx->queue = lane->tx_queue;
    tx->outbox = lane->outbox;
    snprintf(name, sizeof name, "psc_tx_%u", number);
    /* Every descriptor of the port may hold one, and a stock, a burst and the cache, which keeps up to 1.5
     * times its size, must still be full. The private area is a line, so that headers begin with one. */
    tx->mempool = rte_pktmbuf_pool_create(
        name, port->tx_ring_packets + waiting + 2 * LENT_SEGMENTS * PSC_IO_BURST + 2 * MEMPOOL_CACHE,
        MEMPOOL_CACHE, LINE_BYTES, tx->lends_payload ? LENT_ROOM : COPIED_ROOM, lane->socket);
    return tx->mempool != NULL;
}

void psc_io_tx_drop(struct psc_io_tx *tx)
{
    rte_pktmbuf_free_bulk(tx->pending + tx->pending_begin, tx->pending_end - tx->pending_begin);
    tx->pending_begin = tx->pending_end = 0;
}

void psc_io_tx_free(struct psc_io_tx *tx)
{
    if (tx->stock_count > 0)
        rte_mempool_put_bulk(tx->mempool, (void **)tx->stock, tx->stock_count);
    rte_mempool_free(tx->mempool);
}

uint32_t psc_io_tx_room(struct psc_io_tx *tx)
{
    uint32_t missing = tx->segments * PSC_IO_BURST - tx->stock_count;

    if (tx->pending_begin != tx->pending_end)
        return 0;
    if (missing > 0 &&
        rte_mempool_get_bulk(tx->mempool, (void **)(tx->stock + tx->stock_count), missing) == 0)
        tx->stock_count += missing;
    return tx->stock_count / tx->segments;
}

/* One of the stock: as mbufs lie in a mempool, alone and with their own room (rte_mbuf_raw_alloc). What a
 * driver reads besides is lengths. */
static struct rte_mbuf *take_segment(struct psc_io_tx *tx)
{
    struct rte_mbuf *m = tx->stock[--tx->stock_count];

    m->ol_flags = 0;
    m->data_off = RTE_PKTMBUF_HEADROOM;
    return m;
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

/* Points to the emit's payload and holds its slot until the port is done with it. */
static struct rte_mbuf *lend_payload(struct psc_io_tx *tx, const struct psc_emit *emit)
{
    struct rte_mbuf *m = take_segment(tx);
    struct rte_mbuf_ext_shared_info *info = rte_mbuf_to_priv(m);

    info->free_cb = release_hold;
    info->fcb_opaque = emit->hold;
    rte_mbuf_ext_refcnt_set(info, 1);
    /* EAL runs with IOVA as virtual addresses, so the IO address of a slot is its address. */
    rte_pktmbuf_attach_extbuf(m, (void *)(uintptr_t)emit->payload, (rte_iova_t)(uintptr_t)emit->payload,
                              (uint16_t)emit->payload_bytes, info);
    m->data_len = (uint16_t)emit->payload_bytes;
    return m;
}

/* A line, or all of the room: a copy of one length needs no call. Over IPv4 only RETH needs the second. */
static struct rte_mbuf *put_header(struct psc_io_tx *tx, const struct psc_emit *emit)
{
    struct rte_mbuf *m = take_segment(tx);
    uint8_t *at = rte_pktmbuf_mtod(m, uint8_t *);

    memcpy(at, emit->header, LINE_BYTES);
    if (emit->header_bytes > LINE_BYTES)
        memcpy(at + LINE_BYTES, emit->header + LINE_BYTES, sizeof emit->header - LINE_BYTES);
    m->data_len = (uint16_t)emit->header_bytes;
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
    struct rte_mbuf *m = take_segment(tx);
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

static void put_trailer(struct rte_mbuf *m, uint32_t offset, const struct psc_emit *emit)
{
    memcpy(rte_pktmbuf_mtod_offset(m, void *, offset), emit->trailer, sizeof emit->trailer);
    m->data_len = (uint16_t)(offset + emit->trailer_bytes);
}

/* Headers and trailer around the payload where it lies; the first segment keeps the whole frame's length and
 * number of segments. */
static struct rte_mbuf *chain_frame(struct psc_io_tx *tx, const struct psc_emit *emit)
{
    struct rte_mbuf *first, *payload, *trailer;

    if (emit->payload_bytes == 0) { /* an ACK */
        first = put_header(tx, emit);
        put_trailer(first, emit->header_bytes, emit);
    } else if (emit->header_bytes == 0) { /* an answer to a neighbour or a ping */
        first = lend_payload(tx, emit);
    } else {
        first = put_header(tx, emit);
        payload = lend_payload(tx, emit);
        trailer = take_segment(tx);
        put_trailer(trailer, 0, emit);
        first->next = payload;
        payload->next = trailer;
        first->nb_segs = LENT_SEGMENTS;
    }
    first->pkt_len = emit->header_bytes + emit->payload_bytes + emit->trailer_bytes;
    return first;
}

void psc_io_tx_add(struct psc_io_tx *tx, const struct psc_emit *emit)
{
    if (emit->header_bytes + emit->payload_bytes + emit->trailer_bytes == 0)
        return;
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
    else
        tx->pending_begin = tx->pending_end = 0;
    return taken;
}
