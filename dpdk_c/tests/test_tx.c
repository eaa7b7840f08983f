/* Frames that are copied for a port which may keep them: on EAL without huge pages and without a port. */
#include "support.h"

#include <rte_eal.h>
#include <string.h>

#include "psc_io_internal.h"

#define RING_PACKETS 64u

static int start_eal(void **state)
{
    char *arguments[] = {"test_tx", "--no-huge",      "--no-shconf",    "--no-pci",         "-m",
                         "64",      "--iova-mode=va", "--no-telemetry", "--log-level=error"};

    (void)state;
    return rte_eal_init((int)RTE_DIM(arguments), arguments) < 0;
}

static int stop_eal(void **state)
{
    (void)state;
    return rte_eal_cleanup();
}

/* Whatever length its headers have, the longest frame that is received, and so answered, has room. */
static void test_longest_answer_has_room(void **state)
{
    static uint8_t payload[PSC_IO_RX_ROOM];
    struct psc_io_port port = {.tx_ring_packets = RING_PACKETS};
    struct psc_io_lane lane = {.port = &port, .socket = SOCKET_ID_ANY};
    struct psc_io_tx tx = {0};

    (void)state;
    memset(payload, 0xa5, sizeof payload);
    assert_true(psc_io_tx_init(&tx, &lane, 0));
    assert_true(psc_io_tx_room(&tx) >= PSC_IO_BURST);
    for (uint32_t i = 0; i < PSC_IO_BURST; i++) {
        struct psc_hold hold = {.count = 1};
        struct psc_emit emit = {
            .header_bytes = i, .payload = payload, .payload_bytes = PSC_IO_RX_ROOM - i, .hold = &hold};
        const struct rte_mbuf *m;

        psc_io_tx_add(&tx, &emit);
        m = tx.pending[i];
        assert_int_equal(hold.count, 0);
        assert_int_equal(m->pkt_len, PSC_IO_RX_ROOM);
        assert_true(m->data_off + (uint32_t)m->data_len <= m->buf_len);
        assert_memory_equal(rte_pktmbuf_mtod_offset(m, const uint8_t *, i), payload, PSC_IO_RX_ROOM - i);
    }
    psc_io_tx_drop(&tx);
    psc_io_tx_free(&tx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_longest_answer_has_room)};

    return cmocka_run_group_tests(tests, start_eal, stop_eal);
}
