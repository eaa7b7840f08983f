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

/* The last of the CPUs that this process may use, or the one `back` before it. */
static uint32_t cpu_from_the_end(uint32_t back)
{
    cpu_set_t allowed;

    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        bench_fail("sched_getaffinity fails");
    for (uint32_t cpu = CPU_SETSIZE; cpu-- > 0;)
        if (CPU_ISSET(cpu, &allowed) && back-- == 0)
            return cpu;
    bench_fail("too few CPUs for so many lanes");
}

static struct psc_io_config config_of(uint32_t lanes, bool huge_pages, uint32_t memory_mib)
{
    static char devargs[PSC_IO_MAX_PORTS][32];
    const struct psc_ip own = {{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}};
    struct psc_io_config config = {.port_count = lanes,
                                   .lane_count = lanes,
                                   .huge_pages = huge_pages,
                                   .memory_mib = memory_mib,
                                   .roce_mtu = 4096,
                                   .lane = {.local = {.ip = own},
                                            .dscp = 26,
                                            .max_unacked_packets = 128,
                                            .retransmit_ns = 4096u << 14,
                                            .retries = 6,
                                            .progress_ns = 2000000000u,
                                            .waiting_event_ns = 2000000000u}};

    for (uint32_t i = 0; i < lanes; i++) {
        snprintf(devargs[i], sizeof devargs[i], "net_ring_bench%u", i); /* rte_eth_from_rings' prefix */
        config.ports[i] = (struct psc_io_port_config){.devargs = devargs[i],
                                                      .rx_ring_packets = RING_ENTRIES,
                                                      .tx_ring_packets = RING_ENTRIES,
                                                      .dispatcher_core = PSC_IO_NO_CORE};
        config.lanes[i] =
            (struct psc_io_lane_config){.core = cpu_from_the_end(i), .port = i, .ip = own, .prefix_bits = 24};
    }
    return config;
}

static struct rte_ring *make_ring(const char *what, uint32_t number)
{
    char name[RTE_RING_NAMESIZE];

    snprintf(name, sizeof name, "bench_%s_%u", what, number);
    struct rte_ring *ring = rte_ring_create(name, RING_ENTRIES, 0, RING_F_SP_ENQ | RING_F_SC_DEQ);
    if (ring == NULL)
        bench_fail("no memory for a ring");
    return ring;
}

/* The number-th lane, alone on its port. */
static void make_rig(struct bench_rig *rig, uint32_t number, const struct psc_io_config *config, bool lends)
{
    struct psc_io_error error = {.text = ""};
    char name[32];

    *rig = (struct bench_rig){
        .lane = {
            .stats = &rig->stats, .port = &rig->port, .number = number, .lcore = PSC_IO_LANE_LCORE(number)}};
    rig->lane.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rig->to_lane = make_ring("to_lane", number);
    rig->from_lane = make_ring("from_lane", number);
    snprintf(name, sizeof name, "bench%u", number);
    if (rte_eth_from_rings(name, &rig->to_lane, 1, &rig->from_lane, 1, 0) < 0)
        bench_fail("rte_eth_from_rings fails: %s", rte_strerror(rte_errno));
    if (!psc_io_port_open(&rig->port, config, number, &error))
        bench_fail("%s", error.text);
    rig->port.lanes[number] = rig->port.host = &rig->lane;
    rig->port.lane_count = 1;
    if (!psc_io_port_plan(&rig->port, config, number, &error) ||
        !psc_io_lane_init(&rig->lane, number, config, &error) ||
        !psc_io_lane_make_receive(&rig->lane, number, config, &error) ||
        !psc_io_port_start(&rig->port, config, number, &error))
        bench_fail("%s", error.text);
    rig->port.lends_payload = lends;
    if (!psc_io_lane_init_tx(&rig->lane, number, config, &error))
        bench_fail("%s", error.text);
    snprintf(name, sizeof name, "bench_frames_%u", number);
    rig->frames = psc_io_rx_mempool(name, 8191, 0, 4352, 0);
    if (rig->frames == NULL)
        bench_fail("no memory for frames in %u MiB", config->memory_mib);
}

static void open_rigs(struct bench_rig *rigs, uint32_t lanes, bool huge_pages, uint32_t memory_mib,
                      bool lends)
{
    struct psc_io_config config = config_of(lanes, huge_pages, memory_mib);
    struct psc_io_error error = {.text = ""};

    if (!psc_io_eal_start(&config, &error))
        bench_fail("%s", error.text);
    for (uint32_t i = 0; i < lanes; i++)
        config.ports[i].pci = true; /* there already when it is opened; EAL must not make it */
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(config.lanes[0].core, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        bench_fail("sched_setaffinity fails");
    for (uint32_t i = 0; i < lanes; i++)
        make_rig(&rigs[i], i, &config, lends);
}

/* Who takes the lanes' frames frees them on the lane's core, like a NIC's driver. */
void bench_rigs_open(struct bench_rig *rigs, uint32_t lanes, bool huge_pages, uint32_t memory_mib)
{
    open_rigs(rigs, lanes, huge_pages, memory_mib, true);
}

void bench_rig_open(struct bench_rig *rig, bool huge_pages, uint32_t memory_mib)
{
    bench_rigs_open(rig, 1, huge_pages, memory_mib);
}

void bench_rig_open_apart(struct bench_rig *rig, bool huge_pages, uint32_t memory_mib)
{
    uint32_t cpu = cpu_from_the_end(1);
    cpu_set_t other;

    open_rigs(rig, 1, huge_pages, memory_mib, false);
    CPU_ZERO(&other);
    CPU_SET(cpu, &other);
    if (sched_setaffinity(0, sizeof other, &other) != 0)
        bench_fail("sched_setaffinity fails");
}

void bench_rig_close(struct bench_rig *rig)
{
    psc_io_port_close(&rig->port);
    psc_io_tx_drop(&rig->lane.tx);
    psc_io_lane_free(&rig->lane);
    rte_mempool_free(rig->frames);
    close(rig->lane.event_fd);
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
