/* Contract: the statistics segment. One file (tmpfs) that the appliance writes and anything may map
 * read-only.
 *
 * cffi reads this file verbatim: no guards, no includes. C code includes psc_stats.h. Layout: one header,
 * then `lanes` blocks of struct psc_lane_stats at `lane_offset_bytes` + lane * `lane_stride_bytes`, then
 * `job_rows` rows of struct psc_job_stats at `job_offset_bytes` + row * `job_stride_bytes`. Every counter has
 * one writer and only grows; 64-bit loads are atomic, so a reader needs no lock. Counters are never reset
 * while the segment lives. */

#define PSC_STATS_MAGIC          0x50534353
#define PSC_STATS_VERSION        1
#define PSC_STATS_JOB_NAME_BYTES 96

/* Why a received frame was not executed. The label of a reason is its name in lower case without PSC_DROP_.
 * Order: the receive order of the parser, then the lane's, then the QP's. */
enum psc_drop {
    PSC_DROP_NONE = 0,
    PSC_DROP_RUNT = 1,        /* shorter than its headers say */
    PSC_DROP_FOREIGN_MAC = 2, /* not for our MAC */
    PSC_DROP_VLAN = 3,        /* foreign VLAN or more than one tag */
    PSC_DROP_ETHERTYPE = 4,   /* neither IP nor ARP */
    PSC_DROP_IP_HEADER = 5,   /* version, options, checksum, total length, extension header */
    PSC_DROP_IP_FRAGMENT = 6,
    PSC_DROP_FOREIGN_IP = 7, /* not for our address */
    PSC_DROP_NOT_ROCE = 8,   /* neither UDP 4791 nor something that the lane answers */
    PSC_DROP_UDP_LENGTH = 9,
    PSC_DROP_OPCODE = 10, /* no row in the opcode table, or the answer to a READ or ATOMIC */
    PSC_DROP_BTH = 11,    /* transport version, pad without payload, or length against header and pad */
    PSC_DROP_UNKNOWN_QP = 12,
    PSC_DROP_QP_STATE = 13,     /* the QP is not in RTR or RTS, or its rank has left */
    PSC_DROP_FOREIGN_PEER = 14, /* source address is not the QP's peer */
    PSC_DROP_P_KEY = 15,
    PSC_DROP_ICRC = 16,
    PSC_DROP_DUPLICATE = 17, /* request PSN before the expected one: acknowledged again, not executed */
    PSC_DROP_GAP = 18,       /* request PSN after the expected one: NAK 60 once, then silence */
    PSC_DROP_REFUSED = 19,   /* request that was answered by a fatal NAK */
    PSC_DROP_STALE_ACK = 20, /* ACK or NAK outside [oldest unacknowledged, highest sent] */
    PSC_DROP_RESERVED_SYNDROME = 21,
    PSC_DROP_NO_BUFFER = 22, /* an mbuf or an emit could not be had, a frame in several mbufs does not fit
                                into its first, or the slot is still lent to the port */
    PSC_DROP_COUNT = 23
};

/* 64 bytes. Written by the control core. */
struct psc_stats_header {
    uint32_t magic;   /* PSC_STATS_MAGIC; written last when the segment is made */
    uint32_t version; /* PSC_STATS_VERSION */
    uint32_t pid;     /* of the appliance */
    uint32_t lanes;
    uint32_t job_rows;
    uint32_t stopped;       /* 1 after a clean stop */
    uint64_t start_time_us; /* CLOCK_REALTIME */
    uint64_t heartbeat_us;  /* CLOCK_REALTIME, renewed by the control thread at least once a second: old when
                               the  control plane hangs, though lanes may live (see polls) */
    uint32_t lane_offset_bytes;
    uint32_t lane_stride_bytes;
    uint32_t job_offset_bytes;
    uint32_t job_stride_bytes;
    uint64_t segment_bytes;
};

/* 512 bytes. Written by its lane alone, but for the two that the EAL thread fetches from the port. Bytes are
 * Ethernet frame bytes without FCS. */
struct psc_lane_stats {
    uint64_t rx_packets;
    uint64_t rx_bytes;
    uint64_t tx_packets;
    uint64_t tx_bytes;
    uint64_t acks_sent;
    uint64_t naks_sent;
    uint64_t acks_received;         /* stale ones too */
    uint64_t naks_received;         /* RNR and stale ones too; not those with a reserved syndrome */
    uint64_t retransmitted_packets; /* result packets and probes sent again */
    uint64_t timeouts;              /* ACK timer expiries */
    uint64_t polls;                 /* turns of the lane's loop; its rate shows that the lane lives */
    uint64_t busy_polls;            /* turns that received or sent something */
    uint64_t qps;                   /* gauge: QPs that are not in quarantine */
    uint64_t slots;                 /* gauge: slots of attached pools */
    uint64_t mbufs_in_use;          /* gauge */
    uint64_t tx_stalls;             /* turns in which the port took less than offered */
    uint64_t drops[32];             /* by enum psc_drop */
    uint64_t cnps_sent;             /* congestion notifications: a request arrived with a CE mark */
    uint64_t cnps_received;         /* counted; they do not slow a QP down yet */
    uint64_t rx_missed;  /* frames that the lane did not fetch in time: those that its dispatcher had to drop,
                            and at the first lane of a port all that the port dropped; by the EAL thread */
    uint64_t rx_no_mbuf; /* times that the port found no mbuf to receive into, at its first lane; by the EAL
                            thread */
    uint64_t busy_ns;    /* time of the turns that received or sent something */
    uint64_t reserved[11];
};

/* 256 bytes: what one lane has of a job. Rows of one name and start_time_us are one life of it: its counters
 * are their sums, but for `faults`, which every lane counts. `generation` is odd while the control core
 * changes the row's identity: read it, the row, and it again. Counters are written by the job's lane. A free
 * row has state 0. */
struct psc_job_stats {
    uint64_t generation;
    uint32_t state; /* 0 free, 1 joining, 2 ready, 3 ended (the row stays until it is needed again) */
    uint32_t world_size;
    uint32_t epoch;
    uint32_t lane;
    char name[96];               /* UTF-8, NUL-terminated, PSC_STATS_JOB_NAME_BYTES */
    uint64_t start_time_us;      /* CLOCK_REALTIME */
    uint64_t contribution_bytes; /* payload executed, all ranks together; retransmissions and probes excluded,
                                    void rounds of ended epochs included: theirs is executed again */
    uint64_t result_bytes; /* payload of results, first transmissions in a connection, all ranks together */
    uint64_t rounds_completed;   /* rounds whose N contributions are whole */
    uint64_t last_round_time_us; /* CLOCK_REALTIME of the last completed round, 0 before */
    uint64_t faults;             /* epochs ended by a fault, found by the lane or named by the control core */
    uint64_t reserved[11];
};
