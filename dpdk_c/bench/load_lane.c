/* bench/load: an appliance's lane in this process, on a core of its own, and two rings where the wire was:
 * frames that the other core has just written, without a driver's copies. The lane, its loop and its job are
 * the real ones; what the appliance and its control plane agree with workers is agreed here in a few lines.
 */
#include "load.h"
#include "psc_io_internal.h"

#include <rte_eth_ring.h>
#include <rte_launch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RING_FRAMES 1024u
#define LANE_QPN(k) ((uint32_t)(k) << PSC_LANE_BITS) /* lane 0, index k */

static struct psc_io beside;
static struct psc_lane_stats lane_stats __attribute__((aligned(64)));
static struct psc_job *job;

const struct psc_lane_stats *load_lane_stats(void)
{
    return &lane_stats;
}

static bool make_rings(struct load_error *error)
{
    unsigned flags = RING_F_SP_ENQ | RING_F_SC_DEQ;
    struct rte_ring *in = rte_ring_create("psc_to_lane", RING_FRAMES, SOCKET_ID_ANY, flags);
    struct rte_ring *out = rte_ring_create("psc_from_lane", RING_FRAMES, SOCKET_ID_ANY, flags);

    if (in == NULL || out == NULL || rte_eth_from_rings("lane", &in, 1, &out, 1, 0) < 0 ||
        rte_eth_from_rings("workers", &out, 1, &in, 1, 0) < 0)
        return load_fail(error, "the rings cannot be made");
    return true;
}

/* io.c's make_all for one lane, whose port is there already. */
static bool start_lane(const struct psc_io_config *config, struct psc_io_error *error)
{
    struct psc_io_lane *lane = &beside.lanes[0];
    struct psc_io_port *port = &beside.ports[0];

    beside.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    beside.lane_count = beside.port_count = 1;
    lane->stats = &lane_stats;
    lane->port = port;
    lane->lcore = 1;
    lane->event_fd = beside.event_fd;
    if (!psc_io_port_open(port, config, 0, error))
        return false;
    port->lanes[0] = port->host = lane;
    port->lane_count = 1;
    if (!psc_io_port_plan(port, config, 0, error) || !psc_io_lane_init(lane, 0, config, error) ||
        !psc_io_lane_make_receive(lane, 0, config, error) || !psc_io_port_start(port, config, 0, error) ||
        !psc_io_lane_init_tx(lane, 0, config, error))
        return false;
    rte_eal_remote_launch(psc_io_lane_main, lane, lane->lcore);
    beside.running = true;
    return true;
}

static struct psc_io_config lane_config(const struct load *load)
{
    const struct psc_requester_config *ours = &load->requester_config;

    return (struct psc_io_config){.port_count = 1,
                                  /* pci: the device is there before it is asked for */
                                  .ports = {{.devargs = "net_ring_lane",
                                             .pci = true,
                                             .rx_ring_packets = RING_FRAMES,
                                             .tx_ring_packets = RING_FRAMES,
                                             .dispatcher_core = PSC_IO_NO_CORE}},
                                  .lane_count = 1,
                                  .lanes = {{.ip = load->peer, .prefix_bits = 24}},
                                  .lane = {.dscp = 26,
                                           .max_unacked_packets = (uint16_t)ours->max_unacked_packets,
                                           .retransmit_ns = ours->retransmit_ns,
                                           .retries = (uint8_t)ours->retries,
                                           .progress_ns = ours->progress_ns,
                                           .waiting_event_ns = ours->progress_ns}};
}

static bool attach_job(const struct load *load, const struct load_lane_options *options,
                       struct load_error *error)
{
    struct psc_job_spec spec = {.world_size = options->ranks,
                                .mtu = options->mtu,
                                .ops = {options->op},
                                .op_count = 1,
                                .pools = {{PSC_POOL_DATA, options->window, options->chunk_bytes}},
                                .pool_count = 1};

    memcpy(spec.tables, load->shapes[0].tables, sizeof spec.tables);
    job = psc_job_new(&spec, psc_io_memory(&beside, 0));
    if (job == NULL)
        return load_fail(error, "no memory for the job, or no such job");
    return psc_io_command(&beside, 0, &(struct psc_command){.kind = PSC_CMD_ATTACH, .job = job});
}

/* Both ends of one rank's queue pair, by numbers that only have to differ. */
static void join_rank(struct load *load, const struct load_lane_options *options, uint32_t rank)
{
    struct load_qp_spec ours = {.rank = rank,
                                .qpn = 0x10000 + rank,
                                .start_psn = 100 * rank,
                                .peer_qpn = LANE_QPN(rank + 1),
                                .peer_start_psn = 0xfffff0 + rank,
                                .rkey = 0x1000 + rank,
                                .result_rkey = 0x2000 + rank,
                                .va_base = (uint64_t)rank << 40,
                                .result_va = UINT64_C(0x7000000000) + ((uint64_t)rank << 32),
                                .window = options->window,
                                .chunk_bytes = options->chunk_bytes};
    struct psc_command command = {.kind = PSC_CMD_CONNECT,
                                  .job = job,
                                  .qp = {.rank = rank,
                                         .qpn = ours.peer_qpn,
                                         .start_psn = ours.peer_start_psn,
                                         .rkey = ours.rkey,
                                         .va_base = ours.va_base,
                                         .udp_port = (uint16_t)(0xd000 + rank),
                                         .peer = load->local.ip,
                                         .peer_qpn = ours.qpn,
                                         .peer_start_psn = ours.start_psn,
                                         .result_rkey = ours.result_rkey,
                                         .result_va = ours.result_va}};

    load_qp_add(load, &ours);
    psc_io_command(&beside, 0, &command);
}

bool load_lane_open(struct load_port *port, struct load *load, const struct load_lane_options *options,
                    struct load_error *error)
{
    struct psc_io_config config = lane_config(load);
    struct psc_io_error why = {.text = ""};
    struct psc_io_event event;
    uint32_t connected = 0;

    if (!make_rings(error) || !load_port_open(port, "net_ring_workers", RING_FRAMES, &load->local.mac, error))
        return false;
    if (!start_lane(&config, &why))
        return load_fail(error, "%s", why.text);
    load->peer_mac = beside.ports[0].mac;
    load->peer_known = true;
    if (!attach_job(load, options, error))
        return false;
    for (uint32_t rank = 0; rank < options->ranks; rank++)
        join_rank(load, options, rank);
    while (connected < options->ranks) { /* the lane asks for our MAC first */
        load_port_turn(port, load);
        if (!psc_io_next_event(&beside, &event))
            continue;
        if (event.rejected || event.event.kind != PSC_EVENT_CONNECTED)
            return load_fail(error, "the lane answers with event %u, rejected %u", event.event.kind,
                             event.rejected);
        connected++;
    }
    return true;
}

void load_lane_close(void)
{
    psc_io_stop(&beside);
    psc_job_free(job);
    psc_io_lane_free(&beside.lanes[0]);
    close(beside.event_fd);
}
