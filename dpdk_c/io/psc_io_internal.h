/* io/'s own structs: what ports, lanes and the transmit side hold. Included by io/ alone; DPDK types live
 * here. */
#ifndef PSC_IO_INTERNAL_H
#define PSC_IO_INTERNAL_H

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

#include "psc_io.h"

#define PSC_IO_BURST 64
/* Room for one frame of any MTU and for one block of net_af_packet with framesz=8192, which copies without
 * looking. */
#define PSC_IO_RX_ROOM 9216
/* RoCE's worst headers and trailers around one path MTU: over IPv4 as generous as rxe is, over IPv6 exactly
 * (40 IP, 8 UDP, 12 BTH, 16 RETH, 4 immediate, 4 ICRC). */
#define PSC_IO_ROCE_OVERHEAD_V4 80
#define PSC_IO_ROCE_OVERHEAD_V6 84
/* How often a lane renews its gauges and asks the driver to give transmitted mbufs back. */
#define PSC_IO_HOUSEKEEPING_NS 10000000u

#define PSC_IO_RX_MEMPOOL_CACHE 128
/* Lcore of a lane, and of a port's dispatcher; lcore 0 is EAL's main thread. */
#define PSC_IO_LANE_LCORE(lane)       (1u + (lane))
#define PSC_IO_DISPATCHER_LCORE(port) (1u + PSC_IO_MAX_LANES + (port))

struct psc_io_lane;
struct rte_flow;

/* Written at start, read by lanes. */
struct psc_io_port {
    uint16_t port_id;
    const char *devargs;
    uint32_t overhead_bytes; /* around a path MTU */
    struct psc_mac mac;
    uint32_t link_mtu;
    uint32_t roce_mtu;
    uint16_t rx_ring_packets, tx_ring_packets; /* as the driver has adjusted them */
    bool gives_back;                           /* transmitted mbufs come back when they are asked for */
    bool lends_payload; /* a slot's payload may be sent where it lies, else it is copied */
    bool pci;
    struct psc_io_lane *lanes[PSC_IO_MAX_LANES]; /* that it has, by their numbers; NULL: another port's */
    struct psc_io_lane *host; /* the first of them: answers for an address that they share */
    uint32_t lane_count;
    bool own_addresses; /* its lanes have different ones */
    enum psc_io_steering steering;
    char why[PSC_IO_WHY_BYTES];
    uint16_t rx_queues, tx_queues;
    struct rte_flow *rules[PSC_IO_MAX_LANES + 2];
    uint32_t rule_count;
};

/* Reads a port for its lanes. The numbers that it counts are one writer's, and others read them while it
 * counts. */
struct psc_io_dispatcher {
    /* Written at start. */
    struct psc_io_port *port; /* NULL: the port needs none */
    unsigned lcore;
    uint32_t idle_sleep_us;
    /* Written by the control core. */
    uint32_t stop;
    /* Written by the dispatcher. */
    uint32_t ended;
    uint64_t frames;                        /* handed over */
    uint64_t refused[PSC_IO_MAX_LANES];     /* frames for which the lane's ring had no room */
    struct rte_mbuf *pending[PSC_IO_BURST]; /* of lanes without a queue, not yet taken by the port */
    uint32_t pending_begin, pending_end;
    uint32_t turn; /* whose turn it is to send */
};

/* CLOCK_MONOTONIC's nanoseconds from the TSC: clock_gettime would be a system call where the kernel does not
 * trust the TSC. Written at start, then by the lane. */
struct psc_io_clock {
    uint64_t tsc_base;
    uint64_t ns_base;
    uint64_t ns_per_tick_q32;
    uint64_t last_ns;            /* the clock never goes back */
    uint64_t realtime_offset_ns; /* CLOCK_REALTIME minus CLOCK_MONOTONIC */
};

/* The transmit side of a lane. Mbufs are in stock before emits are asked for, so an emit is never lost for
 * want of one. Written by the lane alone. */
struct psc_io_tx {
    uint16_t port_id, queue;
    struct rte_ring *outbox; /* to the dispatcher, where the port has no queue for this lane; else NULL */
    /* Segments of frames. Headers and ICRC of lent payload lie in their own room, the payload's shared info
     * in the private area; a copied frame has a room that holds all of it. */
    struct rte_mempool *mempool;
    bool lends_payload;
    uint32_t segments;                        /* that a frame takes at most */
    struct rte_mbuf *stock[3 * PSC_IO_BURST]; /* as they came from the mempool */
    uint32_t stock_count;
    struct rte_mbuf *pending[PSC_IO_BURST]; /* built, not yet taken by the port */
    uint32_t pending_begin, pending_end;
};

struct psc_io_lane {
    /* Written at start. */
    struct psc_lane *lane;
    struct psc_lane_stats *stats;
    struct psc_io_port *port;
    struct rte_mempool *rx_mempool; /* NULL: the dispatcher receives into that of the port's first lane */
    struct rte_ring *inbox;         /* frames that another core has received for this lane; NULL: never any */
    struct rte_ring *outbox;        /* frames for the dispatcher to send; NULL: it has a transmit queue */
    struct rte_ring *commands;      /* of struct psc_command: control core -> lane */
    struct rte_ring *events;        /* of struct psc_io_event: lane -> control core */
    struct psc_io_clock clock;
    struct psc_memory memory;
    unsigned lcore;
    uint32_t number;
    struct psc_ip ip;
    uint16_t rx_queue, tx_queue;
    uint32_t idle_sleep_us;
    int event_fd;
    int socket;
    /* Written by the control core. */
    uint32_t stop;
    /* Written by the lane. */
    uint32_t ended; /* its last store: what it has written is whoever's acquires this */
    struct psc_io_tx tx;
    uint64_t next_housekeeping_ns;
    uint64_t busy_since_ns; /* when the turn before began, if it was busy; else 0 */
};

struct psc_io {
    struct psc_io_port ports[PSC_IO_MAX_PORTS];
    uint32_t port_count;
    struct psc_io_lane lanes[PSC_IO_MAX_LANES];
    uint32_t lane_count;
    struct psc_io_dispatcher dispatchers[PSC_IO_MAX_PORTS]; /* by port */
    int event_fd;
    bool eal_started, running;
};

/* Fills *error with a formatted sentence; returns false so that a caller can `return psc_io_fail(...)`. */
__attribute__((format(printf, 3, 4))) bool psc_io_fail(struct psc_io_error *error, enum psc_io_status status,
                                                       const char *format, ...);

/* eal.c */
bool psc_io_eal_start(const struct psc_io_config *config, struct psc_io_error *error);
/* Driver messages between begin and end go to a buffer; end returns the last line, which names the cause
 * best. */
void psc_io_capture_begin(void);
void psc_io_capture_end(char *last_line, size_t bytes);

/* port.c */
bool psc_io_port_open(struct psc_io_port *port, const struct psc_io_config *config, uint32_t index,
                      struct psc_io_error *error);
/* Which steerings are worth trying is known before lanes have buffers. */
bool psc_io_port_plan(struct psc_io_port *port, const struct psc_io_config *config, uint32_t index,
                      struct psc_io_error *error);
/* With the queues that port->steering wants, without a rule; its lanes' rx_mempools are there. */
bool psc_io_port_start_queues(struct psc_io_port *port, struct psc_io_error *error);
/* With the best steering that works. */
bool psc_io_port_start(struct psc_io_port *port, const struct psc_io_config *config, uint32_t index,
                       struct psc_io_error *error);
/* Stops it and gives back every mbuf that it still holds: DPDK promises that of a close, not of a stop. */
void psc_io_port_close(struct psc_io_port *port);

/* memif.c: what a memif says by its devargs alone. */
bool psc_io_memif_is(const char *devargs);
/* Its link MTU and the size of its rings, into the port. */
bool psc_io_memif_fit(struct psc_io_port *port, uint32_t wanted_roce_mtu, struct psc_io_error *error);

/* lane.c */
bool psc_io_lane_init(struct psc_io_lane *lane, uint32_t number, const struct psc_io_config *config,
                      struct psc_io_error *error);
void psc_io_lane_free(struct psc_io_lane *lane);
/* Once the port has started: what a lane sends with depends on what the port does with it. */
bool psc_io_lane_init_tx(struct psc_io_lane *lane, uint32_t number, const struct psc_io_config *config,
                         struct psc_io_error *error);
/* One turn of the loop: commands, a burst in, a burst out, events. False: nothing came or went. */
bool psc_io_lane_turn(struct psc_io_lane *lane);
int psc_io_lane_main(void *lane);
uint32_t psc_io_lane_mbufs(const struct psc_io_lane *lane);

/* The receive mempool, and the rings of a lane that does not have its port for itself. */
bool psc_io_lane_make_receive(struct psc_io_lane *lane, uint32_t number, const struct psc_io_config *config,
                              struct psc_io_error *error);

/* steer.c */
/* Flow rules on a started port with a queue for each lane. False: none; `why` (of PSC_IO_WHY_BYTES) says so.
 */
bool psc_io_steer(struct psc_io_port *port, enum psc_io_steering how, char *why);
/* Whether they are worth trying. */
bool psc_io_may_steer(const struct psc_io_port *port, enum psc_io_steering how, char *why);
void psc_io_unsteer(struct psc_io_port *port);

/* dispatch.c */
/* One turn of its loop. 0: nothing came or went. */
uint32_t psc_io_dispatcher_turn(struct psc_io_dispatcher *dispatcher);
int psc_io_dispatcher_main(void *dispatcher);
/* A burst for a lane that shares its port by flow rules: what is another lane's is handed over. */
uint32_t psc_io_receive_steered(struct psc_io_lane *lane, struct rte_mbuf **mbufs);

/* rx.c: mbufs with `room_bytes` for a frame; NULL: no memory. */
struct rte_mempool *psc_io_rx_mempool(const char *name, unsigned mbufs, unsigned cache, uint16_t room_bytes,
                                      int socket);

/* tx.c */
bool psc_io_tx_init(struct psc_io_tx *tx, const struct psc_io_lane *lane, uint32_t number);
/* Frees what is built and was not taken, and with it its hold on slots. */
void psc_io_tx_drop(struct psc_io_tx *tx);
void psc_io_tx_free(struct psc_io_tx *tx);
/* Fills the stock up; returns how many emits may be asked for now: 0 while built ones still wait for the
 * port. */
uint32_t psc_io_tx_room(struct psc_io_tx *tx);
void psc_io_tx_add(struct psc_io_tx *tx, const struct psc_emit *emit);
/* Offers what is pending to the port. Returns how many frames it took. */
uint32_t psc_io_tx_flush(struct psc_io_tx *tx, struct psc_lane_stats *stats);

#endif
