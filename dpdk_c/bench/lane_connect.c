/* N workers of one job: their memory, and connections as the control core makes them. */
#include "lane_workers.h"

#include <rte_cycles.h>
#include <stdlib.h>
#include <string.h>

#define DRAIN 1024u

static uint64_t va_base_of(uint32_t rank)
{
    return (uint64_t)rank << PSC_VA_WINDOW_SHIFT; /* leaves the round's bits to the round */
}

/* The index-th of the lane's QPs. */
static uint32_t bench_qpn(const struct bench_workers *workers, uint32_t index)
{
    return index << PSC_LANE_BITS | workers->rig->lane.number;
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
                                       .qpn = bench_qpn(workers, index + rank),
                                       .start_psn = 0xffff00 + rank, /* wraps soon */
                                       .rkey = 0x1000 + rank,
                                       .va_base = va_base_of(rank),
                                       .udp_port = 0xc000,
                                       .peer = workers->ranks[rank].flow.src,
                                       .peer_qpn = index << 8 | rank,
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

/* What the workers contribute, and what must come back. */
static void make_values(struct bench_workers *workers)
{
    const struct bench_case *one = &workers->one;
    size_t contribution_bytes = (size_t)one->packets * one->mtu;

    workers->result_room_bytes = one->packets * one->mtu * workers->expansion;
    workers->expected = calloc(BENCH_STAMPS, workers->result_room_bytes);
    for (uint32_t stamp = 0; stamp < BENCH_STAMPS; stamp++) {
        workers->result_bytes =
            bench_result(one, stamp, workers->expected + (size_t)stamp * workers->result_room_bytes);
        for (uint32_t rank = 0; rank < one->ranks; rank++) {
            struct bench_worker *worker = &workers->ranks[rank];
            worker->contributions[stamp] = calloc(1, contribution_bytes);
            worker->bytes = bench_contribution(one, rank, stamp, worker->contributions[stamp]);
            worker->packets = (worker->bytes + one->mtu - 1) / one->mtu;
        }
    }
    workers->result_packets = (workers->result_bytes + one->mtu - 1) / one->mtu;
}

/* Frames of a rank and packet: more than one burst takes. */
static uint32_t depth_of(const struct bench_workers *workers)
{
    uint32_t packets = 0;

    for (uint32_t rank = 0; rank < workers->one.ranks; rank++)
        packets += workers->ranks[rank].packets;
    return (PSC_IO_BURST + packets - 1) / packets;
}

struct bench_workers *bench_workers_new(struct bench_rig *rig, const struct bench_case *one, uint32_t index)
{
    struct bench_workers *workers = calloc(1, sizeof *workers);

    if (one->packets > PSC_BENCH_PACKETS || one->burst > PSC_IO_BURST || one->ranks > PSC_MAX_RANKS)
        bench_fail("%s: too much", one->name);
    workers->one = *one;
    workers->rig = rig;
    workers->index = index;
    workers->expansion = psc_op_form(one->op)->expansion;
    make_values(workers);
    workers->depth = depth_of(workers);
    workers->latencies = calloc(LATENCIES_KEPT, sizeof *workers->latencies);
    workers->job = make_job(workers);
    for (uint32_t rank = 0; rank < one->ranks; rank++) {
        struct bench_worker *worker = &workers->ranks[rank];
        worker->flow = flow_of(rig, rank);
        worker->local = (struct psc_local){.mac = worker->flow.src_mac, .ip = worker->flow.src};
        worker->first_psn = 0xfff000 + rank + 1;
        worker->result_psn = (0xffff00 + rank + 1) & PSC_PSN_MASK;
        bench_frames_make(workers, rank, va_base_of(rank), 0x1000 + rank, bench_qpn(workers, index + rank));
    }
    bench_frames_check(workers, 0);
    bench_find_watched(workers);
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
    for (uint32_t rank = 0; rank < workers->one.ranks; rank++) {
        bench_frames_free(workers, rank);
        for (uint32_t stamp = 0; stamp < BENCH_STAMPS; stamp++)
            free(workers->ranks[rank].contributions[stamp]);
    }
    rig->lane.memory.release(rig->lane.memory.context, workers->slots);
    free(workers->latencies);
    free(workers->expected);
    free(workers);
}
