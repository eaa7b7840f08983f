/* sim/: what a worker's NIC is to the rest: the far end of one RC queue pair. Two implementations stand
 * behind it: sim_own.c, built from qp/, and sim_model.c, which shares no line with the data plane. */
#ifndef SIM_ENDPOINT_H
#define SIM_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_FRAME_MAX 4352 /* headers, an MTU of 4096, pad and ICRC, rounded up */

/* What real peers do differently; measured at rxe or known of NICs. Drawn per queue pair. */
struct sim_habits {
    uint32_t max_unacked;   /* rxe stops near 128 */
    uint32_t request_every; /* packets between two AckReq within a message; rxe: 64 */
    uint32_t ack_every;     /* unasked ACK after so many packets; 0: on request alone, as rxe */
    uint64_t retransmit_ns; /* ACK timer */
    uint32_t retries;
    bool ignores_repeated_nak; /* rewinds once per NAK 60 and PSN; else for every copy of it */
    bool repeats_nak;          /* a NAK 60 for every packet out of order; else one per gap */
    bool timer_always;         /* the ACK timer runs whenever something is unacknowledged */
    bool mig_req;              /* MigReq of the requests */
    bool limited_p_key;        /* 7FFF instead of FFFF */
};

/* Memory that the peer may write: the results. */
struct sim_region {
    uint8_t *data;
    uint64_t va;
    uint32_t bytes;
    uint32_t rkey;
};

struct sim_endpoint_spec {
    uint8_t mac[6], peer_mac[6];
    uint8_t ip[4], peer_ip[4];
    uint16_t udp_port;
    uint32_t qpn, peer_qpn;
    uint32_t start_psn;    /* of our requests */
    uint32_t expected_psn; /* of the peer's */
    uint32_t mtu_bytes;
    uint32_t send_queue; /* messages */
    struct sim_region region;
    struct sim_habits habits;
    void (*completed)(void *context, uint32_t imm); /* a message with an immediate has arrived whole */
    void *context;
};

/* RDMA WRITE WITH IMMEDIATE. `data` stays the caller's, and is read again for every retransmission. */
struct sim_write {
    const uint8_t *data;
    uint32_t bytes;
    uint64_t va;
    uint32_t rkey;
    uint32_t imm;
};

enum sim_endpoint_error {
    SIM_ENDPOINT_SOUND = 0,
    SIM_ENDPOINT_RETRIES,    /* the peer does not answer */
    SIM_ENDPOINT_REFUSED,    /* the peer sent a fatal NAK */
    SIM_ENDPOINT_VIOLATED,   /* we sent one: opcode, length, rkey or range */
    SIM_ENDPOINT_NO_RECEIVE, /* an immediate came and no receive was posted */
};

/* Where both directions stand, for frames that are made to arrive late. */
struct sim_position {
    uint32_t expected_psn;           /* of the peer's requests */
    uint32_t unacked_psn, fresh_psn; /* responses count in [unacked, fresh) */
};

struct sim_endpoint;
struct sim_endpoint_ops {
    struct sim_endpoint *(*make)(const struct sim_endpoint_spec *spec);
    void (*release)(struct sim_endpoint *endpoint);
    /* False: the queue is full. */
    bool (*post)(struct sim_endpoint *endpoint, const struct sim_write *write, uint64_t now_ns);
    void (*receive)(struct sim_endpoint *endpoint, const uint8_t *frame, uint32_t bytes, uint64_t now_ns);
    /* The next frame to send, into out[SIM_FRAME_MAX]; 0: none. */
    uint32_t (*send)(struct sim_endpoint *endpoint, uint64_t now_ns, uint8_t *out);
    void (*expire)(struct sim_endpoint *endpoint, uint64_t now_ns); /* judge the timers */
    bool (*busy)(const struct sim_endpoint *endpoint);              /* something is unacknowledged */
    struct sim_position (*position)(const struct sim_endpoint *endpoint);
};
extern const struct sim_endpoint_ops sim_own_ops, sim_model_ops;

/* The head of either implementation. */
struct sim_endpoint {
    const struct sim_endpoint_ops *ops;
    struct sim_endpoint_spec spec;
    enum sim_endpoint_error error; /* not SOUND: the queue pair is in ERR and does nothing */
    uint32_t receives;             /* posted and not used */
};

#endif
