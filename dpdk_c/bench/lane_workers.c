/* N workers on the lane's own core: connections as the control core makes them, then rounds as fast as the
 * window lets them, every result looked at and acknowledged. */
#include "lane_workers.h"

#include <rte_cycles.h>
#include <stdlib.h>
#include <string.h>

#define DRAIN 1024u

static uint64_t va_base_of(uint32_t rank)
{
    return (uint64_t)rank << PSC_VA_WINDOW_SHIFT; /* leaves the round's bits to the round */
}

/* ---- Connections ---- */

static struct psc_flow flow_of(const struct bench_rig *rig, uint32_t rank)
{
    return (struct psc_flow){.src_mac = {{2, 0, 0, 0, 1, (uint8_t)rank}},
                             .dst_mac = rig->port.mac,
                             .src = {{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = (uint8_t)(2 + rank)}},
                             .dst = {{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}},
                             .udp_port = (uint16_t)(0xc000 + rank),
                             .dscp = 26};
}

static struct psc_job *make_job(struct bench_workers *workers)
{
    const struct bench_case *one = &workers->one;
    const struct psc_op_form *form = psc_op_form(one->op);
    struct psc_job_spec spec = {
        .world_size = one->ranks,
        .mtu = one->mtu,
        .ops = {one->op},
        .op_count = 1,
        .pools = {{.window = one->window, .chunk_bytes = one->packets * one->mtu * form->expansion}},
        .pool_count = 1,
        .stats = &workers->rig->job_stats};

#ifdef PSC_BENCH_NO_COUNTERS
    spec.stats = NULL;
#endif
    for (uint32_t i = 0; i < form->table_entries; i++)
        spec.tables[one->op][i] = bench_table_entry(form->table_entries, i);
    struct psc_job *job = psc_job_new(&spec, &workers->rig->lane.memory);
    if (job == NULL)
        bench_fail("%s: the job's shape is refused, or there is no memory for it", one->name);
    return job;
}

static struct psc_command connect_command(const struct bench_workers *workers, uint32_t rank, uint32_t index)
{
    return (struct psc_command){.kind = PSC_CMD_CONNECT,
                                .job = workers->job,
                                .rank = rank,
                                .qp = {.rank = rank,
                                       .qpn = (index + rank) << PSC_LANE_BITS,
                                       .start_psn = 0xffff00 + rank, /* wraps soon */
                                       .rkey = 0x1000 + rank,
                                       .va_base = va_base_of(rank),
                                       .udp_port = 0xc000,
                                       .peer = workers->ranks[rank].flow.src,
                                       .peer_qpn = rank,
                                       .peer_start_psn = 0xfff000 + rank,
                                       .result_rkey = 0x2000 + rank,
                                       .result_va = (uint64_t)(rank + 1) << 32}};
}

static void offer(struct bench_rig *rig, struct rte_mbuf *m)
{
    if (rte_ring_enqueue(rig->to_lane, m) != 0)
        bench_fail("the ring to the lane is full");
}

/* ARP from the worker teaches the lane its MAC; nobody has to wait for the lane's own question. */
static void announce(struct bench_workers *workers, uint32_t rank)
{
    const struct psc_flow *flow = &workers->ranks[rank].flow;
    const struct psc_local worker = {.mac = flow->src_mac, .ip = flow->src};
    struct rte_mbuf *m = rte_pktmbuf_alloc(workers->rig->frames);

    if (m == NULL)
        bench_fail("too few mbufs");
    m->data_len = (uint16_t)psc_neighbour_request(&worker, &flow->dst, rte_pktmbuf_mtod(m, uint8_t *));
    m->pkt_len = m->data_len;
    offer(workers->rig, m);
}

static void send_probe(struct bench_workers *workers, uint32_t rank)
{
    static const uint8_t zeros[4096];
    const struct psc_header header = {.opcode = PSC_RC_WRITE_ONLY_IMM,
                                      .ack_req = true,
                                      .psn = workers->ranks[rank].first_psn - 1,
                                      .va = va_base_of(rank),
                                      .rkey = 0x1000 + rank,
                                      .dma_len = workers->one.mtu,
                                      .imm = PSC_IMM_PROBE};

    offer(workers->rig,
          bench_frame_copy(workers->rig, &workers->ranks[rank].flow, &header, zeros, workers->one.mtu));
}

/* What the lane has sent is not looked at while connections are made, but for its probe, whose PSN is known.
 */
static void turn_and_discard(struct bench_rig *rig)
{
    struct rte_mbuf *sent[DRAIN];

    for (int i = 0; i < 4; i++) {
        psc_io_lane_turn(&rig->lane);
        rte_pktmbuf_free_bulk(sent, rte_ring_dequeue_burst(rig->from_lane, (void **)sent, DRAIN, NULL));
    }
}

static void connect_all(struct bench_workers *workers, uint32_t index)
{
    struct bench_rig *rig = workers->rig;
    uint32_t ranks = workers->one.ranks;

    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct psc_command command = connect_command(workers, rank, index);
        bench_command(rig, &command);
    }
    turn_and_discard(rig);
    for (uint32_t rank = 0; rank < ranks; rank++)
        announce(workers, rank);
    turn_and_discard(rig);
    for (uint32_t rank = 0; rank < ranks; rank++)
        bench_expect_event(rig, PSC_EVENT_CONNECTED);
    for (uint32_t rank = 0; rank < ranks; rank++)
        send_probe(workers, rank);
    turn_and_discard(rig);
    for (uint32_t rank = 0; rank < ranks; rank++)
        offer(rig, bench_ack_of(&workers->ranks[rank], 0xffff00 + rank));
    turn_and_discard(rig);
    for (uint32_t rank = 0; rank < ranks; rank++)
        bench_expect_event(rig, PSC_EVENT_PROBED);
}

static void make_expected(struct bench_workers *workers)
{
    const struct bench_case *one = &workers->one;
    size_t result_bytes = (size_t)one->mtu * workers->expansion;

    workers->expected = malloc(BENCH_STAMPS * one->packets * result_bytes);
    for (uint32_t stamp = 0; stamp < BENCH_STAMPS; stamp++)
        for (uint32_t packet = 0; packet < one->packets; packet++)
            bench_expect(one, packet, stamp,
                         workers->expected + (stamp * one->packets + packet) * result_bytes);
}

struct bench_workers *bench_workers_new(struct bench_rig *rig, const struct bench_case *one, uint32_t index)
{
    struct bench_workers *workers = calloc(1, sizeof *workers);

    if (one->packets > PSC_BENCH_PACKETS || one->burst > PSC_IO_BURST || one->ranks > PSC_MAX_RANKS)
        bench_fail("%s: too much", one->name);
    workers->one = *one;
    workers->rig = rig;
    workers->expansion = psc_op_form(one->op)->expansion;
    workers->depth = (PSC_IO_BURST + one->ranks * one->packets - 1) / (one->ranks * one->packets);
    workers->latencies = calloc(LATENCIES_KEPT, sizeof *workers->latencies);
    workers->job = make_job(workers);
    for (uint32_t rank = 0; rank < one->ranks; rank++) {
        struct bench_worker *worker = &workers->ranks[rank];
        worker->flow = flow_of(rig, rank);
        worker->local = (struct psc_local){.mac = worker->flow.src_mac, .ip = worker->flow.src};
        worker->first_psn = 0xfff000 + rank + 1;
        worker->result_psn = (0xffff00 + rank + 1) & PSC_PSN_MASK;
        bench_frames_make(workers, rank, va_base_of(rank), 0x1000 + rank, (index + rank) << PSC_LANE_BITS);
    }
    bench_frames_check(workers, 0);
    make_expected(workers);
    workers->slots = rig->lane.memory.alloc(rig->lane.memory.context, 2 * (size_t)one->window * one->packets *
                                                                          one->mtu * workers->expansion);
    const struct psc_command attach = {.kind = PSC_CMD_ATTACH, .job = workers->job};
    bench_command(rig, &attach);
    connect_all(workers, index);
    return workers;
}

void bench_workers_free(struct bench_workers *workers)
{
    struct bench_rig *rig = workers->rig;
    const struct psc_command detach = {.kind = PSC_CMD_DETACH, .job = workers->job};

    bench_command(rig, &detach);
    bench_expect_event(rig, PSC_EVENT_DETACHED);
    psc_job_free(workers->job);
    for (uint32_t rank = 0; rank < workers->one.ranks; rank++)
        bench_frames_free(workers, rank);
    rig->lane.memory.release(rig->lane.memory.context, workers->slots);
    free(workers->latencies);
    free(workers->expected);
    free(workers);
}

/* ---- Feeding ---- */

static bool may_send(const struct bench_workers *workers, uint32_t rank, uint32_t lag)
{
    const struct bench_worker *worker = &workers->ranks[rank];
    uint32_t packets = workers->one.packets;

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
    if (++worker->packet == workers->one.packets) {
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
static uint32_t feed(struct bench_workers *workers)
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
    uint32_t result_packets = workers->one.packets * workers->expansion;

    return workers->expected + ((size_t)(round % BENCH_STAMPS) * result_packets + packet) * workers->one.mtu;
}

/* The whole frame as a NIC would judge it. */
static void check_result(const struct bench_workers *workers, uint32_t rank, struct rte_mbuf *m)
{
    const struct bench_worker *worker = &workers->ranks[rank];
    uint32_t round = worker->received_rounds, packet = worker->result_packet;
    uint8_t buffer[4096 + PSC_HEADER_MAX];
    struct psc_packet parsed;
    enum psc_drop why;

    const uint8_t *frame = rte_pktmbuf_read(m, 0, m->pkt_len, buffer);
    if (psc_parse(frame, m->pkt_len, &worker->local, &parsed, &why) != PSC_FRAME_ROCE)
        bench_fail("round %u packet %u: the result is dropped: %d", round, packet, (int)why);
    if (!psc_icrc_ok(&parsed))
        bench_fail("round %u packet %u: the result's ICRC is wrong", round, packet);
    if (memcmp(parsed.payload, expected_of(workers, round, packet), workers->one.mtu) != 0)
        bench_fail("round %u packet %u for rank %u: the sum is wrong", round, packet, rank);
}

static void take_result(struct bench_workers *workers, uint32_t rank, struct rte_mbuf *m, uint32_t psn,
                        uint64_t now)
{
    struct bench_worker *worker = &workers->ranks[rank];
    uint32_t round = worker->received_rounds, place = round % ROUNDS_KEPT, first;

    if (psn != worker->result_psn)
        bench_fail("round %u packet %u for rank %u: PSN %u instead of %u", round, worker->result_packet, rank,
                   psn, worker->result_psn);
    const void *start = rte_pktmbuf_read(m, m->pkt_len - 4 - workers->one.mtu, 4, &first);
    if (memcmp(start, expected_of(workers, round, worker->result_packet), 4) != 0)
        bench_fail("round %u packet %u for rank %u: the sum begins wrong", round, worker->result_packet,
                   rank);
    if (round < 4 || (round % 64 == 0 && rank == round / 64 % workers->one.ranks))
        check_result(workers, rank, m);
    if (worker->result_packet == 0 && !workers->answered[place]) {
        workers->answered[place] = true;
        if (workers->latency_count < LATENCIES_KEPT)
            workers->latencies[workers->latency_count++] = (uint32_t)(now - workers->begun_ticks[place]);
    }
    worker->result_psn = (psn + 1) & PSC_PSN_MASK;
    if (++worker->result_packet == workers->one.packets * workers->expansion) {
        worker->result_packet = 0;
        worker->received_rounds++;
    }
}

static void take(struct bench_workers *workers, struct rte_mbuf *m, uint64_t now)
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

static bool finished(const struct bench_workers *workers)
{
    for (uint32_t rank = 0; rank < workers->one.ranks; rank++)
        if (workers->ranks[rank].received_rounds != workers->stop_round || workers->ranks[rank].ack_due)
            return false;
    return true;
}

static uint32_t newest_round(const struct bench_workers *workers)
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

    workers->stop_round = newest_round(workers) - 1; /* nobody gets so far */
    while (idle < 1000 && !finished(workers)) {
        uint64_t start = rte_rdtsc();
        uint32_t fed = feed(workers);
        uint64_t fed_at = rte_rdtsc();
        psc_io_lane_turn(&rig->lane);
        uint64_t turned = rte_rdtsc();
        uint32_t count = rte_ring_dequeue_burst(rig->from_lane, (void **)sent, DRAIN, NULL);
        for (uint32_t i = 0; i < count; i++)
            take(workers, sent[i], turned);
        uint64_t drained = rte_rdtsc();
        rte_pktmbuf_free_bulk(sent, count);
        uint64_t freed = rte_rdtsc();

        times->lane_ticks += turned - fed_at + freed - drained;
        times->feed_ticks += fed_at - start + drained - turned;
        times->contribution_packets += fed;
        times->turns++;
        idle = fed + count > 0 ? 0 : idle + 1;
        if (start - begin >= ticks && (int32_t)(workers->stop_round - newest_round(workers)) < 0)
            workers->stop_round = newest_round(workers);
    }
    psc_io_lane_turn(&rig->lane); /* the last ACKs */
    if (idle == 1000)
        bench_fail("%s: nothing moves any more", workers->one.name);
}
