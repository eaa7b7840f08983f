/* EAL, a port made of two rings and one lane on it. Everything but the port is what io.c makes. */
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lane_bench.h"

#define RING_ENTRIES 1024u

void bench_fail(const char *format, ...)
{
    va_list values;

    va_start(values, format);
    fputs("psc_bench_lane: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    exit(EXIT_FAILURE);
}

static uint32_t last_cpu(void)
{
    cpu_set_t allowed;
    uint32_t last = 0;

    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        bench_fail("sched_getaffinity fails");
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            last = cpu;
    return last;
}

static struct psc_io_config config_of(bool huge_pages, uint32_t memory_mib)
{
    return (struct psc_io_config){.ports = {{.devargs = "net_ring_bench", /* rte_eth_from_rings' prefix */
                                             .pci = true, /* there already when the port is opened */
                                             .rx_ring_packets = RING_ENTRIES,
                                             .tx_ring_packets = RING_ENTRIES}},
                                  .lane_cores = {last_cpu()},
                                  .lane_count = 1,
                                  .huge_pages = huge_pages,
                                  .memory_mib = memory_mib,
                                  .roce_mtu = 4096,
                                  .lane = {.local = {.ip = {{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}}},
                                           .prefix_bits = 24,
                                           .dscp = 26,
                                           .max_unacked_packets = 128,
                                           .retransmit_ns = 4096u << 14,
                                           .retries = 6,
                                           .progress_ns = 2000000000u,
                                           .waiting_event_ns = 2000000000u}};
}

static struct rte_ring *make_ring(const char *name)
{
    struct rte_ring *ring = rte_ring_create(name, RING_ENTRIES, 0, RING_F_SP_ENQ | RING_F_SC_DEQ);

    if (ring == NULL)
        bench_fail("no memory for a ring");
    return ring;
}

void bench_rig_open(struct bench_rig *rig, bool huge_pages, uint32_t memory_mib)
{
    struct psc_io_config config = config_of(huge_pages, memory_mib);
    struct psc_io_error error = {.text = ""};

    *rig = (struct bench_rig){.lane = {.stats = &rig->stats, .port = &rig->port, .lcore = 1}};
    rig->lane.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!psc_io_eal_start(&config, &error))
        bench_fail("%s", error.text);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(config.lane_cores[0], &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        bench_fail("sched_setaffinity fails");
    rig->to_lane = make_ring("bench_to_lane");
    rig->from_lane = make_ring("bench_from_lane");
    if (rte_eth_from_rings("bench", &rig->to_lane, 1, &rig->from_lane, 1, 0) < 0)
        bench_fail("rte_eth_from_rings fails: %s", rte_strerror(rte_errno));
    if (!psc_io_port_open(&rig->port, &config, 0, &error) ||
        !psc_io_lane_init(&rig->lane, 0, &config, &error) ||
        !psc_io_port_start(&rig->port, rig->lane.rx_mempool, 0, &error))
        bench_fail("%s", error.text);
    rig->port.lends_payload = true; /* who takes its frames frees them on this core, like a NIC's driver */
    if (!psc_io_lane_init_tx(&rig->lane, 0, &config, &error))
        bench_fail("%s", error.text);
    rig->frames = rte_pktmbuf_pool_create("bench_frames", 8191, 0, 0, RTE_PKTMBUF_HEADROOM + 4352, 0);
    if (rig->frames == NULL)
        bench_fail("no memory for frames in %u MiB", memory_mib);
}

void bench_rig_close(struct bench_rig *rig)
{
    psc_io_port_close(&rig->port);
    psc_io_tx_drop(&rig->lane.tx);
    psc_io_lane_free(&rig->lane);
    rte_mempool_free(rig->frames);
    close(rig->lane.event_fd);
    rte_eal_cleanup();
}

void bench_command(struct bench_rig *rig, const struct psc_command *command)
{
    if (rte_ring_enqueue_elem(rig->lane.commands, (void *)(uintptr_t)command, sizeof *command) != 0)
        bench_fail("the ring of commands is full");
}

void bench_expect_event(struct bench_rig *rig, enum psc_event_kind kind)
{
    struct psc_io_event event = {.rejected = 0};

    for (int turns = 0; rte_ring_dequeue_elem(rig->lane.events, &event, sizeof event) != 0; turns++) {
        if (turns == 1000)
            bench_fail("no event %d", (int)kind);
        psc_io_lane_turn(&rig->lane);
    }
    if (event.rejected || event.event.kind != kind)
        bench_fail("event %d (refused: %u of %u) instead of %d, fault %u, expected %lu, got %lu",
                   (int)event.event.kind, event.rejected, event.rejected_kind, (int)kind, event.event.fault,
                   event.event.expected, event.event.got);
}
