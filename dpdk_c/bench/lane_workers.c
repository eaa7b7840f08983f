/* N workers on the lane's own core: rounds as fast as the window lets them, every result looked at and
 * acknowledged. */
#include "lane_workers.h"

#include <rte_cycles.h>
#include <signal.h>
#include <string.h>

#define DRAIN 1024u

/* ---- Feeding ---- */

static bool may_send(const struct bench_workers *workers, uint32_t rank, uint32_t lag)
{
    const struct bench_worker *worker = &workers->ranks[rank];
    uint32_t packets = worker->packets;

    if (worker->round - worker->received_rounds >= workers->one.window ||
        worker->round == workers->stop_round || worker->fed == workers->depth * packets)
        return false;
    if (lag == 0 || rank == 0)
        return true;
    const struct bench_worker *ahead = &workers->ranks[rank - 1];
    return (ahead->round - worker->round) * packets + ahead->packet - worker->packet >= lag;
}

static struct rte_mbuf *next_frame(struct bench_workers *workers, uint32_t rank)
{
    struct bench_worker *worker = &workers->ranks[rank];
    struct rte_mbuf *m = bench_frame_of(workers, rank, worker->round, worker->packet);

    if (worker->packet == 0)
        workers->begun[worker->round % ROUNDS_KEPT]++;
    if (++worker->packet == worker->packets) {
        worker->packet = 0;
        worker->round++;
    }
    worker->fed++;
    return m;
}

/* Packet by packet, one of each rank in turn. */
static uint32_t fill_burst(struct bench_workers *workers, struct rte_mbuf **burst, uint32_t count,
                           uint32_t lag)
{
    uint32_t before;

    do {
        before = count;
        for (uint32_t rank = 0; rank < workers->one.ranks && count < workers->one.burst; rank++)
            if (may_send(workers, rank, lag))
                burst[count++] = next_frame(workers, rank);
    } while (count > before);
    return count;
}

/* Rounds are begun in order by every rank, so by all of them. */
static void note_offered(struct bench_workers *workers)
{
    uint64_t now = rte_rdtsc();

    for (; workers->begun[workers->noted_round % ROUNDS_KEPT] == workers->one.ranks; workers->noted_round++) {
        uint32_t place = workers->noted_round % ROUNDS_KEPT;
        workers->begun_ticks[place] = now;
        workers->answered[place] = false;
        workers->begun[place] = 0;
    }
}

/* ACKs that are due, then contributions. Returns how many of the latter. */
uint32_t bench_workers_feed(struct bench_workers *workers)
{
    struct rte_mbuf *burst[PSC_IO_BURST];
    uint32_t acks = 0, count;

    for (uint32_t rank = 0; rank < workers->one.ranks; rank++) {
        struct bench_worker *worker = &workers->ranks[rank];
        worker->fed = 0;
        if (worker->ack_due && acks < workers->one.burst) {
            burst[acks++] = bench_ack_of(worker, worker->result_psn - 1);
            worker->ack_due = false;
        }
    }
    count = fill_burst(workers, burst, acks, workers->one.lag);
    if (count == 0) /* the first cannot get further ahead: the others catch up */
        count = fill_burst(workers, burst, acks, 0);
    if (rte_ring_enqueue_burst(workers->rig->to_lane, (void **)burst, count, NULL) != count)
        bench_fail("the ring to the lane is full");
    note_offered(workers);
    return count - acks;
}

/* ---- Draining ---- */

static const uint8_t *expected_of(const struct bench_workers *workers, uint32_t round, uint32_t packet)
{
    return workers->expected + (size_t)(round % BENCH_STAMPS) * workers->result_room_bytes +
           (size_t)packet * workers->one.mtu;
}

/* Of a result's packet: the last may be shorter. */
static uint32_t expected_bytes(const struct bench_workers *workers, uint32_t packet)
{
    uint32_t rest = workers->result_bytes - packet * workers->one.mtu;

    return rest < workers->one.mtu ? rest : workers->one.mtu;
}

/* In each packet of the result, the first word that differs with every stamp: what an earlier round left is
 * seen there. The first of all where none does (of what one packet expands to, the later ones). */
void bench_find_watched(struct bench_workers *workers)
{
    for (uint32_t packet = 0; packet < workers->result_packets; packet++)
        for (uint32_t at = expected_bytes(workers, packet); at > 0; at -= 4) {
            const uint8_t *words[BENCH_STAMPS];
            for (uint32_t stamp = 0; stamp < BENCH_STAMPS; stamp++)
                words[stamp] = expected_of(workers, stamp, packet) + at - 4;
            if (memcmp(words[0], words[1], 4) != 0 && memcmp(words[1], words[2], 4) != 0 &&
                memcmp(words[2], words[0], 4) != 0)
                workers->watched[packet] = at - 4;
        }
}

/* The whole frame as a NIC would judge it. */
static void check_result(const struct bench_workers *workers, uint32_t rank, struct rte_mbuf *m)
{
    const struct bench_worker *worker = &workers->ranks[rank];
    uint32_t round = worker->received_rounds, packet = worker->result_packet;
    uint32_t bytes = expected_bytes(workers, packet);
    uint8_t buffer[4096 + PSC_HEADER_MAX];
    struct psc_packet parsed;
    enum psc_drop why;

    const uint8_t *frame = rte_pktmbuf_read(m, 0, m->pkt_len, buffer);
    if (psc_parse(frame, m->pkt_len, &worker->local, &parsed, &why) != PSC_FRAME_ROCE)
        bench_fail("round %u packet %u: the result is dropped: %d", round, packet, (int)why);
    if (!psc_icrc_ok(&parsed))
        bench_fail("round %u packet %u: the result's ICRC is wrong", round, packet);
    if (parsed.payload_bytes != bytes)
        bench_fail("round %u packet %u for rank %u: %u bytes instead of %u", round, packet, rank,
                   parsed.payload_bytes, bytes);
    if (memcmp(parsed.payload, expected_of(workers, round, packet), bytes) != 0)
        bench_fail("round %u packet %u for rank %u: the sum is wrong", round, packet, rank);
}

static void take_result(struct bench_workers *workers, uint32_t rank, struct rte_mbuf *m, uint32_t psn,
                        uint64_t now)
{
    struct bench_worker *worker = &workers->ranks[rank];
    uint32_t round = worker->received_rounds, place = round % ROUNDS_KEPT, buffer;

    if (psn != worker->result_psn)
        bench_fail("round %u packet %u for rank %u: PSN %u instead of %u", round, worker->result_packet, rank,
                   psn, worker->result_psn);
    uint32_t watched = workers->watched[worker->result_packet];
    const void *word = rte_pktmbuf_read(
        m, m->pkt_len - 4 - expected_bytes(workers, worker->result_packet) + watched, 4, &buffer);
    if (memcmp(word, expected_of(workers, round, worker->result_packet) + watched, 4) != 0)
        bench_fail("round %u packet %u for rank %u: the sum is wrong at byte %u", round,
                   worker->result_packet, rank, watched);
    if (round < 4 || (round % 64 == 0 && rank == round / 64 % workers->one.ranks))
        check_result(workers, rank, m);
    if (worker->result_packet == 0 && !workers->answered[place]) {
        workers->answered[place] = true;
        if (workers->latency_count < LATENCIES_KEPT)
            workers->latencies[workers->latency_count++] = (uint32_t)(now - workers->begun_ticks[place]);
    }
    worker->result_psn = (psn + 1) & PSC_PSN_MASK;
    if (++worker->result_packet == workers->result_packets) {
        worker->result_packet = 0;
        worker->received_rounds++;
    }
}

void bench_workers_take(struct bench_workers *workers, struct rte_mbuf *m, uint64_t now)
{
    const uint8_t *bth = rte_pktmbuf_mtod(m, const uint8_t *) + 42;
    uint32_t rank = bth[7];
    uint32_t psn = (uint32_t)bth[9] << 16 | (uint32_t)bth[10] << 8 | bth[11];

    if (bth[0] == PSC_RC_ACK) {
        if (bth[12] != PSC_SYNDROME_ACK)
            bench_fail("rank %u gets a NAK: %u", rank, bth[12]);
        return;
    }
    if (!(psc_opcode_rows[bth[0]].flags & PSC_OPF_WRITE) || rank >= workers->one.ranks)
        bench_fail("an unexpected frame: opcode %u for rank %u", bth[0], rank);
    take_result(workers, rank, m, psn, now);
    workers->ranks[rank].ack_due |= bth[8] >> 7;
}

/* ---- The run ---- */

bool bench_workers_finished(const struct bench_workers *workers)
{
    for (uint32_t rank = 0; rank < workers->one.ranks; rank++)
        if (workers->ranks[rank].received_rounds != workers->stop_round || workers->ranks[rank].ack_due)
            return false;
    return true;
}

uint32_t bench_workers_newest_round(const struct bench_workers *workers)
{
    uint32_t newest = workers->ranks[0].round;

    for (uint32_t rank = 0; rank < workers->one.ranks; rank++) {
        uint32_t round = workers->ranks[rank].round + (workers->ranks[rank].packet > 0);
        newest = (int32_t)(round - newest) > 0 ? round : newest;
    }
    return newest;
}

void bench_workers_run(struct bench_workers *workers, uint64_t ticks, struct bench_times *times)
{
    struct rte_mbuf *sent[DRAIN];
    struct bench_rig *rig = workers->rig;
    uint64_t begin = rte_rdtsc(), idle = 0;

    workers->stop_round = bench_workers_newest_round(workers) - 1; /* nobody gets so far */
    while (idle < 1000 && !bench_workers_finished(workers)) {
        uint64_t start = rte_rdtsc();
        uint32_t fed = bench_workers_feed(workers);
        if (times->stepped_packets > 0)
            raise(SIGUSR1);
        uint64_t fed_at = rte_rdtsc();
        psc_io_lane_turn(&rig->lane);
        uint64_t turned = rte_rdtsc();
        if (times->stepped_packets > 0)
            raise(SIGUSR1);
        uint32_t count = rte_ring_dequeue_burst(rig->from_lane, (void **)sent, DRAIN, NULL);
        for (uint32_t i = 0; i < count; i++)
            bench_workers_take(workers, sent[i], turned);
        uint64_t drained = rte_rdtsc();
        rte_pktmbuf_free_bulk(sent, count);
        uint64_t freed = rte_rdtsc();

        times->lane_ticks += turned - fed_at + freed - drained;
        times->feed_ticks += fed_at - start + drained - turned;
        times->contribution_packets += fed;
        times->turns++;
        idle = fed + count > 0 ? 0 : idle + 1;
        if (start - begin >= ticks && times->contribution_packets >= times->stepped_packets &&
            (int32_t)(workers->stop_round - bench_workers_newest_round(workers)) < 0)
            workers->stop_round = bench_workers_newest_round(workers);
    }
    psc_io_lane_turn(&rig->lane); /* the last ACKs */
    if (idle == 1000)
        bench_fail("%s: nothing moves any more", workers->one.name);
}
