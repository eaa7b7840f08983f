/* bench/load: the workers' port, any virtual device of DPDK's, with one queue. Frames are in one mbuf each,
 * written just before they leave: as a NIC, or whoever stands at the other end of a memif, hands them over.
 */
#include "load.h"

#include <errno.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define MEMPOOL_CACHE 128
#define SEND_FRAMES   4096u
/* EAL keeps pointers into its arguments. */
#define ARGUMENTS      16
#define ARGUMENT_BYTES 256

uint64_t load_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now); /* from the vDSO, where the kernel trusts the TSC: no system call */
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool load_fail(struct load_error *error, const char *format, ...)
{
    va_list values;

    va_start(values, format);
    vsnprintf(error->text, sizeof error->text, format, values);
    va_end(values);
    return false;
}

/* ---- Start and stop ---- */

static char argument_text[ARGUMENTS][ARGUMENT_BYTES];
static char *arguments[ARGUMENTS + 1];
static int argument_count;

__attribute__((format(printf, 1, 2))) static void add_argument(const char *format, ...)
{
    va_list values;

    va_start(values, format);
    vsnprintf(argument_text[argument_count], ARGUMENT_BYTES, format, values);
    va_end(values);
    arguments[argument_count] = argument_text[argument_count];
    argument_count++;
}

/* Lcore 0 is this thread, on `core` or wherever the process may run; lcore 1 is a lane's, if there is one. */
bool load_eal_start(const struct load_options *options, struct load_error *error)
{
    add_argument("psc_load");
    if (options->core == LOAD_NO_CORE) {
        cpu_set_t allowed;
        char list[ARGUMENT_BYTES - 32] = "";
        size_t used = 0;

        sched_getaffinity(0, sizeof allowed, &allowed);
        for (unsigned cpu = 0; cpu < CPU_SETSIZE && used < sizeof list - 8; cpu++)
            if (CPU_ISSET(cpu, &allowed))
                used += (size_t)snprintf(list + used, sizeof list - used, "%s%u", used == 0 ? "" : ",", cpu);
        add_argument("--lcores=0@(%s)", list);
    } else if (options->lane_core == LOAD_NO_CORE)
        add_argument("--lcores=0@%u", options->core);
    else
        add_argument("--lcores=0@%u,1@%u", options->core, options->lane_core);
    add_argument(options->huge_pages ? "--in-memory" : "--no-huge");
    if (!options->huge_pages)
        add_argument("--no-shconf");
    add_argument("-m%u", options->memory_mib);
    add_argument("--iova-mode=va");
    add_argument("--no-telemetry");
    add_argument("--no-pci");
    add_argument("--log-level=error");
    if (rte_eal_init(argument_count, arguments) < 0)
        return load_fail(error, "EAL does not start: %s", rte_strerror(rte_errno));
    return true;
}

static struct rte_mempool *make_mempool(const char *name, uint32_t frames)
{
    return rte_pktmbuf_pool_create(name, frames, MEMPOOL_CACHE, 0, RTE_PKTMBUF_HEADROOM + LOAD_FRAME_ROOM,
                                   SOCKET_ID_ANY);
}

static int start_device(struct load_port *port, uint16_t ring_packets)
{
    struct rte_eth_conf config = {0};
    uint16_t rx_packets = ring_packets, tx_packets = ring_packets;
    int rc = rte_eth_dev_configure(port->port_id, 1, 1, &config);

    if (rc == 0)
        rc = rte_eth_dev_adjust_nb_rx_tx_desc(port->port_id, &rx_packets, &tx_packets);
    if (rc == 0)
        rc = rte_eth_rx_queue_setup(port->port_id, 0, rx_packets, (unsigned)SOCKET_ID_ANY, NULL,
                                    port->rx_mempool);
    if (rc == 0)
        rc = rte_eth_tx_queue_setup(port->port_id, 0, tx_packets, (unsigned)SOCKET_ID_ANY, NULL);
    return rc == 0 ? rte_eth_dev_start(port->port_id) : rc;
}

bool load_port_open(struct load_port *port, const char *name, uint16_t ring_packets, struct psc_mac *mac,
                    struct load_error *error)
{
    struct rte_ether_addr address;

    prctl(PR_SET_TIMERSLACK, 1000ul); /* else the kernel may add 50 us to every sleep */
    if (rte_eth_dev_get_port_by_name(name, &port->port_id) != 0)
        return load_fail(error, "device %s is not there", name);
    port->rx_mempool = make_mempool("load_rx", ring_packets + 8u * MEMPOOL_CACHE);
    port->tx_mempool = make_mempool("load_tx", SEND_FRAMES);
    if (port->rx_mempool == NULL || port->tx_mempool == NULL)
        return load_fail(error, "no memory for packet buffers: raise memory_mib");
    int rc = start_device(port, ring_packets);
    if (rc == 0)
        rc = rte_eth_macaddr_get(port->port_id, &address);
    if (rc != 0)
        return load_fail(error, "device %s cannot be set up: %s", name, strerror(-rc));
    memcpy(mac->b, address.addr_bytes, sizeof mac->b);
    return true;
}

bool load_port_attach(struct load_port *port, const char *devargs, uint16_t ring_packets, struct psc_mac *mac,
                      struct load_error *error)
{
    char name[RTE_ETH_NAME_MAX_LEN];
    int rc = rte_dev_probe(devargs);

    if (rc != 0)
        return load_fail(error, "device %s cannot be opened: %s", devargs, strerror(-rc));
    snprintf(name, sizeof name, "%.*s", (int)strcspn(devargs, ","), devargs);
    return load_port_open(port, name, ring_packets, mac, error);
}

void load_port_close(struct load_port *port)
{
    (void)rte_eth_dev_stop(port->port_id);
    (void)rte_eth_dev_close(port->port_id);
    rte_pktmbuf_free_bulk(port->pending + port->pending_begin, port->pending_end - port->pending_begin);
    rte_mempool_free(port->rx_mempool);
    rte_mempool_free(port->tx_mempool);
}

uint32_t load_port_mbufs(const struct load_port *port)
{
    return rte_mempool_in_use_count(port->rx_mempool) + rte_mempool_in_use_count(port->tx_mempool);
}

/* ---- A turn ---- */

/* splitmix64 (Steele, Lea, Flood, 2014): the same seed loses the same packets. */
static bool lost(struct load_port *port)
{
    if (port->loss_per_million == 0)
        return false;
    uint64_t z = port->dice += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % 1000000 < port->loss_per_million;
}

static uint32_t receive_burst(struct load_port *port, struct load *load, uint64_t now_ns)
{
    struct rte_mbuf *mbufs[LOAD_BURST];
    uint32_t n = rte_eth_rx_burst(port->port_id, 0, mbufs, LOAD_BURST);

    for (uint32_t i = 0; i < n; i++) {
        struct rte_mbuf *m = mbufs[i];

        load->counters.rx_packets++;
        load->counters.rx_bytes += m->pkt_len;
        if (lost(port))
            load->counters.lost_rx_packets++;
        else if (m->pkt_len <= sizeof port->scratch) /* a chain, from a lane on a ring, is copied together */
            load_receive(load, rte_pktmbuf_read(m, 0, m->pkt_len, port->scratch), m->pkt_len, now_ns);
    }
    rte_pktmbuf_free_bulk(mbufs, n);
    return n;
}

static void append(struct rte_mbuf *m, const uint8_t *bytes, uint32_t count)
{
    if (count > 0)
        memcpy(rte_pktmbuf_append(m, (uint16_t)count), bytes, count);
}

/* How many frames may be added: none while older ones wait for the port. */
static uint32_t room(const struct load_port *port)
{
    return port->pending_begin == port->pending_end ? LOAD_BURST : 0;
}

static void add(struct load_port *port, const struct psc_emit *emit)
{
    struct rte_mbuf *m = rte_pktmbuf_alloc(port->tx_mempool);

    if (m == NULL)
        return; /* as if the wire had lost it: it will be sent again */
    append(m, emit->header, emit->header_bytes);
    append(m, emit->payload, emit->payload_bytes);
    append(m, emit->trailer, emit->trailer_bytes);
    if (port->pending_begin == port->pending_end)
        port->pending_begin = port->pending_end = 0;
    port->pending[port->pending_end++] = m;
}

static uint32_t flush(struct load_port *port)
{
    uint32_t offered = port->pending_end - port->pending_begin;
    uint32_t taken = 0;

    if (offered > 0)
        taken = rte_eth_tx_burst(port->port_id, 0, port->pending + port->pending_begin, (uint16_t)offered);
    port->pending_begin += taken;
    return taken;
}

static uint32_t send_burst(struct load_port *port, struct load *load, uint64_t now_ns)
{
    struct psc_emit emits[LOAD_BURST];
    uint32_t n = load_emit(load, emits, room(port), now_ns);

    for (uint32_t i = 0; i < n; i++) {
        if (lost(port)) {
            load->counters.lost_tx_packets++;
            continue;
        }
        load->counters.tx_packets++;
        load->counters.tx_bytes += emits[i].header_bytes + emits[i].payload_bytes + emits[i].trailer_bytes;
        add(port, &emits[i]);
    }
    return flush(port);
}

bool load_port_turn(struct load_port *port, struct load *load)
{
    uint64_t now_ns = load_now_ns();
    uint32_t received = receive_burst(port, load, now_ns);

    load_post(load, now_ns);
    load_expire(load, now_ns);
    bool busy = send_burst(port, load, now_ns) > 0 || received > 0;
    if (!busy && port->idle_sleep_us > 0) {
        struct timespec pause = {.tv_nsec = (long)port->idle_sleep_us * 1000};

        nanosleep(&pause, NULL);
    }
    return busy;
}

/* What testpmd is given: the same frames, built in the same way, and nothing is done with what comes back. */
bool load_port_blind_turn(struct load_port *port, struct load *load, uint32_t in_flight)
{
    struct rte_mbuf *mbufs[LOAD_BURST];
    struct psc_emit emit;
    uint32_t n = rte_eth_rx_burst(port->port_id, 0, mbufs, LOAD_BURST);

    for (uint32_t i = 0; i < n; i++)
        load->counters.rx_bytes += mbufs[i]->pkt_len;
    rte_pktmbuf_free_bulk(mbufs, n);
    load->counters.rx_packets += n;
    for (uint32_t left = room(port); left > 0; left--) {
        if (load->counters.tx_packets - load->counters.rx_packets >= in_flight)
            break;
        load_blind_frame(load, load->counters.tx_packets++, &emit);
        add(port, &emit);
    }
    return flush(port) > 0 || n > 0;
}
