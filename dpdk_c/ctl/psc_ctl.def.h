/* The door between Python and the data plane: everything that the appliance process may call.
 *
 * cffi reads this file verbatim: no guards, no includes, plain integers and fixed-width structs. C code
 * includes psc_ctl.h. All functions are called by one thread, the control thread; none of them blocks on a
 * lane. Codes are enum psc_ctl_code; Python has one function that turns them into exceptions. */

#define PSC_CTL_VERSION    5
#define PSC_CTL_MAX_PORTS  4
#define PSC_CTL_MAX_LANES  16
#define PSC_CTL_MAX_POOLS  32 /* of a job, on all its lanes; PSC_MAX_POOLS on each */
#define PSC_CTL_MAX_OPS    15
#define PSC_CTL_TEXT_BYTES 512
#define PSC_CTL_WHY_BYTES  256
#define PSC_CTL_NO_CORE    4294967295

/* Memory that each rank adds to each pool of a job that has an op with sub-blocks. */
#define PSC_CTL_SUB_BLOCK_RANK_BYTES 320

enum psc_ctl_code {
    PSC_CTL_OK = 0,
    PSC_CTL_EAL = 1,           /* EAL did not start */
    PSC_CTL_LANE_CORE = 2,     /* a lane's core is not one that this process may use */
    PSC_CTL_PORT_ABSENT = 3,   /* the device is not there or its driver refuses it */
    PSC_CTL_PORT_SETUP = 4,    /* the device is there but cannot be set up */
    PSC_CTL_MTU_TOO_SMALL = 5, /* the link cannot carry one RoCE packet of the wanted path MTU */
    PSC_CTL_MEMORY = 6,        /* not enough memory for buffers, or for a job's slots */
    PSC_CTL_STATS_FILE = 7,    /* the statistics segment cannot be made */
    PSC_CTL_STATE = 8,         /* already started, or not started (EAL starts once per process), or a job that
                                  cannot be resumed, or ended, now */
    PSC_CTL_TOO_MANY_JOBS = 9, /* every job entry or statistics row is a living job's */
    PSC_CTL_NO_QPN = 10,       /* the lane's QPNs are in use or in quarantine */
    PSC_CTL_NO_JOB = 11,       /* not an open job */
    PSC_CTL_ARGUMENT = 12,     /* a number out of range */
    PSC_CTL_BUSY = 13,         /* the ring to the lane is full */
    PSC_CTL_CODE_COUNT = 14
};

/* One port. `devargs` is an EAL device string: "net_af_packet0,iface=eth0" or a PCI address. */
struct psc_ctl_port_config {
    char devargs[256];
    uint32_t pci; /* 1: named to EAL by -a, 0: a virtual device */
    uint32_t rx_ring_packets;
    uint32_t tx_ring_packets;
    uint32_t dispatcher_core; /* CPU number of the core that sorts its packets to its lanes, should nothing
                                 better work; PSC_CTL_NO_CORE: none */
};

/* How the packets of a port find their lane. */
enum psc_ctl_steering {
    PSC_CTL_STEER_AUTO = 0,       /* in a configuration: the best that works */
    PSC_CTL_STEER_PORT = 1,       /* one lane has the port for itself */
    PSC_CTL_STEER_QPN = 2,        /* flow rules on the QPN's low bits */
    PSC_CTL_STEER_ADDRESS = 3,    /* flow rules on an IP address of each lane's own */
    PSC_CTL_STEER_DISPATCHER = 4, /* a core of its own reads the port and hands frames over */
    PSC_CTL_STEER_COUNT = 5
};

/* One lane. IP addresses are 16 bytes; IPv4 as ::ffff:a.b.c.d. */
struct psc_ctl_lane_config {
    uint32_t core; /* CPU number */
    uint32_t port;
    uint8_t address[16]; /* its port's, or one of its own for PSC_CTL_STEER_ADDRESS */
    uint8_t gateway[16]; /* all zero: none */
    uint32_t prefix_bits;
};

struct psc_ctl_config {
    struct psc_ctl_port_config ports[PSC_CTL_MAX_PORTS];
    uint32_t port_count;
    struct psc_ctl_lane_config lanes[PSC_CTL_MAX_LANES]; /* every port has one at least */
    uint32_t lane_count;
    uint32_t steering; /* enum psc_ctl_steering, of ports that lanes share */
    uint32_t huge_pages;
    uint32_t memory_mib;
    uint32_t idle_sleep_us;
    uint32_t vlan;
    uint32_t dscp;
    uint32_t roce_mtu; /* bytes; 0: the largest that the link carries */
    uint32_t max_unacked_packets;
    uint32_t retransmit_exponent; /* ACK timer of 4.096 us * 2^n */
    uint32_t retries;
    uint32_t progress_us;      /* a fault after this long without progress */
    uint32_t waiting_event_us; /* a WAITING event after this long, and again each time */
    uint32_t max_jobs;
    uint32_t job_rows; /* of the statistics segment, one per job and lane: for more than max_jobs, so that
                          ended jobs can still be read */
    char stats_path[256];
};

struct psc_ctl_pool {
    uint32_t pool_class; /* enum psc_pool_class */
    uint32_t lane;
    uint32_t window;
    uint32_t chunk_bytes;
};

struct psc_ctl_job {
    char name[96];
    uint32_t world_size;
    uint32_t mtu;
    uint32_t epoch;
    uint32_t ops[PSC_CTL_MAX_OPS]; /* enum psc_op of op window k+1 */
    uint32_t op_count;
    uint8_t tables[PSC_OP_COUNT][PSC_MAX_TABLE]; /* by enum psc_op: of those of `ops` that have one */
    struct psc_ctl_pool pools[PSC_CTL_MAX_POOLS];
    uint32_t pool_count;
};

/* Our end of a QP: all random, none used again within 60 s. */
struct psc_ctl_qp {
    uint64_t va_base;
    uint32_t qpn;
    uint32_t start_psn;
    uint32_t rkey;
    uint32_t udp_port;
};

/* The worker's end. */
struct psc_ctl_peer {
    uint64_t result_va;
    uint8_t address[16];
    uint32_t qpn;
    uint32_t start_psn;
    uint32_t result_rkey;
    uint32_t received; /* rounds of the pool whose result the worker has: 0 but after psc_ctl_job_resume */
};

enum psc_ctl_event_kind {
    PSC_CTL_EVENT_CONNECTED = 1, /* pool, rank: our QP is in RTS */
    PSC_CTL_EVENT_PROBED = 2,    /* pool, rank: probes have passed both ways */
    PSC_CTL_EVENT_WAITING = 3,   /* pool, round, ranks */
    PSC_CTL_EVENT_FAULT = 4,     /* pool, rank, fault, round, expected, got, complete */
    PSC_CTL_EVENT_ENDED = 5,     /* complete */
    PSC_CTL_EVENT_LEFT = 6,      /* rank */
    PSC_CTL_EVENT_DETACHED = 7,  /* the job has been freed; its number is void */
    PSC_CTL_EVENT_REJECTED =
        8 /* pool, rank: the lane could not execute a command, enum psc_ctl_command in `got` */
};

enum psc_ctl_command {
    PSC_CTL_COMMAND_ATTACH = 1, /* rejected: the job has been freed, as after DETACHED */
    PSC_CTL_COMMAND_CONNECT = 2,
    PSC_CTL_COMMAND_HALT = 3,
    PSC_CTL_COMMAND_RESUME = 4,
    PSC_CTL_COMMAND_END = 5,
    PSC_CTL_COMMAND_LEAVE = 6,
    PSC_CTL_COMMAND_DETACH = 7,
    PSC_CTL_COMMAND_FREEZE = 8 /* ctl/'s own */
};

struct psc_ctl_event {
    uint64_t ranks;
    uint64_t expected;
    uint64_t got;
    uint32_t kind; /* enum psc_ctl_event_kind */
    uint32_t job;
    uint32_t pool;
    uint32_t rank;
    uint32_t round;
    uint32_t fault; /* enum psc_fault */
    uint32_t complete[PSC_CTL_MAX_POOLS];
};

struct psc_ctl_port_status {
    char devargs[256];
    char driver[64];
    uint8_t mac[6];
    uint8_t link_up;
    uint8_t lends_payload; /* 1: results are sent from their slots, 0: copied, for the driver may keep them */
    uint32_t link_mtu;     /* 0: the device does not say */
    uint32_t roce_mtu;
    uint32_t steering; /* enum psc_ctl_steering */
    uint32_t rx_queues;
    uint32_t tx_queues;
    uint64_t dispatched_frames;  /* handed over by the dispatcher */
    char why[PSC_CTL_WHY_BYTES]; /* the steering: what was probed and refused before it */
};

/* Numbers that must be back at their start when every job has left. */
struct psc_ctl_usage {
    uint32_t jobs;
    uint32_t qps; /* QPNs in use, quarantine excluded */
    uint32_t mbufs_in_use;
    uint32_t reserved;
};

/* PSC_CTL_VERSION of the library that was loaded; Python compares it with the one it was compiled against. */
uint32_t psc_ctl_version(void);
const char *psc_ctl_library_version(void);

/* Starts EAL, ports and lanes in a thread of its own and waits for the outcome. On failure `text` (of
 * PSC_CTL_TEXT_BYTES) gets one sentence without its full stop. */
enum psc_ctl_code psc_ctl_start(const struct psc_ctl_config *config, char *text);
/* Renews the statistics' heartbeat; at least once a second, by the loop that serves the control plane: then
 * an old heartbeat says that this loop hangs. */
void psc_ctl_heartbeat(void);
/* Stops lanes, closes ports, frees jobs, marks the statistics as stopped. */
void psc_ctl_stop(void);

/* Opens a job on the lanes that its pools name: reserves its slots and QPNs. From here on it is one job
 * whatever lanes it is on: a fault on one halts it on all, and events that concern all of it come when all
 * lanes have told them. qps[pool * world_size + rank] get our ends. With PSC_CTL_ARGUMENT, `text` (of
 * PSC_CTL_TEXT_BYTES) gets one sentence without its full stop. */
enum psc_ctl_code psc_ctl_job_open(const struct psc_ctl_job *spec, uint32_t *job, struct psc_ctl_qp *qps,
                                   char *text);
/* Answered by CONNECTED, FAULT or REJECTED, or by an ENDED that was under way. Rejected is, among others, a
 * `received` of more rounds than are complete or fewer than the worker's QP has acknowledged, and every rank
 * that has left or is dead. */
enum psc_ctl_code psc_ctl_qp_connect(uint32_t job, uint32_t pool, uint32_t rank,
                                     const struct psc_ctl_peer *peer);
/* For the statistics: the job's rounds may begin. */
enum psc_ctl_code psc_ctl_job_ready(uint32_t job);
/* A worker says that a QP of its died: enum psc_fault in `fault`. Answered by FAULT, unless the epoch has
 * ended meanwhile: then that FAULT is the answer. */
enum psc_ctl_code psc_ctl_job_halt(uint32_t job, uint32_t rank, uint32_t fault);
/* After FAULT has been read, else PSC_CTL_STATE: a new epoch begins. qps[pool * world_size + rank] get new
 * ends for all ranks, those of the old epoch go to quarantine; psc_ctl_qp_connect follows for every rank that
 * has not left. Nothing is changed unless it returns PSC_CTL_OK. */
enum psc_ctl_code psc_ctl_job_resume(uint32_t job, uint32_t epoch, struct psc_ctl_qp *qps);
/* No more rounds; bit per rank in `dead_ranks`. Results of complete rounds are still delivered to the others,
 * also to those that psc_ctl_qp_connect names later if the job has been resumed. Answered by ENDED, once; or
 * by a FAULT that was under way: then it has done nothing, and psc_ctl_job_resume must come before it, as
 * always once FAULT has been read (else PSC_CTL_STATE). A rank that is not connected or does not probe is
 * waited for without end: call again with the ranks that have died meanwhile, or close the job. */
enum psc_ctl_code psc_ctl_job_end(uint32_t job, uint64_t dead_ranks);
/* received[pool]: rounds whose result the rank has. Answered by LEFT, or after psc_ctl_job_end by ENDED. */
enum psc_ctl_code psc_ctl_rank_leave(uint32_t job, uint32_t rank, const uint32_t *received);
/* Ends the job at once; answered by DETACHED when nothing points into its slots any more. */
enum psc_ctl_code psc_ctl_job_close(uint32_t job);

/* Readable when an event waits. Read it (8 bytes) and then ask for events until there is none. */
int psc_ctl_event_fd(void);
/* 1: *event is the oldest one; 0: none. */
int psc_ctl_next_event(struct psc_ctl_event *event);

/* What the appliance runs with. Pointers stay valid until psc_ctl_stop. */
enum psc_ctl_code psc_ctl_port_status(uint32_t port, struct psc_ctl_port_status *status);
const char *psc_ctl_arith_variant(void);
const char *psc_ctl_crc_variant(void);
const struct psc_lane_stats *psc_ctl_lane_stats(uint32_t lane);
/* The row of the job's part on a lane; NULL: not open, or it has none there. */
const struct psc_job_stats *psc_ctl_job_stats(uint32_t job, uint32_t lane);
void psc_ctl_usage(struct psc_ctl_usage *usage);
