/* memif: shared memory to another process. Its driver says neither what its buffers carry nor how many its
 * rings hold (DPDK 22.11 reports the MTU of Ethernet, 1500, and any number of descriptors), so both come from
 * the device's own arguments: bsize, bytes of a buffer, and rsize, the ring's binary logarithm. */
#include "psc_io_internal.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_BUFFER_BYTES 2048 /* of the driver, as its guide says */
#define DEFAULT_RING_LOG2    10

bool psc_io_memif_is(const char *devargs)
{
    return strncmp(devargs, "net_memif", strlen("net_memif")) == 0;
}

/* The number behind ",name=". */
static uint32_t number_of(const char *devargs, const char *name, uint32_t otherwise)
{
    const char *at = strstr(devargs, name);

    return at != NULL ? (uint32_t)strtoul(at + strlen(name), NULL, 10) : otherwise;
}

bool psc_io_memif_fit(struct psc_io_port *port, uint32_t wanted_roce_mtu, struct psc_io_error *error)
{
    uint32_t buffer_bytes = number_of(port->devargs, ",bsize=", DEFAULT_BUFFER_BYTES);
    uint32_t ring_log2 = number_of(port->devargs, ",rsize=", DEFAULT_RING_LOG2);
    uint32_t wanted_bytes = (wanted_roce_mtu != 0 ? wanted_roce_mtu : 256) + port->overhead_bytes;

    port->link_mtu = buffer_bytes > RTE_ETHER_HDR_LEN ? buffer_bytes - RTE_ETHER_HDR_LEN : 0;
    if (port->link_mtu < wanted_bytes)
        return psc_io_fail(error, PSC_IO_MTU_TOO_SMALL,
                           "RoCE MTU %u wants memif buffers of %u bytes, device \"%s\" has %u: give it "
                           "bsize=8192 or lower data.mtu",
                           wanted_bytes - port->overhead_bytes, wanted_bytes + RTE_ETHER_HDR_LEN,
                           port->devargs, buffer_bytes);
    if (port->rx_ring_packets != 1u << ring_log2 || port->tx_ring_packets != 1u << ring_log2)
        return psc_io_fail(
            error, PSC_IO_PORT_SETUP,
            "port.rx_ring_packets = %u and port.tx_ring_packets = %u are not what device \"%s\" "
            "holds: its rsize=%u is %u, let all three agree",
            port->rx_ring_packets, port->tx_ring_packets, port->devargs, ring_log2, 1u << ring_log2);
    return true;
}
