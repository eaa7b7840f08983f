/* core/: the story "packet in -> result out" of one lane. Frames and a time go in; frames to send and events
 * come out. One lane is one core's: nothing here is shared, so there is no lock and no atomic. Time is a
 * parameter (ns, monotonic). Callers: io/ (the polling loop), the protocol tests and, later, the simulator.
 * No DPDK, no allocation after psc_lane_new and psc_job_new. */
#ifndef PSC_LANE_H
#define PSC_LANE_H

#include "psc_roce.h"
#include "psc_stats.h"
#include "psc_wire.h"

struct psc_lane;
struct psc_job; /* joins the pools of agg/ with the QPs of qp/; opaque outside core/ */

/* Memory for pools: io/ gives DMA-able memory of the lane's socket, tests give calloc. Zeroed, 64-byte
 * aligned. */
struct psc_memory {
    void *(*alloc)(void *context, size_t bytes);
    void (*release)(void *context, void *memory);
    void *context;
};

struct psc_lane_config {
    struct psc_local local;
    struct psc_ip gateway; /* next hop for peers outside the prefix; all zero: none */
    uint8_t prefix_bits;   /* of our address, 0..32 (IPv4) or 0..128 */
    uint8_t dscp;
    uint8_t lane;     /* its number: low bits of its QPNs */
    bool silent_host; /* another lane answers neighbours and pings for the address; this one only learns */
    uint16_t max_unacked_packets; /* 128 */
    uint64_t retransmit_ns;       /* 4.096 us * 2^n */
    uint8_t retries;              /* 6 */
    uint64_t progress_ns;         /* a fault after this long without progress: 2 s */
    uint64_t waiting_event_ns;    /* a WAITING event after this long, and each time it passes again: 2 s */
    uint64_t realtime_offset_ns;  /* CLOCK_REALTIME minus the clock of now_ns: for times in the statistics */
};

/* ---- Burst in, burst out. ---- */

struct psc_frame {
    const uint8_t *data; /* one whole Ethernet frame, contiguous; borrowed for the call */
    uint32_t bytes;
};

/* One reference to a slot's payload from outside the lane. A slot is not written again while count > 0. */
struct psc_hold {
    uint32_t count;
};

/* One frame to send: header, then payload_bytes borrowed from a slot (or from the lane's few answer buffers:
 * neighbours, pings; header_bytes is then 0), then trailer. Whatever is borrowed lies in psc_memory and has a
 * hold. An emit with a hold is already counted in hold->count; whoever took it decrements the count, on the
 * lane's own core, once the payload is out. */
struct psc_emit {
    uint8_t header[PSC_HEADER_MAX];
    uint32_t header_bytes;
    const uint8_t *payload;
    uint32_t payload_bytes;
    uint8_t trailer[4]; /* ICRC */
    uint32_t trailer_bytes;
    struct psc_hold *hold; /* NULL: nothing borrowed */
};

/* The lane's memory is allocated through `memory` and never grows. `stats` is this lane's block: the lane
 * counts what it is given and what it emits; mbufs_in_use, tx_stalls and lost emits (PSC_DROP_NO_BUFFER) are
 * its caller's. */
struct psc_lane *psc_lane_new(const struct psc_lane_config *config, const struct psc_memory *memory,
                              struct psc_lane_stats *stats);
void psc_lane_free(struct psc_lane *lane);
/* The offset as it is now: somebody may set the clock. */
void psc_lane_set_realtime_offset(struct psc_lane *lane, uint64_t realtime_offset_ns);

/* One turn: executes `n` received frames, publishes what became complete, runs due timers, and fills at most
 * `max` emits. Returns how many. Whatever it returns MUST be sent or counted as lost by the caller: a
 * retransmission mends it. */
uint32_t psc_lane_poll(struct psc_lane *lane, const struct psc_frame *frames, uint32_t n, uint64_t now_ns,
                       struct psc_emit *emits, uint32_t max);

/* ---- Commands from the control core, carried by io/'s ring. ---- */

struct psc_pool_spec {
    uint32_t pool_class; /* enum psc_pool_class: whose it is; the lane treats all alike */
    uint32_t window; /* W, a power of two: slot = round mod 2W then survives the wrap of the 32-bit round */
    uint32_t chunk_bytes; /* slot size, multiple of the MTU: bounds results */
};

struct psc_job_spec {
    uint32_t world_size;
    uint32_t mtu;              /* path MTU in bytes, 256..4096 */
    uint32_t ops[PSC_MAX_OPS]; /* enum psc_op of op window k+1 */
    uint32_t op_count;
    uint8_t tables[PSC_OP_COUNT][PSC_MAX_TABLE]; /* by enum psc_op: of those of `ops` that have one */
    struct psc_pool_spec pools[PSC_MAX_POOLS];
    uint32_t pool_count;
    struct psc_job_stats *stats; /* its row, or NULL */
    uint64_t tag;                /* the control core's own; comes back in events */
};

/* One end of one QP: rank `rank` of pool `pool`. */
struct psc_qp_spec {
    uint32_t pool, rank;
    uint32_t qpn; /* ours: low bits are the lane, next PSC_QP_INDEX_BITS its index in the lane's table */
    uint32_t start_psn; /* of our requests */
    uint32_t rkey;      /* that the worker must present */
    uint64_t va_base;   /* that its addresses start from */
    uint16_t udp_port;  /* our source port */
    struct psc_ip peer;
    uint32_t peer_qpn;
    uint32_t peer_start_psn; /* of the worker's requests: our first expected PSN */
    uint32_t result_rkey;
    uint64_t result_va; /* of result slot 0; slots are chunk_bytes apart */
    uint32_t received;  /* rounds of the pool whose result the rank has: 0 but after RESUME */
};
#define PSC_LANE_BITS     4
#define PSC_QP_INDEX_BITS 10

/* What each rank adds to the memory of each pool if an op of the job has sub-blocks, for budgets. */
#define PSC_SUB_BLOCK_RANK_BYTES 320

/* Built by the control core (allocates), handed to the lane by PSC_CMD_ATTACH, given back by
 * PSC_EVENT_DETACHED, then freed by the control core. NULL: no memory, or a specification outside the limits
 * that are written beside its fields. */
struct psc_job *psc_job_new(const struct psc_job_spec *spec, const struct psc_memory *memory);
void psc_job_free(struct psc_job *job);

/* What a lane has of a job whose pools lie on several lanes is a job of its own here; whoever commands them
 * keeps them together (FREEZE).
 *
 * A job on its lane is running from ATTACH on, halted after FAULT, running again after RESUME; ending after
 * END (until a FAULT), and ended after ENDED. Halted and ended jobs neither execute nor send. DETACH leads
 * out of every state. */
enum psc_command_kind {
    PSC_CMD_ATTACH = 1, /* job: once */
    /* job, qp. Running or ending; once per pool and rank in an epoch, not for ranks that have left or are
     * dead. (Halted or ended: FAULT or ENDED has crossed it on its way and is the answer.) Resolves the
     * peer's MAC, then RTS; answered by CONNECTED or FAULT. qp.received is neither above what is complete nor
     * below what the rank's QPs have acknowledged. The results in [received, complete) are posted right after
     * our probe, that is, when the worker's has come, and before any newer one. */
    PSC_CMD_CONNECT,
    /* job, rank, fault: a worker says that its QP died. Running: answered by FAULT (pool 0, round = its
     * complete), like one found here; ending: also, if the rank lacks a complete result. Halted or ended, or
     * a rank that is owed nothing: nothing is told. */
    PSC_CMD_HALT,
    /* job. Halted only. Its QPNs are unknown from here on. Of every pool: complete rounds keep their
     * results until all ranks have acknowledged them; later ones are void, and the first of them is every
     * rank's next. Ranks that have left or are leaving count as having every complete result and are not
     * connected again; for the others CONNECT follows, with new QPs and what each has. */
    PSC_CMD_RESUME,
    /* job, ranks: the dead ones; more may be named by another END. Nothing is executed any more but probes;
     * complete results are still delivered to the others, after a RESUME also to those that CONNECT names
     * later. Answered by ENDED, when every rank that is neither dead nor left has acknowledged every complete
     * result; or by FAULT, when the QP of one that has not fails: the job is halted then, so RESUME, and END
     * again, for as long as the control core cares to try. After END no WAITING or LEFT is told. Halted:
     * nothing happens, FAULT has crossed it on its way and is the answer, with the same to follow. Nothing
     * times a rank that is not connected or not probed: if it stays away, END names it, or DETACH ends the
     * waiting.
     */
    PSC_CMD_END,
    /* job, rank, received[]: once per rank. Running or halted: answered by LEFT when every rank has every
     * complete result, if need be in a later epoch. A result that the rank lacks is still delivered if it was
     * posted to its QP in this epoch; else the rank counts as having it. */
    PSC_CMD_LEAVE,
    /* job: stop at once; answered by DETACHED when no mbuf points into its slots any more. The fatal NAK of a
     * FAULT for which every turn since had no room is dropped, here and by RESUME: the control core has told
     * the worker more than a NAK says, and the worker's NIC gives up by itself on a QPN that is unknown. */
    PSC_CMD_DETACH,
    /* job: what another lane has of it has halted, so this halts, too, from ending and from ended as well,
     * since its workers flush all their QPs. Answered by FAULT with PSC_FAULT_NONE; halted already: its own
     * FAULT is on its way.
     */
    PSC_CMD_FREEZE,
};
struct psc_command {
    enum psc_command_kind kind;
    struct psc_job *job;
    struct psc_qp_spec qp;
    uint32_t rank;
    uint64_t ranks;                   /* END: bit per rank */
    uint32_t fault;                   /* HALT: enum psc_fault */
    uint32_t received[PSC_MAX_POOLS]; /* LEAVE: number of rounds whose result the rank has, per pool */
};
/* False: the command is impossible (not legal in the job's state, QPN taken, index or `received` out of
 * range, peer of another address family than ours); nothing was changed. */
bool psc_lane_apply(struct psc_lane *lane, const struct psc_command *command, uint64_t now_ns);

/* ---- Events to the control core. ---- */

enum psc_event_kind {
    PSC_EVENT_CONNECTED = 1, /* pool, rank: our QP is in RTS */
    PSC_EVENT_PROBED,        /* pool, rank: its probe came and it has acknowledged ours */
    /* pool, round, ranks (bit per rank that has not begun it). After waiting_event_ns since the round was
     * begun and the one before it was complete, and repeated every waiting_event_ns while it waits. */
    PSC_EVENT_WAITING,
    /* pool, rank, fault, round, expected, got: the job's QPs are in ERR, nothing is sent any more but the one
     * NAK that tells the offender, as soon as there is room for it. Once per epoch. */
    PSC_EVENT_FAULT,
    PSC_EVENT_ENDED,    /* complete[]: the job is over, and nobody is owed a result any more */
    PSC_EVENT_LEFT,     /* rank */
    PSC_EVENT_DETACHED, /* the job may be freed */
};
struct psc_event {
    enum psc_event_kind kind;
    uint64_t tag; /* of the job */
    struct psc_job *job;
    uint32_t pool, rank, round;
    uint64_t ranks;
    uint32_t fault;                   /* enum psc_fault */
    uint64_t expected, got;           /* the two values that a mismatch names */
    uint32_t complete[PSC_MAX_POOLS]; /* rounds complete in each pool when the event was made */
};
/* Oldest event; false: none. The queue is bounded; all but WAITING always fit if FAULT is read before RESUME.
 */
bool psc_lane_next_event(struct psc_lane *lane, struct psc_event *event);

#endif
