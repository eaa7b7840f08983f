/* Ports: a device by its EAL argument, what path MTU its link carries, and its queues: one, or as many as the
 * steering to its lanes wants. Called by EAL's main thread only, before and after the lanes run. */
#include "psc_io_internal.h"

#include <net/if.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* A vdev is attached after EAL's start, so that its absence is not "EAL did not start"; PCI devices were
 * named to EAL. */
static bool attach(const struct psc_io_port_config *config, struct psc_io_error *error)
{
    char cause[256];
    int rc;

    if (config->pci)
        return true;
    psc_io_capture_begin();
    rc = rte_dev_probe(config->devargs);
    psc_io_capture_end(cause, sizeof cause);
    if (rc == 0)
        return true;
    return psc_io_fail(error, PSC_IO_PORT_ABSENT, "device \"%s\" cannot be opened: %s (%s)", config->devargs,
                       strerror(-rc), cause[0] != '\0' ? cause : "the driver says no more");
}

static bool find_port(struct psc_io_port *port, const struct psc_io_port_config *config,
                      struct psc_io_error *error)
{
    char name[RTE_ETH_NAME_MAX_LEN];

    snprintf(name, sizeof name, "%.*s", (int)strcspn(config->devargs, ","), config->devargs);
    if (rte_eth_dev_get_port_by_name(name, &port->port_id) == 0)
        return true;
    return psc_io_fail(
        error, PSC_IO_PORT_ABSENT,
        "device \"%s\" is not there or no DPDK driver has bound it: see `dpdk-devbind.py --status`", name);
}

/* MTU of the kernel interface beneath, 0 if there is none. DPDK 22.11 says 1500 for net_af_packet whatever it
 * is. */
static uint32_t kernel_mtu(const struct rte_eth_dev_info *info, char name[IF_NAMESIZE])
{
    struct ifreq request = {0};
    int fd, rc;

    if (info->if_index == 0 || if_indextoname(info->if_index, name) == NULL)
        return 0;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    memcpy(request.ifr_name, name, IF_NAMESIZE);
    rc = ioctl(fd, SIOCGIFMTU, &request);
    close(fd);
    return rc == 0 ? (uint32_t)request.ifr_mtu : 0;
}

/* Largest RoCE path MTU whose packets fit into the link's MTU; 0: none does. */
static uint32_t largest_roce_mtu(const struct psc_io_port *port)
{
    uint32_t mtu = 4096;

    while (mtu >= 256 && mtu + port->overhead_bytes > port->link_mtu)
        mtu /= 2;
    return mtu >= 256 ? mtu : 0;
}

/* A device without a kernel interface is told the MTU. That it cannot be told is not an error: rings carry
 * what their buffers hold. */
static uint32_t set_device_mtu(struct psc_io_port *port, uint32_t wanted)
{
    for (uint32_t mtu = wanted != 0 ? wanted : 4096; mtu >= 256; mtu /= 2) {
        int rc = rte_eth_dev_set_mtu(port->port_id, (uint16_t)(mtu + port->overhead_bytes));

        if (rc == 0)
            port->link_mtu = mtu + port->overhead_bytes;
        if (rc == 0 || rc == -ENOTSUP)
            return mtu;
        if (wanted != 0)
            break;
    }
    return 0;
}

static bool choose_mtu(struct psc_io_port *port, const struct rte_eth_dev_info *info, uint32_t wanted,
                       struct psc_io_error *error)
{
    char interface[IF_NAMESIZE] = "";

    port->link_mtu = kernel_mtu(info, interface);
    if (psc_io_memif_is(port->devargs) && !psc_io_memif_fit(port, wanted, error))
        return false;
    if (port->link_mtu == 0) {
        port->roce_mtu = set_device_mtu(port, wanted);
        if (port->roce_mtu != 0)
            return true;
        return psc_io_fail(error, PSC_IO_MTU_TOO_SMALL,
                           "device \"%s\" does not take the MTU of %u that RoCE MTU %u wants", port->devargs,
                           (wanted != 0 ? wanted : 256) + port->overhead_bytes, wanted != 0 ? wanted : 256);
    }
    port->roce_mtu = largest_roce_mtu(port);
    if (port->roce_mtu != 0 && wanted <= port->roce_mtu) {
        port->roce_mtu = wanted != 0 ? wanted : port->roce_mtu;
        return true;
    }
    wanted = wanted != 0 ? wanted : 256;
    return psc_io_fail(
        error, PSC_IO_MTU_TOO_SMALL,
        "RoCE MTU %u wants a link MTU of %u, interface %s has %u: `ip link set %s mtu %u` or lower data.mtu",
        wanted, wanted + port->overhead_bytes, interface, port->link_mtu, interface,
        wanted + port->overhead_bytes);
}

static bool setup_failed(const struct psc_io_port *port, const char *step, int rc, struct psc_io_error *error)
{
    return psc_io_fail(error, PSC_IO_PORT_SETUP, "device \"%s\" cannot be set up: %s says %s", port->devargs,
                       step, strerror(-rc));
}

static bool configure(const struct psc_io_port *port, struct psc_io_error *error)
{
    const struct rte_eth_conf config = {.txmode.offloads = RTE_ETH_TX_OFFLOAD_MULTI_SEGS};
    int rc = rte_eth_dev_configure(port->port_id, port->rx_queues, port->tx_queues, &config);

    return rc == 0 || setup_failed(port, "rte_eth_dev_configure", rc, error);
}

bool psc_io_port_open(struct psc_io_port *port, const struct psc_io_config *config, uint32_t index,
                      struct psc_io_error *error)
{
    const struct psc_io_port_config *port_config = &config->ports[index];
    struct rte_eth_dev_info info;
    struct rte_ether_addr mac;
    int rc;

    port->pci = port_config->pci;
    port->devargs = port_config->devargs;
    port->overhead_bytes =
        psc_ip_is_v4(&config->lane.local.ip) ? PSC_IO_ROCE_OVERHEAD_V4 : PSC_IO_ROCE_OVERHEAD_V6;
    port->rx_ring_packets = port_config->rx_ring_packets;
    port->tx_ring_packets = port_config->tx_ring_packets;
    if (!attach(port_config, error) || !find_port(port, port_config, error))
        return false;
    rc = rte_eth_dev_info_get(port->port_id, &info);
    if (rc != 0)
        return setup_failed(port, "rte_eth_dev_info_get", rc, error);
    /* Emits are chains of three segments. Measured with 22.11: af_packet, ring, memif and tap take chains,
     * null and pcap do not say that they do. */
    if ((info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) == 0)
        return psc_io_fail(error, PSC_IO_PORT_SETUP,
                           "device \"%s\" cannot be used: its driver %s does not send frames of several "
                           "segments (RTE_ETH_TX_OFFLOAD_MULTI_SEGS), choose another device",
                           port->devargs, info.driver_name);
    port->rx_queues = port->tx_queues = 1;
    if (!configure(port, error))
        return false;
    rc = rte_eth_dev_adjust_nb_rx_tx_desc(port->port_id, &port->rx_ring_packets, &port->tx_ring_packets);
    if (rc != 0)
        return setup_failed(port, "rte_eth_dev_adjust_nb_rx_tx_desc", rc, error);
    rc = rte_eth_macaddr_get(port->port_id, &mac);
    if (rc != 0)
        return setup_failed(port, "rte_eth_macaddr_get", rc, error);
    memcpy(port->mac.b, mac.addr_bytes, sizeof port->mac.b);
    return choose_mtu(port, &info, config->roce_mtu, error);
}

/* ---- How packets find their lane. ---- */

#define AF_PACKET_DRIVER "net_af_packet"

/* With qpairs=N, net_af_packet's N sockets share the interface's frames by their flow, whatever is asked for.
 */
static void choose_queues(struct psc_io_port *port, const struct rte_eth_dev_info *info)
{
    bool af_packet = strcmp(info->driver_name, AF_PACKET_DRIVER) == 0;
    uint16_t lanes = (uint16_t)port->lane_count;

    port->rx_queues = port->tx_queues = 1;
    if (port->steering == PSC_IO_STEER_QPN || port->steering == PSC_IO_STEER_ADDRESS)
        port->rx_queues = port->tx_queues = lanes;
    if (port->steering != PSC_IO_STEER_DISPATCHER)
        return;
    if (af_packet)
        port->rx_queues = info->max_rx_queues;
    /* What goes out by a second queue of another virtual device may go where nobody reads. */
    if ((af_packet || port->pci) && info->max_tx_queues >= lanes)
        port->tx_queues = lanes;
}

static void refuse_steering(struct psc_io_port *port, const char *why)
{
    size_t used = strlen(port->why);

    snprintf(port->why + used, sizeof port->why - used, "%s%s", used > 0 ? "; " : "", why);
}

/* The first steering from `how` on that may work. */
static bool next_steering(struct psc_io_port *port, const struct psc_io_config *config, uint32_t index,
                          enum psc_io_steering how, struct psc_io_error *error)
{
    const bool has_dispatcher = config->ports[index].dispatcher_core != PSC_IO_NO_CORE;
    char why[PSC_IO_WHY_BYTES];

    for (; how < PSC_IO_STEER_DISPATCHER; how++) {
        if (config->steering != PSC_IO_STEER_AUTO && config->steering != how)
            continue;
        if (psc_io_may_steer(port, how, why)) {
            port->steering = how;
            return true;
        }
        refuse_steering(port, why);
    }
    port->steering = PSC_IO_STEER_DISPATCHER;
    if (has_dispatcher &&
        (config->steering == PSC_IO_STEER_AUTO || config->steering == PSC_IO_STEER_DISPATCHER))
        return true;
    return psc_io_fail(error, PSC_IO_PORT_SETUP,
                       "device \"%s\" cannot sort packets to its %u lanes (%s): give it a core that does, by "
                       "port.dispatcher_core and lanes.steering = \"auto\", or each lane a port of its own",
                       port->devargs, port->lane_count,
                       port->why[0] != '\0' ? port->why : "no dispatcher_core");
}

bool psc_io_port_plan(struct psc_io_port *port, const struct psc_io_config *config, uint32_t index,
                      struct psc_io_error *error)
{
    struct rte_eth_dev_info info;
    int rc = rte_eth_dev_info_get(port->port_id, &info);

    if (rc != 0)
        return setup_failed(port, "rte_eth_dev_info_get", rc, error);
    port->steering = PSC_IO_STEER_PORT;
    if (port->lane_count > 1 && !next_steering(port, config, index, PSC_IO_STEER_QPN, error))
        return false;
    choose_queues(port, &info);
    if (port->steering == PSC_IO_STEER_PORT && strcmp(info.driver_name, AF_PACKET_DRIVER) == 0 &&
        info.max_rx_queues > 1)
        return psc_io_fail(
            error, PSC_IO_PORT_SETUP,
            "device \"%s\" shares its frames between %u sockets by their flow, and its one lane reads "
            "one: leave qpairs out, or give it more lanes and a dispatcher_core",
            port->devargs, info.max_rx_queues);
    return true;
}

/* ---- Start and stop. ---- */

/* The driver is asked to report every frame as sent, for one that reports each 32nd keeps up to 31 of a lane
 * that has fallen silent. One that does not take that gets its own default. */
static int setup_tx_queue(struct psc_io_port *port, uint16_t queue, int socket)
{
    struct rte_eth_txconf each = {.tx_rs_thresh = 1};
    int rc = rte_eth_tx_queue_setup(port->port_id, queue, port->tx_ring_packets, (unsigned)socket, &each);

    port->gives_back = rc == 0;
    if (rc == 0)
        return 0;
    return rte_eth_tx_queue_setup(port->port_id, queue, port->tx_ring_packets, (unsigned)socket, NULL);
}

/* Lending a slot's payload wants a port that lets go of it without another frame to send: else the slot may
 * stay held for ever, its next contribution is refused until the worker's retries are used up, and nothing is
 * sent that would free it. So either the driver gives mbufs back when asked, or it is done with them when it
 * has taken them (measured with 22.11: af_packet has copied the frame and holds no mbuf), or we copy. */
static void choose_payload(struct psc_io_port *port, const char *driver)
{
    port->gives_back = port->gives_back && rte_eth_tx_done_cleanup(port->port_id, 0, 0) >= 0;
    port->lends_payload = port->gives_back || strcmp(driver, AF_PACKET_DRIVER) == 0;
}

/* Queue k is the k-th lane's, in its own memory; where nobody sorts, all are read into the first lane's. */
static int setup_queues(struct psc_io_port *port)
{
    bool sorted = port->steering == PSC_IO_STEER_QPN || port->steering == PSC_IO_STEER_ADDRESS;
    struct psc_io_lane *lanes[PSC_IO_MAX_LANES];
    uint16_t count = 0;
    int rc = 0;

    for (uint32_t i = 0; i < PSC_IO_MAX_LANES; i++)
        if (port->lanes[i] != NULL)
            lanes[count++] = port->lanes[i];
    for (uint16_t queue = 0; queue < count; queue++) {
        lanes[queue]->rx_queue = sorted ? queue : 0;
        lanes[queue]->tx_queue = port->tx_queues == count ? queue : 0;
    }
    for (uint16_t queue = 0; queue < port->rx_queues && rc == 0; queue++) {
        const struct psc_io_lane *lane = sorted ? lanes[queue] : port->host;

        rc = rte_eth_rx_queue_setup(port->port_id, queue, port->rx_ring_packets, (unsigned)lane->socket, NULL,
                                    lane->rx_mempool);
    }
    for (uint16_t queue = 0; queue < port->tx_queues && rc == 0; queue++)
        rc = setup_tx_queue(port, queue, lanes[queue % count]->socket);
    return rc;
}

bool psc_io_port_start_queues(struct psc_io_port *port, struct psc_io_error *error)
{
    int rc;

    if (!configure(port, error))
        return false;
    rc = setup_queues(port);
    if (rc != 0)
        return setup_failed(port, "the setup of its queues", rc, error);
    rc = rte_eth_dev_start(port->port_id);
    return rc == 0 || setup_failed(port, "rte_eth_dev_start", rc, error);
}

bool psc_io_port_start(struct psc_io_port *port, const struct psc_io_config *config, uint32_t index,
                       struct psc_io_error *error)
{
    struct rte_eth_dev_info info;
    char why[PSC_IO_WHY_BYTES];
    int rc = rte_eth_dev_info_get(port->port_id, &info);

    if (rc != 0)
        return setup_failed(port, "rte_eth_dev_info_get", rc, error);
    while (psc_io_port_start_queues(port, error)) {
        bool rules = port->steering == PSC_IO_STEER_QPN || port->steering == PSC_IO_STEER_ADDRESS;

        if (!rules || psc_io_steer(port, port->steering, why)) {
            choose_payload(port, info.driver_name);
            return true;
        }
        refuse_steering(port, why);
        rc = rte_eth_dev_stop(port->port_id);
        if (rc != 0)
            return setup_failed(port, "rte_eth_dev_stop", rc, error);
        if (!next_steering(port, config, index, port->steering + 1, error))
            return false;
        choose_queues(port, &info);
    }
    return false;
}

/* None can be helped when it fails: the process is on its way out. */
void psc_io_port_close(struct psc_io_port *port)
{
    psc_io_unsteer(port);
    (void)rte_eth_dev_stop(port->port_id);
    (void)rte_eth_dev_close(port->port_id);
}
