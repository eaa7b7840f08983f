/* What the tests of steering share: lanes on one port that has a queue for each, made of rings, which takes
 * no rules: on which queue a frame arrives is the test's part, and so is every mistake that a NIC could make.
 * Everything but that is what io.c makes. */
#ifndef PSC_TESTS_STEER_RIG_H
#define PSC_TESTS_STEER_RIG_H

#include "support.h"

#include "psc_io_internal.h"

#define STEER_LANES  3u /* two that may hand over to the third at once */
#define STEER_BTH_AT 42u

struct steer_rig {
    struct psc_io_port port;
    struct psc_io_lane lanes[STEER_LANES];
    struct psc_lane_stats stats[STEER_LANES];
    struct rte_ring *to_port[STEER_LANES], *from_port[STEER_LANES]; /* by queue */
    struct rte_mempool *frames;
    uint32_t at_rest[STEER_LANES]; /* mbufs of a lane */
};

extern struct steer_rig steer_rig;
extern struct psc_io_config steer_config;

/* cmocka's set-ups and tear-downs: of the group, of a test with one address or one for each lane, and of
 * either, which shows that no mbuf has been lost. */
int steer_start_eal(void **state);
int steer_stop_eal(void **state);
int steer_by_qpn(void **state);
int steer_by_address(void **state);
int steer_stop(void **state);
/* The first and the next of their steps, and the last. */
void steer_open_port(bool own_addresses, struct psc_io_error *error);
void steer_make_lanes(struct psc_io_error *error);
void steer_close_all(void);

/* Two turns of every lane: what is handed over, and what comes of it. */
void steer_turn_all(void);

struct rte_mbuf *steer_in_mbuf(const uint8_t *frame, uint32_t bytes);
void steer_arrive(uint32_t queue, struct rte_mbuf *m);
/* A sound packet for a QPN that ends in `low_bits`; `from` is the middle byte of the QPN. */
uint32_t steer_roce(uint32_t low_bits, uint32_t from, uint32_t psn, uint8_t *frame);
void steer_roce_arrives(uint32_t queue, uint32_t low_bits, uint32_t psn);
uint32_t steer_psn_of(const struct rte_mbuf *m);
/* One burst of a lane is exactly these, in this order. */
void steer_expect_burst(uint32_t lane, uint32_t count, const uint32_t *psns);
/* What went out by a queue: how many frames, and the last one's sender's last byte (of its IP address). */
uint32_t steer_answers(uint32_t queue, uint32_t address_at, uint8_t *sender);

#endif
