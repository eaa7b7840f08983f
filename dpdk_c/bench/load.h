/* bench/load: N workers of one job in one process, spoken with our own qp/ and roce/ over a DPDK port. What a
 * worker's NIC and its client do is here in three parts: the numbers that it contributes and the sums that
 * must come back (load_values.c), its queue pairs (load_qp.c), and the port (load_port.c). load_main.c hears
 * from its driver what has been agreed over the control connection, load_answer.c answers; load_lane.c puts a
 * lane beside the workers instead.
 *
 * The workers share one address: a queue pair is found by its QPN, and the appliance checks each one's peer.
 */
#ifndef LOAD_H
#define LOAD_H

#include <rte_mbuf.h>

#include "psc_lane.h"
#include "psc_requester.h"
#include "psc_responder.h"

#define LOAD_MAX_SHAPES 64
#define LOAD_MAX_QPS    (PSC_MAX_RANKS * PSC_POOL_CLASS_COUNT)
#define LOAD_MTU_MAX    4096u
#define LOAD_BURST      64
#define LOAD_FRAME_ROOM 9216 /* net_af_packet with framesz=8192 copies a block of it without looking */
#define LOAD_NO_CORE    UINT32_MAX

/* ---- Values: load_values.c ---- */

/* One kind of round: what each rank contributes and what the sum is. */
struct load_shape {
    uint32_t op, op_window;
    uint32_t bytes, result_bytes;
    uint32_t rank_bytes;               /* from one rank's contribution to the next one's */
    uint32_t packets;                  /* of a contribution */
    const uint8_t *contributions;      /* by rank */
    const uint32_t *contribution_crcs; /* by rank and packet: CRC registers seeded with 0 */
    const uint8_t *result;
};

/* The rounds of a pool take its shapes in turn. Their number is odd, so that a slot, which is one of 2W, sees
 * all of them: what an earlier round left there is never right by chance. */
struct load_shapes {
    struct load_shape shape[LOAD_MAX_SHAPES];
    uint32_t count;
    uint8_t tables[PSC_OP_COUNT][PSC_MAX_TABLE];
};

/* One more shape: `bytes` of contribution, whole units. Its numbers are drawn from `seed`, so that
 * floating-point sums are exact in every order. False: no memory. */
bool load_shape_add(struct load_shapes *shapes, uint32_t op, uint32_t op_window, uint32_t bytes,
                    uint32_t ranks, uint32_t mtu, uint32_t seed);
void load_shapes_free(struct load_shapes *shapes);

/* What a pool's round consists of, and the immediate that says so. */
struct load;
const struct load_shape *load_shape_of(const struct load *load, uint32_t pool, uint32_t round);
uint32_t load_immediate_of(const struct load_shape *shape, uint32_t round);

/* ---- Queue pairs: load_qp.c, and what they send: load_emit.c ---- */

#define LOAD_TAG_PROBE UINT64_MAX /* of a message; a round's tag is its number */

struct load_qp_spec {
    uint32_t rank, pool;
    uint32_t qpn, start_psn, peer_qpn, peer_start_psn;
    uint32_t rkey, result_rkey; /* the appliance's; ours */
    uint64_t va_base, result_va;
    uint32_t window, chunk_bytes;
};

struct load_qp {
    struct load_qp_spec spec;
    struct psc_flow flow;
    struct psc_requester requester;
    struct psc_responder responder;
    struct psc_message ring[2 * PSC_MAX_WINDOW];
    uint32_t posted, received; /* rounds */
    uint32_t message_offset_bytes;
    bool probe_posted, probe_acknowledged, probe_received;
    struct psc_refusal lost; /* fault NONE: it lives */
};

/* What has been seen; only grows. */
struct load_counters {
    uint64_t rx_packets, rx_bytes, tx_packets, tx_bytes; /* that the port has carried; bytes without FCS */
    uint64_t lost_rx_packets, lost_tx_packets;           /* by our own dice; a lost TX is not in tx_packets */
    uint64_t sent_again, timeouts, acks_sent, naks_sent, acks_received, naks_received;
    uint64_t contribution_packets, contribution_bytes; /* first transmissions */
    uint64_t rounds, result_bytes;                     /* results that were whole, all ranks together */
    uint64_t wrong_packets;                            /* with bytes that are not the sum's */
    uint64_t wrong_messages; /* another address, length or immediate than the round's */
    uint64_t drops[PSC_DROP_COUNT];
};

/* The first wrong sum, for people. */
struct load_wrong {
    uint32_t rank, pool, round, op;
    uint32_t offset_bytes;
    uint32_t expected, got;
};

struct load {
    struct psc_local local;
    struct psc_ip peer;
    struct psc_mac peer_mac;
    bool peer_known;
    uint32_t ranks, mtu;
    uint32_t check_icrc_every; /* result packets; 1: all. Their bytes are always looked at. */
    struct psc_requester_config requester_config;
    struct load_shapes shapes[PSC_POOL_CLASS_COUNT];
    uint32_t round_limit[PSC_POOL_CLASS_COUNT]; /* rounds that may be posted */
    struct load_qp qps[LOAD_MAX_QPS];
    uint32_t qp_count;
    uint32_t turn_qp; /* whose turn it is to send */
    uint32_t icrc_turn;
    struct load_counters counters;
    struct load_wrong first_wrong;
    struct psc_crc32_shift shift; /* by one MTU */
    uint8_t zeros[LOAD_MTU_MAX];
    uint8_t answers[LOAD_BURST][LOAD_FRAME_ROOM]; /* ARP and ping, until they have been sent */
    uint32_t answer_bytes[LOAD_BURST];
    uint32_t answer_count;
};

/* A further QP, ready to receive and to send. */
void load_qp_add(struct load *load, const struct load_qp_spec *spec);
/* Forgets all QPs and shapes. */
void load_forget(struct load *load);
/* Posts the probe of every QP. */
void load_probe(struct load *load, uint64_t now_ns);
bool load_probed(const struct load *load);
/* Posts what the windows and round_limit allow. */
void load_post(struct load *load, uint64_t now_ns);
/* Rounds that every rank has received, and the furthest that any has posted. */
uint32_t load_received(const struct load *load, uint32_t pool);
uint32_t load_posted(const struct load *load, uint32_t pool);
/* The first QP that is lost; NULL: all live. */
const struct load_qp *load_lost(const struct load *load);

void load_receive(struct load *load, const uint8_t *frame, uint32_t bytes, uint64_t now_ns);
/* At most `max` frames to send. */
uint32_t load_emit(struct load *load, struct psc_emit *emits, uint32_t max, uint64_t now_ns);
void load_expire(struct load *load, uint64_t now_ns);
/* Contribution packets of round 0 and after, of all ranks, as if just posted and without a queue pair's
 * memory: what testpmd is given to forward. */
void load_blind_frame(struct load *load, uint64_t number, struct psc_emit *emit);

/* ---- The port: load_port.c ---- */

/* What went wrong, for people: one sentence without its full stop. */
struct load_error {
    char text[512];
};
/* Fills *error; returns false. */
__attribute__((format(printf, 2, 3))) bool load_fail(struct load_error *error, const char *format, ...);

struct load_options {
    uint32_t core;      /* CPU of this thread; LOAD_NO_CORE: any that the process may use */
    uint32_t lane_core; /* CPU of a lane beside it; LOAD_NO_CORE: none */
    bool huge_pages;
    uint32_t memory_mib;
};

struct load_port {
    uint16_t port_id;
    struct rte_mempool *rx_mempool, *tx_mempool;
    struct rte_mbuf *pending[LOAD_BURST]; /* built, not yet taken by the port */
    uint32_t pending_begin, pending_end;
    uint32_t loss_per_million;
    uint64_t dice;
    uint32_t idle_sleep_us;
    uint8_t scratch[LOAD_FRAME_ROOM];
};

uint64_t load_now_ns(void);
bool load_eal_start(const struct load_options *options, struct load_error *error);
/* A device that is there; one that must be made first. Fills its MAC. */
bool load_port_open(struct load_port *port, const char *name, uint16_t ring_packets, struct psc_mac *mac,
                    struct load_error *error);
bool load_port_attach(struct load_port *port, const char *devargs, uint16_t ring_packets, struct psc_mac *mac,
                      struct load_error *error);
void load_port_close(struct load_port *port);
/* One turn: receives a burst, sends what is due. Returns whether anything came or went. */
bool load_port_turn(struct load_port *port, struct load *load);
/* One turn of the blind sender: at most `in_flight` frames of load_blind_frame are out. */
bool load_port_blind_turn(struct load_port *port, struct load *load, uint32_t in_flight);
/* Mbufs that are not in their mempools, those included that the device holds to receive into. */
uint32_t load_port_mbufs(const struct load_port *port);

/* ---- Answers to commands: load_answer.c. A command's result: 0, or -1 with what went wrong. ---- */

__attribute__((format(printf, 1, 2))) int load_answer_error(const char *format, ...);
int load_answer_lost(const struct load_qp *qp);
int load_answer_counters(const struct load *load, const struct load_port *port, double seconds);

/* ---- A lane beside the workers: load_lane.c ---- */

struct load_lane_options {
    uint32_t ranks, mtu, window, chunk_bytes, op;
};
/* Instead of load_port_attach: two rings, a lane at the other end of them, its job, and its QPs, which are
 * joined to ours. */
bool load_lane_open(struct load_port *port, struct load *load, const struct load_lane_options *options,
                    struct load_error *error);
const struct psc_lane_stats *load_lane_stats(void);
void load_lane_close(void);

#endif
