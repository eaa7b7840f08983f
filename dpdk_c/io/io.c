/* The whole of io/: start in order, stop in reverse, and what the control thread may ask meanwhile. */
#include "psc_io_internal.h"

#include <rte_eal.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Ports, then lanes on them, then the ports start: a lane's mempool is what the port receives into. */
static bool make_all(struct psc_io *io, const struct psc_io_config *config,
                     struct psc_lane_stats *const stats[], struct psc_io_error *error)
{
    for (uint32_t i = 0; i < config->port_count; i++) {
        if (!psc_io_port_open(&io->ports[i], config, i, error))
            return false;
        io->port_count++;
    }
    for (uint32_t i = 0; i < config->lane_count; i++) {
        struct psc_io_lane *lane = &io->lanes[i];

        lane->stats = stats[i];
        lane->port = &io->ports[0];
        lane->lcore = i + 1;
        lane->event_fd = io->event_fd;
        io->lane_count++;
        if (!psc_io_lane_init(lane, i, config, error))
            return false;
    }
    for (uint32_t i = 0; i < io->port_count; i++)
        if (!psc_io_port_start(&io->ports[i], io->lanes[i].rx_mempool, io->lanes[i].socket, error))
            return false;
    for (uint32_t i = 0; i < io->lane_count; i++)
        if (!psc_io_lane_init_tx(&io->lanes[i], i, config, error))
            return false;
    return true;
}

struct psc_io *psc_io_start(const struct psc_io_config *config, struct psc_lane_stats *const stats[],
                            struct psc_io_error *error)
{
    struct psc_io *io = calloc(1, sizeof *io);

    if (io == NULL) {
        psc_io_fail(error, PSC_IO_MEMORY, "no memory for the port and lane tables");
        return NULL;
    }
    io->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    io->eal_started = psc_io_eal_start(config, error);
    if (!io->eal_started || !make_all(io, config, stats, error)) {
        psc_io_close(io);
        return NULL;
    }
    for (uint32_t i = 0; i < io->lane_count; i++)
        rte_eal_remote_launch(psc_io_lane_main, &io->lanes[i], io->lanes[i].lcore);
    io->running = true;
    return io;
}

/* EAL must not be cleaned up, nor a job freed, while a lane polls. EAL knows when one has returned, but what
 * the lane has written becomes ours, in the language's terms, by its own last store. */
static void join_lanes(struct psc_io *io)
{
    rte_eal_mp_wait_lcore();
    for (uint32_t i = 0; i < io->lane_count; i++)
        (void)__atomic_load_n(&io->lanes[i].ended, __ATOMIC_ACQUIRE);
}

void psc_io_stop(struct psc_io *io)
{
    for (uint32_t i = 0; i < io->lane_count; i++)
        __atomic_store_n(&io->lanes[i].stop, 1, __ATOMIC_RELEASE);
    if (io->running)
        join_lanes(io);
    io->running = false;
    for (uint32_t i = 0; i < io->port_count; i++)
        psc_io_port_close(&io->ports[i]);
    io->port_count = 0;
    for (uint32_t i = 0; i < io->lane_count; i++)
        psc_io_tx_drop(&io->lanes[i].tx);
}

void psc_io_fetch_losses(struct psc_io *io)
{
    struct rte_eth_stats port;

    if (!io->running)
        return;
    for (uint32_t i = 0; i < io->lane_count; i++)
        if (rte_eth_stats_get(io->lanes[i].port->port_id, &port) == 0) {
            io->lanes[i].stats->rx_missed = port.imissed;
            io->lanes[i].stats->rx_no_mbuf = port.rx_nombuf;
        }
}

void psc_io_close(struct psc_io *io)
{
    psc_io_stop(io);
    for (uint32_t i = 0; i < io->lane_count; i++)
        psc_io_lane_free(&io->lanes[i]);
    if (io->eal_started)
        rte_eal_cleanup();
    close(io->event_fd);
    free(io);
}

bool psc_io_command(struct psc_io *io, uint32_t lane, const struct psc_command *command)
{
    return rte_ring_enqueue_elem(io->lanes[lane].commands, (void *)(uintptr_t)command, sizeof *command) == 0;
}

bool psc_io_next_event(struct psc_io *io, struct psc_io_event *event)
{
    for (uint32_t i = 0; i < io->lane_count; i++)
        if (rte_ring_dequeue_elem(io->lanes[i].events, event, sizeof *event) == 0)
            return true;
    return false;
}

int psc_io_event_fd(const struct psc_io *io)
{
    return io->event_fd;
}

const struct psc_memory *psc_io_memory(struct psc_io *io, uint32_t lane)
{
    return &io->lanes[lane].memory;
}

void psc_io_port_info(const struct psc_io *io, uint32_t port, struct psc_io_port_info *info)
{
    const struct psc_io_port *p = &io->ports[port];
    struct rte_eth_dev_info device;
    struct rte_eth_link link = {0};

    *info = (struct psc_io_port_info){.devargs = p->devargs,
                                      .driver = "",
                                      .mac = p->mac,
                                      .link_mtu = p->link_mtu,
                                      .roce_mtu = p->roce_mtu,
                                      .lends_payload = p->lends_payload};
    if (rte_eth_dev_info_get(p->port_id, &device) == 0)
        info->driver = device.driver_name;
    if (rte_eth_link_get_nowait(p->port_id, &link) == 0)
        info->link_up = link.link_status == RTE_ETH_LINK_UP;
}

uint32_t psc_io_mbufs_in_use(const struct psc_io *io)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < io->lane_count; i++)
        count += psc_io_lane_mbufs(&io->lanes[i]);
    return count;
}
