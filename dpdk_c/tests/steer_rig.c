/* Lanes on one port with a queue for each; see steer_rig.h. */
#include "steer_rig.h"

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_eth_ring.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RING_PACKETS 64u
#define FRAMES       512u
#define MEMORY_MIB   256u

struct psc_io_config steer_config;
struct steer_rig steer_rig;

/* ---- The rig. ---- */

static uint32_t last_cpu(void)
{
    cpu_set_t allowed;
    uint32_t last = 0;

    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            last = cpu;
    return last;
}

int steer_start_eal(void **state)
{
    struct psc_io_error error = {.text = ""};

    (void)state;
    steer_config = (struct psc_io_config){.port_count = 1,
                                          .lane_count = STEER_LANES,
                                          .memory_mib = MEMORY_MIB,
                                          .roce_mtu = 1024,
                                          .lane = {.dscp = 26,
                                                   .max_unacked_packets = 128,
                                                   .retransmit_ns = 4096u << 14,
                                                   .retries = 6,
                                                   .progress_ns = 2000000000u,
                                                   .waiting_event_ns = 2000000000u}};
    steer_config.ports[0] = (struct psc_io_port_config){.devargs = "net_ring_steer",
                                                        .rx_ring_packets = RING_PACKETS,
                                                        .tx_ring_packets = RING_PACKETS,
                                                        .dispatcher_core = last_cpu()};
    for (uint32_t i = 0; i < STEER_LANES; i++)
        steer_config.lanes[i] = (struct psc_io_lane_config){.core = last_cpu(), .prefix_bits = 24};
    if (psc_io_eal_start(&steer_config, &error)) {
        steer_config.ports[0].pci = true; /* there already when it is opened */
        return 0;
    }
    print_error("%s\n", error.text);
    return -1;
}

int steer_stop_eal(void **state)
{
    (void)state;
    return rte_eal_cleanup();
}

static struct rte_ring *make_ring(const char *what, uint32_t number)
{
    char name[RTE_RING_NAMESIZE];
    struct rte_ring *ring;

    snprintf(name, sizeof name, "steer_%s_%u", what, number);
    ring = rte_ring_create(name, FRAMES, 0, RING_F_SP_ENQ | RING_F_SC_DEQ);
    assert_non_null(ring);
    return ring;
}

/* The port with its lanes' names on it, as io.c writes them. */
void steer_open_port(bool own_addresses, struct psc_io_error *error)
{
    memset(&steer_rig, 0, sizeof steer_rig);
    for (uint32_t i = 0; i < STEER_LANES; i++) {
        steer_config.lanes[i].ip = local_v4.ip;
        steer_config.lanes[i].ip.b[15] = (uint8_t)(local_v4.ip.b[15] + (own_addresses ? i : 0));
        steer_rig.to_port[i] = make_ring("to", i);
        steer_rig.from_port[i] = make_ring("from", i);
        steer_rig.lanes[i] = (struct psc_io_lane){.stats = &steer_rig.stats[i],
                                                  .port = &steer_rig.port,
                                                  .number = i,
                                                  .lcore = PSC_IO_LANE_LCORE(i),
                                                  .event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
        steer_rig.port.lanes[i] = &steer_rig.lanes[i];
    }
    steer_rig.port.host = &steer_rig.lanes[0];
    steer_rig.port.lane_count = STEER_LANES;
    steer_rig.port.own_addresses = own_addresses;
    steer_config.lane.local.ip = local_v4.ip;
    assert_true(rte_eth_from_rings("steer", steer_rig.to_port, STEER_LANES, steer_rig.from_port, STEER_LANES,
                                   0) >= 0);
    assert_true(psc_io_port_open(&steer_rig.port, &steer_config, 0, error));
    steer_rig.frames =
        rte_pktmbuf_pool_create("steer_frames", FRAMES - 1, 0, 0, RTE_PKTMBUF_HEADROOM + 256, 0);
    assert_non_null(steer_rig.frames);
}

void steer_make_lanes(struct psc_io_error *error)
{
    for (uint32_t i = 0; i < STEER_LANES; i++)
        assert_true(psc_io_lane_init(&steer_rig.lanes[i], i, &steer_config, error) &&
                    psc_io_lane_make_receive(&steer_rig.lanes[i], i, &steer_config, error));
}

void steer_turn_all(void)
{
    for (uint32_t turn = 0; turn < 2; turn++)
        for (uint32_t i = 0; i < STEER_LANES; i++)
            psc_io_lane_turn(&steer_rig.lanes[i]);
}

/* Everything but the rules. The first steering that DPDK 22.11 may do is chosen by our own code, that of
 * 23.07 by hand. */
static int start(bool own_addresses)
{
    struct psc_io_error error = {.text = ""};

    steer_open_port(own_addresses, &error);
    steer_config.steering = own_addresses ? PSC_IO_STEER_ADDRESS : PSC_IO_STEER_AUTO;
    assert_true(psc_io_port_plan(&steer_rig.port, &steer_config, 0, &error));
    if (own_addresses) {
        assert_int_equal(steer_rig.port.steering, PSC_IO_STEER_ADDRESS);
    } else {
        steer_rig.port.steering = PSC_IO_STEER_QPN;
        steer_rig.port.rx_queues = steer_rig.port.tx_queues = STEER_LANES;
    }
    steer_make_lanes(&error);
    assert_true(psc_io_port_start_queues(&steer_rig.port, &error));
    for (uint32_t i = 0; i < STEER_LANES; i++) {
        assert_int_equal(steer_rig.lanes[i].rx_queue, i);
        assert_int_equal(rte_ring_get_prod_sync_type(steer_rig.lanes[i].inbox), RTE_RING_SYNC_MT);
        assert_true(psc_io_lane_init_tx(&steer_rig.lanes[i], i, &steer_config, &error));
    }
    steer_turn_all();
    for (uint32_t i = 0; i < STEER_LANES; i++)
        steer_rig.at_rest[i] = psc_io_lane_mbufs(&steer_rig.lanes[i]);
    return 0;
}

int steer_by_qpn(void **state)
{
    (void)state;
    return start(false);
}

int steer_by_address(void **state)
{
    (void)state;
    return start(true);
}

void steer_close_all(void)
{
    struct rte_eth_dev_info device;

    assert_int_equal(rte_eth_dev_info_get(steer_rig.port.port_id, &device), 0);
    psc_io_port_close(&steer_rig.port);
    for (uint32_t i = 0; i < STEER_LANES; i++) {
        psc_io_tx_drop(&steer_rig.lanes[i].tx);
        psc_io_lane_free(&steer_rig.lanes[i]);
        close(steer_rig.lanes[i].event_fd);
        rte_ring_free(steer_rig.to_port[i]);
        rte_ring_free(steer_rig.from_port[i]);
    }
    rte_mempool_free(steer_rig.frames);
    assert_int_equal(rte_dev_remove(device.device), 0);
}

/* No mbuf has been lost. */
int steer_stop(void **state)
{
    uint32_t lanes[STEER_LANES], frames;

    (void)state;
    steer_turn_all();
    for (uint32_t i = 0; i < STEER_LANES; i++)
        lanes[i] = psc_io_lane_mbufs(&steer_rig.lanes[i]);
    frames = rte_mempool_in_use_count(steer_rig.frames);
    steer_close_all();
    for (uint32_t i = 0; i < STEER_LANES; i++)
        assert_int_equal(lanes[i], steer_rig.at_rest[i]);
    assert_int_equal(frames, 0);
    return 0;
}

/* ---- Frames. ---- */

struct rte_mbuf *steer_in_mbuf(const uint8_t *frame, uint32_t bytes)
{
    struct rte_mbuf *m = rte_pktmbuf_alloc(steer_rig.frames);

    assert_non_null(m);
    memcpy(rte_pktmbuf_append(m, (uint16_t)bytes), frame, bytes);
    return m;
}

void steer_arrive(uint32_t queue, struct rte_mbuf *m)
{
    assert_int_equal(rte_ring_enqueue(steer_rig.to_port[queue], m), 0);
}

uint32_t steer_roce(uint32_t low_bits, uint32_t from, uint32_t psn, uint8_t *frame)
{
    struct psc_flow flow = flow_v4;
    const struct psc_header header = {.opcode = PSC_RC_WRITE_ONLY, .psn = psn};

    flow.dst_mac = steer_rig.port.mac;
    flow.dst = steer_config.lanes[low_bits < STEER_LANES ? low_bits : 1].ip;
    flow.dest_qpn = 0xab0000u | from << 8 | low_bits;
    return whole_frame(&flow, &header, NULL, 0, frame);
}

void steer_roce_arrives(uint32_t queue, uint32_t low_bits, uint32_t psn)
{
    uint8_t frame[FRAME_MAX_BYTES];

    steer_arrive(queue, steer_in_mbuf(frame, steer_roce(low_bits, queue, psn, frame)));
}

uint32_t steer_psn_of(const struct rte_mbuf *m)
{
    const uint8_t *psn = rte_pktmbuf_mtod_offset(m, const uint8_t *, STEER_BTH_AT + 9);

    return (uint32_t)psn[0] << 16 | (uint32_t)psn[1] << 8 | psn[2];
}

void steer_expect_burst(uint32_t lane, uint32_t count, const uint32_t *psns)
{
    struct rte_mbuf *mbufs[PSC_IO_BURST];

    assert_int_equal(psc_io_receive_steered(&steer_rig.lanes[lane], mbufs), count);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(steer_psn_of(mbufs[i]), psns[i]);
    rte_pktmbuf_free_bulk(mbufs, count);
}

uint32_t steer_answers(uint32_t queue, uint32_t address_at, uint8_t *sender)
{
    struct rte_mbuf *m;
    uint32_t count = 0;

    while (rte_ring_dequeue(steer_rig.from_port[queue], (void **)&m) == 0) {
        *sender = *rte_pktmbuf_mtod_offset(m, const uint8_t *, address_at + 3);
        count++;
        rte_pktmbuf_free(m);
    }
    return count;
}
