/* Ports: a device by its EAL argument, its queues, and what path MTU its link carries. Called by EAL's main
 * thread only, before and after the lanes run. */
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

bool psc_io_port_open(struct psc_io_port *port, const struct psc_io_config *config, uint32_t index,
                      struct psc_io_error *error)
{
    const struct psc_io_port_config *port_config = &config->ports[index];
    struct rte_eth_conf eth_config = {0};
    struct rte_eth_dev_info info;
    struct rte_ether_addr mac;
    int rc;

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
    eth_config.txmode.offloads = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
    rc = rte_eth_dev_configure(port->port_id, 1, 1, &eth_config);
    if (rc != 0)
        return setup_failed(port, "rte_eth_dev_configure", rc, error);
    rc = rte_eth_dev_adjust_nb_rx_tx_desc(port->port_id, &port->rx_ring_packets, &port->tx_ring_packets);
    if (rc != 0)
        return setup_failed(port, "rte_eth_dev_adjust_nb_rx_tx_desc", rc, error);
    rc = rte_eth_macaddr_get(port->port_id, &mac);
    if (rc != 0)
        return setup_failed(port, "rte_eth_macaddr_get", rc, error);
    memcpy(port->mac.b, mac.addr_bytes, sizeof port->mac.b);
    return choose_mtu(port, &info, config->roce_mtu, error);
}

/* The driver is asked to report every frame as sent, for one that reports each 32nd keeps up to 31 of a lane
 * that has fallen silent. One that does not take that gets its own default. */
static int setup_tx_queue(struct psc_io_port *port, int socket)
{
    struct rte_eth_txconf each = {.tx_rs_thresh = 1};
    int rc = rte_eth_tx_queue_setup(port->port_id, 0, port->tx_ring_packets, (unsigned)socket, &each);

    port->gives_back = rc == 0;
    if (rc == 0)
        return 0;
    return rte_eth_tx_queue_setup(port->port_id, 0, port->tx_ring_packets, (unsigned)socket, NULL);
}

/* Lending a slot's payload wants a port that lets go of it without another frame to send: else the slot may
 * stay held for ever, its next contribution is refused until the worker's retries are used up, and nothing is
 * sent that would free it. So either the driver gives mbufs back when asked, or it is done with them when it
 * has taken them (measured with 22.11: af_packet has copied the frame and holds no mbuf), or we copy. */
static void choose_payload(struct psc_io_port *port, const char *driver)
{
    port->gives_back = port->gives_back && rte_eth_tx_done_cleanup(port->port_id, 0, 0) >= 0;
    port->lends_payload = port->gives_back || strcmp(driver, "net_af_packet") == 0;
}

bool psc_io_port_start(struct psc_io_port *port, struct rte_mempool *rx_mempool, int socket,
                       struct psc_io_error *error)
{
    struct rte_eth_dev_info info;
    int rc =
        rte_eth_rx_queue_setup(port->port_id, 0, port->rx_ring_packets, (unsigned)socket, NULL, rx_mempool);

    if (rc != 0)
        return setup_failed(port, "rte_eth_rx_queue_setup", rc, error);
    rc = setup_tx_queue(port, socket);
    if (rc != 0)
        return setup_failed(port, "rte_eth_tx_queue_setup", rc, error);
    rc = rte_eth_dev_start(port->port_id);
    if (rc != 0)
        return setup_failed(port, "rte_eth_dev_start", rc, error);
    rc = rte_eth_dev_info_get(port->port_id, &info);
    if (rc != 0)
        return setup_failed(port, "rte_eth_dev_info_get", rc, error);
    choose_payload(port, info.driver_name);
    return true;
}

/* Neither can be helped when it fails: the process is on its way out. */
void psc_io_port_close(struct psc_io_port *port)
{
    (void)rte_eth_dev_stop(port->port_id);
    (void)rte_eth_dev_close(port->port_id);
}
