/* io/: the only room that knows DPDK. It starts EAL, owns ports and lane cores, turns received mbufs into
 * frames and emits into mbufs, and carries commands and events between the control core and the lanes over
 * rings. No DPDK type appears in this header. Steps of the story: "burst received" and "burst sent". */
#ifndef PSC_IO_H
#define PSC_IO_H

#include "psc_lane.h"

#define PSC_IO_MAX_PORTS 4
#define PSC_IO_MAX_LANES (1 << PSC_LANE_BITS)
#define PSC_IO_NO_CORE   UINT32_MAX
#define PSC_IO_WHY_BYTES 256

enum psc_io_status {
    PSC_IO_OK = 0,
    PSC_IO_EAL,           /* EAL did not start */
    PSC_IO_LANE_CORE,     /* a lane's core is not one that this process may use */
    PSC_IO_PORT_ABSENT,   /* the device is not there or its driver refuses it */
    PSC_IO_PORT_SETUP,    /* the device is there but cannot be set up */
    PSC_IO_MTU_TOO_SMALL, /* the link cannot carry one RoCE packet of the wanted path MTU */
    PSC_IO_MEMORY,        /* -m is too little */
};

/* How the packets of a port find their lane. A lane is named by the low bits of its QPNs, which no NIC's RSS
 * reaches: peers choose the ports that it hashes. */
enum psc_io_steering {
    PSC_IO_STEER_AUTO = 0,      /* in a configuration: the first of these that works */
    PSC_IO_STEER_PORT = 1,      /* one lane has the port for itself */
    PSC_IO_STEER_QPN = 2,       /* flow rules on the QPN's low bits, a queue for each lane */
    PSC_IO_STEER_ADDRESS = 3,   /* flow rules on IP addresses, of which each lane has its own */
    PSC_IO_STEER_DISPATCHER = 4 /* a core of its own reads the port and hands frames over by rings */
};

/* What went wrong, for people: one sentence without its full stop. */
struct psc_io_error {
    enum psc_io_status status;
    char text[512];
};

struct psc_io_port_config {
    const char *devargs; /* EAL device string: "net_af_packet0,iface=eth0" or a PCI address */
    bool pci;
    uint16_t rx_ring_packets, tx_ring_packets;
    uint32_t dispatcher_core; /* CPU number; PSC_IO_NO_CORE: none */
};

struct psc_io_lane_config {
    uint32_t core; /* CPU number */
    uint32_t port;
    struct psc_ip ip; /* another than the other lanes' of its port for PSC_IO_STEER_ADDRESS, else the same */
    struct psc_ip gateway;
    uint8_t prefix_bits;
};

struct psc_io_config {
    struct psc_io_port_config ports[PSC_IO_MAX_PORTS];
    uint32_t port_count;
    struct psc_io_lane_config lanes[PSC_IO_MAX_LANES];
    uint32_t lane_count;
    enum psc_io_steering steering; /* of ports that lanes share */
    bool huge_pages;
    uint32_t memory_mib;
    uint32_t idle_sleep_us;      /* 0: an idle lane polls without pause */
    uint32_t roce_mtu;           /* 0: the largest that the link carries */
    struct psc_lane_config lane; /* for every lane; io/ fills in what is a lane's own */
};

struct psc_io_port_info {
    const char *devargs;
    const char *driver;
    struct psc_mac mac;
    uint32_t link_mtu; /* Ethernet payload; 0: the device does not say */
    uint32_t roce_mtu;
    bool link_up;
    bool lends_payload; /* results are sent from their slots; false: the driver cannot say when, so they are
                           copied */
    enum psc_io_steering steering;
    const char *why; /* the steering: what was probed and refused before it */
    uint32_t rx_queues, tx_queues;
    uint64_t dispatched_frames; /* that the dispatcher has handed over */
};

/* An event of a lane, or a command that the lane could not execute (then only job, pool and rank are
 * meaningful, and they are the command's). */
struct psc_io_event {
    struct psc_event event;
    uint32_t rejected;      /* 1: not an event but a command refused by psc_lane_apply */
    uint32_t rejected_kind; /* enum psc_command_kind */
};

struct psc_io;

/* Starts EAL, ports and lanes. The calling thread becomes EAL's main thread and must be the one that stops;
 * EAL pins it, so it is a thread of its own. Works once per process: EAL cannot be started again, not even
 * after a failure. `stats[i]` is lane i's block. NULL: *error says why. */
struct psc_io *psc_io_start(const struct psc_io_config *config, struct psc_lane_stats *const stats[],
                            struct psc_io_error *error);
/* Ends the lane loops and closes the ports; afterwards neither a lane nor an mbuf touches a job, and jobs may
 * be freed. */
void psc_io_stop(struct psc_io *io);
/* Fetches what the ports have lost into the lanes' statistics. By the thread that started: a NIC's counters
 * may cost system calls, which a lane does not make. */
void psc_io_fetch_losses(struct psc_io *io);
/* Frees everything and cleans up EAL, and with it the memory of jobs: they must have been freed. */
void psc_io_close(struct psc_io *io);

/* ---- Called by the one control thread. ---- */

/* Whether the next command to a lane finds room: it stays so until the control thread sends one. */
bool psc_io_takes_command(const struct psc_io *io, uint32_t lane);
/* False: the ring is full; nothing was handed over. */
bool psc_io_command(struct psc_io *io, uint32_t lane, const struct psc_command *command);
/* Oldest event of any lane. False: none. */
bool psc_io_next_event(struct psc_io *io, struct psc_io_event *event);
/* Readable when an event waits; reading it is the caller's. */
int psc_io_event_fd(const struct psc_io *io);
/* Memory of a lane's socket for psc_job_new and psc_job_free. */
const struct psc_memory *psc_io_memory(struct psc_io *io, uint32_t lane);
void psc_io_port_info(const struct psc_io *io, uint32_t port, struct psc_io_port_info *info);
/* Mbufs that are not in their mempools, all lanes together. */
uint32_t psc_io_mbufs_in_use(const struct psc_io *io);

#endif
