/* bench/: the workers' own structs, shared by lane_connect.c (their connections), lane_workers.c
 * (their run) and lane_frames.c (their frames). */
#ifndef PSC_BENCH_WORKERS_H
#define PSC_BENCH_WORKERS_H

#include "lane_bench.h"

#define ROUNDS_KEPT              1024u /* of which times are remembered: more than any window */
#define PSC_BENCH_PACKETS        256u  /* of a contribution, at most */
#define PSC_BENCH_RESULT_PACKETS (8 * PSC_BENCH_PACKETS)
#define BENCH_SHIFTS             256u
#define LATENCIES_KEPT           262144u

/* A frame whose changing fields are rewritten in place. A CRC is linear: what a changed word adds to it
 * depends on the difference and on how many bytes follow, not on what they are. */
struct bench_field {
    uint32_t offset;
    const struct psc_crc32_shift *shift; /* by the bytes from the field to the ICRC */
};
struct bench_frame {
    struct rte_mbuf *m;
    struct bench_field psn;   /* the word of AckReq and PSN */
    struct bench_field round; /* in the address; no shift: the packet has none */
    struct bench_field stamp; /* the payload's word that changes; no shift: none does */
    uint32_t icrc_offset, payload_offset, payload_bytes;
};

struct bench_worker {
    struct psc_flow flow;
    struct psc_local local;
    uint8_t *contributions[BENCH_STAMPS];
    uint32_t bytes, packets;    /* of a contribution; a stream's are each rank's own */
    struct bench_frame *frames; /* [depth][packets]: more than one burst takes */
    struct bench_frame ack;
    uint32_t stamp_words[BENCH_STAMPS][PSC_BENCH_PACKETS];
    uint32_t first_psn;     /* of round 0 */
    uint32_t round, packet; /* to be sent next */
    uint32_t fed;           /* in this burst */
    uint32_t result_psn;    /* that must come next */
    uint32_t result_packet; /* of the round below */
    uint32_t received_rounds;
    bool ack_due;
};

struct bench_workers {
    struct bench_case one;
    struct bench_rig *rig;
    uint32_t index; /* of its first QP on the lane; frames to it carry it above the rank */
    struct psc_job *job;
    struct bench_worker ranks[PSC_MAX_RANKS];
    uint32_t depth; /* frames of a rank and packet */
    uint32_t expansion;
    uint8_t *expected; /* [stamp][result_room_bytes] */
    uint32_t result_room_bytes, result_bytes, result_packets;
    uint32_t watched[PSC_BENCH_RESULT_PACKETS]; /* offset in each of the word that is always looked at */
    uint32_t stop_round;                        /* begun by nobody yet */
    uint8_t begun[ROUNDS_KEPT];                 /* ranks that have begun it */
    uint32_t noted_round;                       /* not begun by all */
    bool answered[ROUNDS_KEPT];
    uint64_t begun_ticks[ROUNDS_KEPT]; /* when the last rank's first packet was offered */
    uint32_t *latencies;
    uint32_t latency_count;
    uint8_t *slots;                              /* for bench_kernels_run */
    struct psc_crc32_shift shifts[BENCH_SHIFTS]; /* few lengths, but a stream's stamps stand anywhere */
    uint32_t shift_bytes[BENCH_SHIFTS], shift_count;
};

/* lane_workers.c: the steps of bench_workers_run, for who runs several jobs on a lane. */
uint32_t bench_workers_feed(struct bench_workers *workers);
void bench_workers_take(struct bench_workers *workers, struct rte_mbuf *m, uint64_t now);
void bench_find_watched(struct bench_workers *workers);
bool bench_workers_finished(const struct bench_workers *workers);
uint32_t bench_workers_newest_round(const struct bench_workers *workers);

/* lane_frames.c */
void bench_frames_make(struct bench_workers *workers, uint32_t rank, uint64_t va_base, uint32_t rkey,
                       uint32_t dest_qpn);
void bench_frames_free(struct bench_workers *workers, uint32_t rank);
/* The frame of that round and packet, made so in place. */
struct rte_mbuf *bench_frame_of(struct bench_workers *workers, uint32_t rank, uint32_t round,
                                uint32_t packet);
struct rte_mbuf *bench_ack_of(struct bench_worker *worker, uint32_t psn);
/* A whole frame in a new mbuf. */
struct rte_mbuf *bench_frame_copy(struct bench_rig *rig, const struct psc_flow *flow,
                                  const struct psc_header *header, const void *payload, uint32_t bytes);
/* Fails unless frames of a few rounds are what psc_parse and psc_icrc_ok find sound. */
void bench_frames_check(struct bench_workers *workers, uint64_t va_base);

/* Puts an offered frame back into the hands that made it: the lane frees it once. */
static inline struct rte_mbuf *bench_lend(struct rte_mbuf *m)
{
    rte_mbuf_refcnt_set(m, 2);
    return m;
}

#endif
