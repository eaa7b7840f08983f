/* memory/: plain memory regions under the QP layer of qp/, as any RDMA target has them. For tests alone: a
 * foreign client, which knows nothing of rounds, can then write into what we call an RC queue pair. What agg/
 * is to core/, a `struct psc_region` is here: it says which request may be executed, and executing writes its
 * bytes. Frames and a time go in, frames come out; no clock, no I/O (port.c has both).
 *
 * Python tests read this header through the C preprocessor, like psc_lane.h. */
#ifndef PSC_TARGET_H
#define PSC_TARGET_H

#include "psc_roce.h"
#include "psc_wire.h"

struct psc_target;

#define PSC_TARGET_QPS         8
#define PSC_TARGET_WRITES      16   /* of ours that a QP may have outstanding */
#define PSC_TARGET_FRAME_BYTES 9728 /* the longest frame that is received: a jumbo ping */

/* `bytes` of `memory` that a peer which presents `rkey` may write at address va_base and after. */
struct psc_region {
    uint8_t *memory;
    uint64_t bytes;
    uint64_t va_base;
    uint32_t rkey;
};

/* As the two ends have agreed them. */
struct psc_target_qp_spec {
    uint32_t qpn;       /* ours */
    uint32_t start_psn; /* of our requests */
    struct psc_region region;
    uint32_t mtu_bytes; /* path MTU */
    uint16_t udp_port;  /* our source port */
    struct psc_mac peer_mac;
    struct psc_ip peer;
    uint32_t peer_qpn;
    uint32_t peer_start_psn;
};

/* One WRITE of ours. Its bytes must stay as they are until it is acknowledged. */
struct psc_target_write {
    const uint8_t *source;
    uint32_t bytes;
    uint64_t va; /* in the peer's */
    uint32_t rkey;
};

/* What one QP has done, for a test to look at. */
struct psc_target_counters {
    uint64_t executed_bytes, executed_messages; /* of the peer's */
    uint64_t acknowledged_writes;               /* of ours */
    uint64_t sent_packets_again;
    uint32_t expected_psn, msn; /* what an ACK would say now */
    uint32_t unacked_psn;       /* the oldest packet of ours that the peer has not acknowledged */
    uint32_t fault;             /* enum psc_fault: why nothing is executed or sent any more; NONE: it lives */
    uint64_t expected, got;     /* the two values that the fault names */
};

/* A frame to send. The payload is borrowed from a write's source (or from the target: an ARP or ping answer,
 * without a header) until the next psc_target_receive. */
struct psc_target_frame {
    uint8_t header[PSC_HEADER_MAX];
    uint32_t header_bytes;
    const uint8_t *payload;
    uint32_t payload_bytes;
    uint8_t trailer[8]; /* pad and ICRC */
    uint32_t trailer_bytes;
};

/* NULL: no memory. */
struct psc_target *psc_target_new(const struct psc_local *local, uint64_t retransmit_ns);
void psc_target_free(struct psc_target *target);

/* A further QP, ready to receive and to send. Returns its index; negative: PSC_TARGET_QPS are there. */
int psc_target_connect(struct psc_target *target, const struct psc_target_qp_spec *spec);
/* Forgets all QPs: their QPNs are unknown from here on. */
void psc_target_disconnect(struct psc_target *target);

/* A WRITE without immediate of ours. False: too many are outstanding. */
bool psc_target_post(struct psc_target *target, int qp, const struct psc_target_write *write,
                     uint64_t now_ns);

void psc_target_receive(struct psc_target *target, const uint8_t *frame, uint32_t bytes, uint64_t now_ns);
/* The next frame to send; false: none now. It counts as sent. */
bool psc_target_emit(struct psc_target *target, uint64_t now_ns, struct psc_target_frame *frame);
/* Judges the timers. */
void psc_target_expire(struct psc_target *target, uint64_t now_ns);

struct psc_target_counters psc_target_counters(const struct psc_target *target, int qp);
/* Received frames that were not executed, by enum psc_drop. */
const uint64_t *psc_target_drops(const struct psc_target *target);

/* ---- A real port: port.c. ---- */

/* A packet socket on a kernel interface. Negative: -errno. */
int psc_port_open(const char *interface);
/* One turn: receives a burst, executes it, sends what is due. With nothing to do it sleeps until a frame
 * comes, `wake_fd` is readable, or wait_ms have passed. Returns whether `wake_fd` is readable, which is
 * looked at when the port is idle only; negative: -errno. */
int psc_port_turn(int port, struct psc_target *target, int wake_fd, int wait_ms);
uint64_t psc_port_now_ns(void);

#endif
