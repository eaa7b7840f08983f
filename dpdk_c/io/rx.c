/* What frames are received into. The additions and the ICRC read each payload 64 bytes at a time, and a read
 * that straddles two cache lines costs two: a received frame begins where the payload of a full packet over
 * IPv4 begins with a line. */
#include "psc_io_internal.h"

#define LINE_BYTES    64
#define HEADERS_BYTES (14 + 20 + 8 + 12) /* Ethernet, IPv4, UDP, BTH: of a WRITE MIDDLE, without a tag */
#define MOVED_BYTES   ((LINE_BYTES - HEADERS_BYTES % LINE_BYTES) % LINE_BYTES)
_Static_assert(RTE_PKTMBUF_HEADROOM % LINE_BYTES == 0 && sizeof(struct rte_mbuf) % LINE_BYTES == 0,
               "an mbuf's frame begins with a line");

/* Drivers take the buffer's address from the mbuf and add the head room, a constant in their code: memif,
 * af_packet, tap and the ring's do. One that computes it from the mbuf's own address (af_xdp, receiving
 * without a copy) must not be given these. Not verified on a NIC. */
static void move_buffer(struct rte_mempool *mempool, void *opaque, void *object, unsigned index)
{
    struct rte_mbuf *m = object;

    (void)mempool, (void)opaque, (void)index;
    m->buf_addr = (uint8_t *)m->buf_addr + MOVED_BYTES;
    rte_mbuf_iova_set(m, rte_mbuf_iova_get(m) + MOVED_BYTES);
    m->buf_len = (uint16_t)(m->buf_len - MOVED_BYTES);
}

struct rte_mempool *psc_io_rx_mempool(const char *name, unsigned mbufs, unsigned cache, uint16_t room_bytes,
                                      int socket)
{
    uint16_t buffer_bytes = (uint16_t)(RTE_PKTMBUF_HEADROOM + room_bytes);
    struct rte_mempool *mempool = rte_pktmbuf_pool_create(
        name, mbufs, cache, 0, (uint16_t)RTE_ALIGN(buffer_bytes + MOVED_BYTES, LINE_BYTES), socket);

    if (mempool == NULL)
        return NULL;
    rte_mempool_obj_iter(mempool, move_buffer, NULL);
    /* So much a driver may let a NIC write. */
    ((struct rte_pktmbuf_pool_private *)rte_mempool_get_priv(mempool))->mbuf_data_room_size = buffer_bytes;
    return mempool;
}
