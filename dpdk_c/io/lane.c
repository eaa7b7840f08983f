/* The polling loop of one lane: receive a burst, give it to the core with the time, send what the core
 * answers. Runs on the lane's own core and touches nothing that another core touches but two rings. This is
 * where both ends of the story "packet in -> result out" meet the wire. */
#include "psc_io_internal.h"

#include <rte_cycles.h>
#include <rte_launch.h>
#include <rte_malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define COMMAND_RING_ENTRIES 1024
#define EVENT_RING_ENTRIES   1024

/* ---- Time ---- */

static uint64_t kernel_ns(clockid_t which)
{
    struct timespec now;

    clock_gettime(which, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Takes the kernel's time again, unless we were paused meanwhile: then false, and the next time will do.
 * Between two of these the TSC's error of some 10^-5 adds up, and somebody may set CLOCK_REALTIME. */
static bool clock_align(struct psc_io_clock *clock)
{
    uint64_t begin = rte_rdtsc();
    uint64_t ns = kernel_ns(CLOCK_MONOTONIC);
    uint64_t realtime_ns = kernel_ns(CLOCK_REALTIME);
    uint64_t end = rte_rdtsc();

    if (end - begin > rte_get_tsc_hz() / 10000)
        return false;
    clock->ns_base = ns;
    clock->tsc_base = end;
    clock->realtime_offset_ns = realtime_ns - ns;
    return true;
}

static void clock_init(struct psc_io_clock *clock)
{
    while (!clock_align(clock))
        ;
    clock->ns_per_tick_q32 = (uint64_t)(((unsigned __int128)1000000000u << 32) / rte_get_tsc_hz());
}

static uint64_t clock_now_ns(struct psc_io_clock *clock)
{
    unsigned __int128 ticks = rte_rdtsc() - clock->tsc_base;
    uint64_t ns = clock->ns_base + (uint64_t)(ticks * clock->ns_per_tick_q32 >> 32);

    clock->last_ns = RTE_MAX(clock->last_ns, ns);
    return clock->last_ns;
}

/* ---- Commands and events ---- */

static void tell_control(struct psc_io_lane *lane, const struct psc_io_event *event)
{
    uint64_t one = 1;

    /* The caller has looked that the ring has room. The write is a system call, but events are not the hot
     * path: a handful per epoch. */
    rte_ring_enqueue_elem(lane->events, (void *)(uintptr_t)event, sizeof *event);
    if (write(lane->event_fd, &one, sizeof one) < 0)
        return; /* the eventfd's counter is full: it is readable already */
}

static void apply_commands(struct psc_io_lane *lane, uint64_t now_ns)
{
    struct psc_command command;

    while (rte_ring_free_count(lane->events) > 0 &&
           rte_ring_dequeue_elem(lane->commands, &command, sizeof command) == 0) {
        struct psc_io_event refusal = {.rejected = 1, .rejected_kind = command.kind};

        if (psc_lane_apply(lane->lane, &command, now_ns))
            continue;
        refusal.event.job = command.job;
        refusal.event.pool = command.qp.pool;
        refusal.event.rank = command.kind == PSC_CMD_CONNECT ? command.qp.rank : command.rank;
        tell_control(lane, &refusal);
    }
}

static void publish_events(struct psc_io_lane *lane)
{
    struct psc_io_event event = {.rejected = 0};

    while (rte_ring_free_count(lane->events) > 0 && psc_lane_next_event(lane->lane, &event.event))
        tell_control(lane, &event);
}

/* ---- The loop ---- */

/* Mbufs as contiguous frames. One that cannot be made contiguous is a counted drop. */
static uint32_t as_frames(struct psc_io_lane *lane, struct rte_mbuf **mbufs, uint32_t n,
                          struct psc_frame *frames)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct rte_mbuf *m = mbufs[i];

        if (m->nb_segs > 1 && rte_pktmbuf_linearize(m) != 0) {
            lane->stats->drops[PSC_DROP_NO_BUFFER]++;
            continue;
        }
        frames[kept++] =
            (struct psc_frame){.data = rte_pktmbuf_mtod(m, const uint8_t *), .bytes = m->data_len};
    }
    return kept;
}

static void housekeeping(struct psc_io_lane *lane, uint64_t now_ns)
{
    lane->next_housekeeping_ns = now_ns + PSC_IO_HOUSEKEEPING_NS;
    /* A NIC gives transmitted mbufs back when it needs descriptors; slots must be free sooner. */
    if (lane->port->gives_back && lane->outbox == NULL)
        rte_eth_tx_done_cleanup(lane->tx.port_id, lane->tx.queue, 0);
    if (clock_align(&lane->clock))
        psc_lane_set_realtime_offset(lane->lane, lane->clock.realtime_offset_ns);
    lane->stats->mbufs_in_use = psc_io_lane_mbufs(lane);
}

/* The next burst for this lane. */
static uint32_t receive(struct psc_io_lane *lane, struct rte_mbuf **mbufs)
{
    switch (lane->port->steering) {
    case PSC_IO_STEER_DISPATCHER:
        return rte_ring_sc_dequeue_burst(lane->inbox, (void **)mbufs, PSC_IO_BURST, NULL);
    case PSC_IO_STEER_QPN:
    case PSC_IO_STEER_ADDRESS:
        return psc_io_receive_steered(lane, mbufs);
    default:
        return rte_eth_rx_burst(lane->port->port_id, lane->rx_queue, mbufs, PSC_IO_BURST);
    }
}

/* Packet in -> result out. Returns whether anything came or went. */
static bool turn(struct psc_io_lane *lane, uint64_t now_ns)
{
    struct rte_mbuf *mbufs[PSC_IO_BURST];
    struct psc_frame frames[PSC_IO_BURST];
    struct psc_emit emits[PSC_IO_BURST];
    uint32_t received, frame_count, emit_count;
    bool busy;

    if (lane->busy_since_ns != 0)
        lane->stats->busy_ns += now_ns - lane->busy_since_ns;
    received = receive(lane, mbufs);
    frame_count = as_frames(lane, mbufs, received, frames);
    emit_count = psc_lane_poll(lane->lane, frames, frame_count, now_ns, emits, psc_io_tx_room(&lane->tx));
    for (uint32_t i = 0; i < emit_count; i++)
        psc_io_tx_add(&lane->tx, &emits[i]);
    emit_count = psc_io_tx_flush(&lane->tx, lane->stats);
    if (received > 0)
        rte_pktmbuf_free_bulk(mbufs, received);
    busy = received > 0 || emit_count > 0;
    lane->busy_since_ns = busy ? now_ns : 0;
    return busy;
}

/* Gives the core to others for a while: for machines where lanes and workers share cores. A packet that
 * arrives meanwhile waits up to idle_sleep_us plus the kernel's wake-up. */
static void sleep_idle(const struct psc_io_lane *lane)
{
    struct timespec pause = {.tv_nsec = (long)lane->idle_sleep_us * 1000};

    nanosleep(&pause, NULL);
}

bool psc_io_lane_turn(struct psc_io_lane *lane)
{
    uint64_t now_ns = clock_now_ns(&lane->clock);
    bool busy;

    apply_commands(lane, now_ns);
    busy = turn(lane, now_ns);
    publish_events(lane);
    if (now_ns >= lane->next_housekeeping_ns)
        housekeeping(lane, now_ns);
    return busy;
}

int psc_io_lane_main(void *argument)
{
    struct psc_io_lane *lane = argument;

    /* Else the kernel may add 50 us to every sleep. */
    prctl(PR_SET_TIMERSLACK, 1000ul);
    while (!__atomic_load_n(&lane->stop, __ATOMIC_ACQUIRE)) {
        bool busy = psc_io_lane_turn(lane);

        if (!busy && lane->idle_sleep_us > 0)
            sleep_idle(lane);
    }
    __atomic_store_n(&lane->ended, 1, __ATOMIC_RELEASE);
    return 0;
}

/* ---- Making and freeing, by EAL's main thread ---- */

static void *lane_alloc(void *context, size_t bytes)
{
    const struct psc_io_lane *lane = context;

    return rte_zmalloc_socket("psc_lane", bytes, 64, lane->socket);
}

static void lane_release(void *context, void *memory)
{
    (void)context;
    rte_free(memory);
}

static struct rte_ring *make_ring(const char *what, uint32_t number, size_t elem_bytes, unsigned entries,
                                  int socket)
{
    char name[RTE_RING_NAMESIZE];

    snprintf(name, sizeof name, "psc_%s_%u", what, number);
    return rte_ring_create_elem(name, (unsigned)elem_bytes, entries, socket, RING_F_SP_ENQ | RING_F_SC_DEQ);
}

static bool make_buffers(struct psc_io_lane *lane, uint32_t number)
{
    lane->commands =
        make_ring("commands", number, sizeof(struct psc_command), COMMAND_RING_ENTRIES, lane->socket);
    lane->events = make_ring("events", number, sizeof(struct psc_io_event), EVENT_RING_ENTRIES, lane->socket);
    return lane->commands != NULL && lane->events != NULL;
}

static bool no_buffers(uint32_t number, const struct psc_io_config *config, struct psc_io_error *error)
{
    return psc_io_fail(error, PSC_IO_MEMORY,
                       "lane %u cannot get its packet buffers from the %u MiB of memory.memory_mib: raise it",
                       number, config->memory_mib);
}

/* A lane that shares its port may have a whole ring of it in its inbox. Into the first one's mempool the
 * dispatcher receives for all. */
static unsigned receive_mbufs(const struct psc_io_lane *lane, unsigned inbox_packets)
{
    const struct psc_io_port *port = lane->port;
    unsigned lanes = port->host == lane ? port->lane_count : 1;
    unsigned queues = port->host == lane ? port->rx_queues : 1;

    return queues * port->rx_ring_packets + lanes * inbox_packets +
           (lanes + 1u) * (2u * PSC_IO_BURST + 2u * PSC_IO_RX_MEMPOOL_CACHE);
}

bool psc_io_lane_make_receive(struct psc_io_lane *lane, uint32_t number, const struct psc_io_config *config,
                              struct psc_io_error *error)
{
    const struct psc_io_port *port = lane->port;
    bool dispatched = port->steering == PSC_IO_STEER_DISPATCHER, alone = port->lane_count == 1;
    unsigned inbox_packets = alone ? 0 : rte_align32pow2(port->rx_ring_packets);
    char name[RTE_MEMPOOL_NAMESIZE];

    if (!alone) {
        snprintf(name, sizeof name, "psc_inbox_%u", number);
        lane->inbox = rte_ring_create(name, inbox_packets, lane->socket,
                                      RING_F_SC_DEQ | (dispatched ? RING_F_SP_ENQ : 0));
        if (lane->inbox == NULL)
            return no_buffers(number, config, error);
    }
    if (dispatched && port->host != lane)
        return true;
    snprintf(name, sizeof name, "psc_rx_%u", number);
    lane->rx_mempool = psc_io_rx_mempool(name, receive_mbufs(lane, inbox_packets), PSC_IO_RX_MEMPOOL_CACHE,
                                         PSC_IO_RX_ROOM, lane->socket);
    return lane->rx_mempool != NULL || no_buffers(number, config, error);
}

/* lane->stats, port, event_fd and lcore have been set by the caller. */
bool psc_io_lane_init(struct psc_io_lane *lane, uint32_t number, const struct psc_io_config *config,
                      struct psc_io_error *error)
{
    const struct psc_io_lane_config *own = &config->lanes[number];
    struct psc_lane_config lane_config = config->lane;

    lane->number = number;
    lane->ip = own->ip;
    lane->socket = (int)rte_lcore_to_socket_id(lane->lcore);
    lane->idle_sleep_us = config->idle_sleep_us;
    lane->memory = (struct psc_memory){.alloc = lane_alloc, .release = lane_release, .context = lane};
    lane_config.local.mac = lane->port->mac;
    lane_config.local.ip = own->ip;
    lane_config.prefix_bits = own->prefix_bits;
    lane_config.gateway = own->gateway;
    lane_config.silent_host = !lane->port->own_addresses && lane->port->host != lane;
    lane_config.lane = (uint8_t)number;
    clock_init(&lane->clock);
    lane_config.realtime_offset_ns = lane->clock.realtime_offset_ns;
    if (!make_buffers(lane, number))
        return no_buffers(number, config, error);
    lane->lane = psc_lane_new(&lane_config, &lane->memory, lane->stats);
    if (lane->lane == NULL)
        return psc_io_fail(error, PSC_IO_MEMORY,
                           "lane %u cannot get its tables from the %u MiB of memory.memory_mib: raise it",
                           number, config->memory_mib);
    return true;
}

bool psc_io_lane_init_tx(struct psc_io_lane *lane, uint32_t number, const struct psc_io_config *config,
                         struct psc_io_error *error)
{
    const struct psc_io_port *port = lane->port;

    if (port->steering == PSC_IO_STEER_DISPATCHER && port->tx_queues < port->lane_count) {
        char name[RTE_RING_NAMESIZE];

        snprintf(name, sizeof name, "psc_outbox_%u", number);
        lane->outbox = rte_ring_create(name, rte_align32pow2(port->tx_ring_packets), lane->socket,
                                       RING_F_SP_ENQ | RING_F_SC_DEQ);
        if (lane->outbox == NULL)
            return no_buffers(number, config, error);
    }
    return psc_io_tx_init(&lane->tx, lane, number) || no_buffers(number, config, error);
}

void psc_io_lane_free(struct psc_io_lane *lane)
{
    if (lane->lane != NULL)
        psc_lane_free(lane->lane);
    psc_io_tx_free(&lane->tx);
    rte_ring_free(lane->commands);
    rte_ring_free(lane->events);
    rte_ring_free(lane->inbox);
    rte_ring_free(lane->outbox);
    rte_mempool_free(lane->rx_mempool);
}

uint32_t psc_io_lane_mbufs(const struct psc_io_lane *lane)
{
    uint32_t received = lane->rx_mempool != NULL ? rte_mempool_in_use_count(lane->rx_mempool) : 0;

    return received + rte_mempool_in_use_count(lane->tx.mempool);
}
