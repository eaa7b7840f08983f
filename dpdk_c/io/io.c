/* The whole of io/: start in order, stop in reverse, and what the control thread may ask meanwhile. */
#include "psc_io_internal.h"

#include <rte_eal.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Which lanes a port has, and whether they share its address. */
static void give_lanes(struct psc_io *io, const struct psc_io_config *config,
                       struct psc_lane_stats *const stats[])
{
    for (uint32_t i = 0; i < config->lane_count; i++) {
        struct psc_io_lane *lane = &io->lanes[i];
        struct psc_io_port *port = &io->ports[config->lanes[i].port];

        lane->stats = stats[i];
        lane->port = port;
        lane->lcore = PSC_IO_LANE_LCORE(i);
        lane->event_fd = io->event_fd;
        port->lanes[i] = lane;
        if (port->host == NULL)
            port->host = lane;
        else if (!psc_ip_equal(&config->lanes[i].ip, &config->lanes[port->host->number].ip))
            port->own_addresses = true;
        lane->number = i;
        port->lane_count++;
    }
}

/* Ports, then lanes on them, then the ports start: a lane's mempool is what the port receives into. */
static bool make_all(struct psc_io *io, const struct psc_io_config *config,
                     struct psc_lane_stats *const stats[], struct psc_io_error *error)
{
    for (uint32_t i = 0; i < config->port_count; i++) {
        if (!psc_io_port_open(&io->ports[i], config, i, error))
            return false;
        io->port_count++;
    }
    give_lanes(io, config, stats);
    for (uint32_t i = 0; i < io->port_count; i++)
        if (!psc_io_port_plan(&io->ports[i], config, i, error))
            return false;
    for (uint32_t i = 0; i < config->lane_count; i++) {
        io->lane_count++;
        if (!psc_io_lane_init(&io->lanes[i], i, config, error) ||
            !psc_io_lane_make_receive(&io->lanes[i], i, config, error))
            return false;
    }
    for (uint32_t i = 0; i < io->port_count; i++)
        if (!psc_io_port_start(&io->ports[i], config, i, error))
            return false;
    for (uint32_t i = 0; i < io->lane_count; i++)
        if (!psc_io_lane_init_tx(&io->lanes[i], i, config, error))
            return false;
    return true;
}

static bool launch(lcore_function_t *loop, void *argument, unsigned lcore, struct psc_io_error *error)
{
    int rc = rte_eal_remote_launch(loop, argument, lcore);

    return rc == 0 ||
           psc_io_fail(error, PSC_IO_EAL, "lcore %u does not start its loop: %s", lcore, strerror(-rc));
}

static bool launch_all(struct psc_io *io, const struct psc_io_config *config, struct psc_io_error *error)
{
    io->running = true; /* so that whatever has been launched is stopped, whatever has not */
    for (uint32_t i = 0; i < io->lane_count; i++)
        if (!launch(psc_io_lane_main, &io->lanes[i], io->lanes[i].lcore, error))
            return false;
    for (uint32_t i = 0; i < io->port_count; i++) {
        struct psc_io_dispatcher *dispatcher = &io->dispatchers[i];

        if (io->ports[i].steering != PSC_IO_STEER_DISPATCHER)
            continue;
        dispatcher->port = &io->ports[i];
        dispatcher->idle_sleep_us = config->idle_sleep_us;
        dispatcher->lcore = PSC_IO_DISPATCHER_LCORE(i);
        if (!launch(psc_io_dispatcher_main, dispatcher, dispatcher->lcore, error))
            return false;
    }
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
    if (!io->eal_started || !make_all(io, config, stats, error) || !launch_all(io, config, error)) {
        psc_io_close(io);
        return NULL;
    }
    return io;
}

/* EAL must not be cleaned up, nor a job freed, while a lane polls. EAL knows when one has returned, but what
 * the lane has written becomes ours, in the language's terms, by its own last store. */
static void join_lanes(struct psc_io *io)
{
    rte_eal_mp_wait_lcore();
    for (uint32_t i = 0; i < io->lane_count; i++)
        (void)__atomic_load_n(&io->lanes[i].ended, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < io->port_count; i++)
        (void)__atomic_load_n(&io->dispatchers[i].ended, __ATOMIC_ACQUIRE);
}

void psc_io_stop(struct psc_io *io)
{
    for (uint32_t i = 0; i < io->lane_count; i++)
        __atomic_store_n(&io->lanes[i].stop, 1, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < io->port_count; i++)
        __atomic_store_n(&io->dispatchers[i].stop, 1, __ATOMIC_RELEASE);
    if (io->running)
        join_lanes(io);
    io->running = false;
    for (uint32_t i = 0; i < io->port_count; i++) {
        struct psc_io_dispatcher *dispatcher = &io->dispatchers[i];

        rte_pktmbuf_free_bulk(dispatcher->pending + dispatcher->pending_begin,
                              dispatcher->pending_end - dispatcher->pending_begin);
        psc_io_port_close(&io->ports[i]);
    }
    io->port_count = 0;
    for (uint32_t i = 0; i < io->lane_count; i++)
        psc_io_tx_drop(&io->lanes[i].tx);
}

void psc_io_fetch_losses(struct psc_io *io)
{
    struct rte_eth_stats port;

    if (!io->running)
        return;
    for (uint32_t i = 0; i < io->lane_count; i++) {
        struct psc_io_lane *lane = &io->lanes[i];
        const struct psc_io_dispatcher *dispatcher = &io->dispatchers[lane->port - io->ports];
        uint64_t missed = __atomic_load_n(&dispatcher->refused[i], __ATOMIC_RELAXED);

        /* A port counts for all its lanes together: they stand at the first. */
        if (lane->port->host == lane && rte_eth_stats_get(lane->port->port_id, &port) == 0) {
            missed += port.imissed;
            lane->stats->rx_no_mbuf = port.rx_nombuf;
        }
        lane->stats->rx_missed = missed;
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

bool psc_io_takes_command(const struct psc_io *io, uint32_t lane)
{
    return rte_ring_free_count(io->lanes[lane].commands) > 0;
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
                                      .lends_payload = p->lends_payload && p->host->outbox == NULL,
                                      .steering = p->steering,
                                      .why = p->why,
                                      .rx_queues = p->rx_queues,
                                      .tx_queues = p->tx_queues,
                                      .dispatched_frames =
                                          __atomic_load_n(&io->dispatchers[port].frames, __ATOMIC_RELAXED)};
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
