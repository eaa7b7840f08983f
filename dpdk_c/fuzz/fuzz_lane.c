/* fuzz/: parser, QP machine and ledger behind psc_lane_poll. Runs a script (script.h) on a lane with one job
 * and holds what comes out to what is true whatever came in. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"
#include "psc_psn.h"
#include "script.h"

#define EMITS         64u
#define START_NS      UINT64_C(5000000000)
#define WAIT_UNIT_NS  UINT64_C(50000)
#define RESULTS_KEPT  512u /* packets per rank whose bytes are remembered */
#define HOLDS_KEPT    1024u
#define BURST         16u
#define RETRANSMIT_NS UINT64_C(1000000)
#define PROGRESS_NS   UINT64_C(2000000000)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct rack {
    uint8_t shape;
    struct psc_memory memory;
    struct psc_lane_stats stats;
    struct psc_lane *lane;
    struct psc_job *job;
    uint64_t now_ns;
    uint32_t room; /* frames that the port takes in the next turn */
    bool stalled;
    struct psc_hold *holds[HOLDS_KEPT]; /* what the stalled port keeps */
    uint32_t hold_count;
    struct psc_frame burst[BURST]; /* on the heap, each of exactly its size */
    uint32_t burst_count;
    uint32_t sent_crc[SCRIPT_RANKS][RESULTS_KEPT]; /* by PSN modulo RESULTS_KEPT, 0: never sent */
};

static void *take(void *context, size_t bytes)
{
    size_t rounded_bytes = (bytes + 63) & ~(size_t)63;
    void *memory = aligned_alloc(64, rounded_bytes);

    (void)context;
    assert(memory);
    return memset(memory, 0, rounded_bytes);
}

/* The lane's own memory, over a megabyte: taken once, since mapping it anew cost more than most scripts. */
static void *take_lane(void *context, size_t bytes)
{
    static void *memory;

    if (!memory)
        memory = take(context, bytes);
    return memset(memory, 0, bytes);
}

static void keep_lane(void *context, void *memory)
{
    (void)context;
    (void)memory;
}

static void give(void *context, void *memory)
{
    (void)context;
    free(memory);
}

/* ---- What is true of everything that leaves. ---- */

/* The same PSN always carries the same bytes, but for AckReq and what covers it. */
static void check_repetition(struct rack *rack, uint32_t rank, const struct psc_packet *packet)
{
    uint32_t index = (uint32_t)psc_psn_distance(packet->psn, script_qp(rack->shape, rank).start_psn);
    uint32_t crc = psc_crc32(packet->opcode, packet->payload, packet->payload_bytes);

    if (packet->row->flags & PSC_OPF_RETH)
        crc = psc_crc32(crc, &packet->va, sizeof packet->va);
    if (packet->row->flags & PSC_OPF_IMM)
        crc = psc_crc32(crc, &packet->imm, sizeof packet->imm);
    crc |= 1u;
    if (index >= RESULTS_KEPT)
        return;
    assert(rack->sent_crc[rank][index] == 0 || rack->sent_crc[rank][index] == crc);
    rack->sent_crc[rank][index] = crc;
}

/* A result begins where a slot of the rank's result memory does, and ends in it. */
static void check_place(const struct psc_packet *packet)
{
    const uint64_t slot_bytes = SCRIPT_PACKETS * SCRIPT_MTU;
    const uint64_t offset = packet->va - script_qp(0, 0).result_va;

    assert(packet->rkey == script_qp(0, 0).result_rkey);
    assert(offset % slot_bytes == 0 && offset / slot_bytes < SCRIPT_WINDOW && packet->dma_len <= slot_bytes);
}

/* A RoCE frame is one that our own parser takes at the worker's end, with a good ICRC. */
static void check_roce(struct rack *rack, const uint8_t *frame, uint32_t bytes)
{
    struct psc_packet packet;
    enum psc_drop why;

    for (uint32_t rank = 0; rank < SCRIPT_RANKS; rank++) {
        struct psc_local worker = {.mac = script_flow(rack->shape, rank).src_mac,
                                   .ip = script_worker_ip(rack->shape, rank),
                                   .vlan = script_local(rack->shape).vlan};
        if (psc_parse(frame, bytes, &worker, &packet, &why) != PSC_FRAME_ROCE)
            continue;
        assert(psc_icrc_ok(&packet) && packet.dest_qpn == script_qp(rack->shape, rank).peer_qpn);
        if (packet.row->flags & PSC_OPF_REQUEST)
            check_repetition(rack, rank, &packet);
        if (packet.row->flags & PSC_OPF_RETH)
            check_place(&packet);
        return;
    }
}

static void check_emit(struct rack *rack, const struct psc_emit *emit)
{
    uint32_t bytes = emit->header_bytes + emit->payload_bytes + emit->trailer_bytes;
    uint8_t *frame = malloc(bytes);

    assert(frame && emit->header_bytes <= sizeof emit->header && (emit->payload_bytes == 0 || emit->hold));
    memcpy(frame, emit->header, emit->header_bytes);
    if (emit->payload_bytes > 0)
        memcpy(frame + emit->header_bytes, emit->payload, emit->payload_bytes);
    memcpy(frame + bytes - emit->trailer_bytes, emit->trailer, emit->trailer_bytes);
    if (emit->header_bytes > 0)
        check_roce(rack, frame, bytes);
    free(frame);
}

/* ---- The turns. ---- */

static void release(struct rack *rack)
{
    while (rack->hold_count > 0)
        rack->holds[--rack->hold_count]->count--;
}

static void keep(struct rack *rack, struct psc_hold *hold)
{
    assert(hold->count > 0);
    if (rack->stalled && rack->hold_count < HOLDS_KEPT)
        rack->holds[rack->hold_count++] = hold;
    else
        hold->count--;
}

static void poll(struct rack *rack)
{
    struct psc_emit emits[EMITS];
    struct psc_event event;
    uint32_t count =
        psc_lane_poll(rack->lane, rack->burst, rack->burst_count, rack->now_ns, emits, rack->room);

    assert(count <= rack->room);
    for (uint32_t i = 0; i < count; i++) {
        check_emit(rack, &emits[i]);
        if (emits[i].hold)
            keep(rack, emits[i].hold);
    }
    for (uint32_t i = 0; i < rack->burst_count; i++)
        free((void *)(uintptr_t)rack->burst[i].data);
    rack->burst_count = 0;
    rack->room = EMITS;
    while (psc_lane_next_event(rack->lane, &event))
        assert(event.job == rack->job && event.fault < PSC_FAULT_COUNT);
}

static bool apply(struct rack *rack, struct psc_command command)
{
    command.job = rack->job;
    return psc_lane_apply(rack->lane, &command, rack->now_ns);
}

/* The worker's MAC, told as a neighbour tells it. */
static void introduce(struct rack *rack, uint32_t rank)
{
    const struct psc_flow flow = script_flow(rack->shape, rank);
    const struct psc_local worker = {.mac = flow.src_mac, .ip = flow.src, .vlan = flow.vlan};
    struct psc_local local = script_local(rack->shape);
    uint8_t *frame = malloc(PSC_HOST_FRAME_MAX);

    assert(frame);
    uint32_t bytes = psc_neighbour_request(&worker, &local.ip, frame);
    rack->burst[rack->burst_count++] = (struct psc_frame){.data = frame, .bytes = bytes};
    poll(rack);
}

/* The end of a rank's QP as in the last epoch; `lacks` results of those that are complete are still to come.
 */
static void connect_rank(struct rack *rack, uint32_t rank, uint32_t lacks)
{
    const struct psc_pool *pool = &rack->job->pools[0].pool;
    const struct psc_ledger_row *row = &pool->ledger[rank];
    struct psc_command command = {.kind = PSC_CMD_CONNECT, .qp = script_qp(rack->shape, rank)};

    command.qp.received =
        pool->completed_rounds - lacks % (pool->completed_rounds - row->acknowledged_rounds + 1);
    bool connected = apply(rack, command);
    assert(connected);
    introduce(rack, rank);
}

static void attach(struct rack *rack)
{
    const struct psc_job_spec spec = {
        .world_size = SCRIPT_RANKS,
        .mtu = SCRIPT_MTU,
        .ops = {PSC_OP_SUM_I32, PSC_OP_MAX_F32, PSC_OP_LUT4_U8, PSC_OP_LUT2_U16, PSC_OP_EXPAND_SUM_I32},
        .op_count = SCRIPT_OPS,
        .tables = {[PSC_OP_LUT4_U8] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 127},
                   [PSC_OP_LUT2_U16] = {0, 1, 2, 255}},
        .pools = {{.window = SCRIPT_WINDOW, .chunk_bytes = SCRIPT_PACKETS * SCRIPT_MTU}},
        .pool_count = 1};

    rack->job = psc_job_new(&spec, &rack->memory);
    assert(rack->job && apply(rack, (struct psc_command){.kind = PSC_CMD_ATTACH}));
    memset(rack->sent_crc, 0, sizeof rack->sent_crc);
    for (uint32_t rank = 0; rank < SCRIPT_RANKS; rank++) {
        connect_rank(rack, rank, 0);
        assert(rack->job->pools[0].qps[rank].state == PSC_QP_RTS);
    }
}

/* The job may be freed when nothing outside points into it, and only then. */
static void detach(struct rack *rack)
{
    bool done = apply(rack, (struct psc_command){.kind = PSC_CMD_DETACH});
    assert(done);
    release(rack);
    poll(rack); /* with what is left of a burst, after which clocks are not judged */
    poll(rack);
    assert(!rack->lane->jobs && rack->stats.qps == 0 && rack->stats.slots == 0);
    psc_job_free(rack->job);
}

/* ---- Records. ---- */

/* What the QP that a frame is for waits for, written into the frame. */
static void make_due(struct rack *rack, uint8_t *frame, uint32_t bytes)
{
    uint32_t at;
    bool v6;

    if (!script_find_ip(frame, bytes, &at, &v6))
        return;
    struct psc_bth *bth = (void *)(frame + at + (v6 ? sizeof(struct psc_ipv6) : sizeof(struct psc_ipv4)) +
                                   sizeof(struct psc_udp));
    uint32_t rank = (psc_from_be24(bth->dest_qpn) >> PSC_LANE_BITS) % SCRIPT_RANKS;
    const struct psc_qp *qp = &rack->job->pools[0].qps[rank];
    uint16_t flags = psc_opcode_rows[bth->opcode].flags;
    uint32_t psn = flags & PSC_OPF_RESPONSE ? qp->requester.unacked_psn : qp->responder.expected_psn;
    bth->psn = psc_to_be24(psn);
    if ((flags & PSC_OPF_RETH) &&
        (uint32_t)(frame + bytes - (uint8_t *)(bth + 1)) >= sizeof(struct psc_reth)) {
        struct psc_reth *reth = (void *)(bth + 1);
        uint64_t round = rack->job->pools[0].pool.ledger[rank].begun_rounds;
        uint64_t offset = psc_from_be64(reth->va) - qp->spec.va_base;
        if (offset >> PSC_VA_WINDOW_SHIFT != 0) /* not the probe's window, which has no round */
            offset = (offset & ~(UINT64_C(0xffffffff) << PSC_VA_ROUND_SHIFT)) | round << PSC_VA_ROUND_SHIFT;
        reth->va = psc_to_be64(qp->spec.va_base + offset);
    }
    script_repair(frame, bytes);
}

static void take_frame(struct rack *rack, const struct record *record)
{
    uint8_t *frame = malloc(record->bytes);

    assert(frame || record->bytes == 0);
    if (record->bytes > 0)
        memcpy(frame, record->data, record->bytes);
    if (record->kind != RECORD_FRAME)
        make_due(rack, frame, record->bytes);
    rack->burst[rack->burst_count++] = (struct psc_frame){.data = frame, .bytes = record->bytes};
    if (record->kind != RECORD_MORE || rack->burst_count == BURST)
        poll(rack);
}

static uint32_t number(const struct record *record, uint32_t at)
{
    return at < record->bytes ? record->data[at] : 0;
}

static void leave(struct rack *rack, const struct record *record)
{
    struct psc_command command = {.kind = PSC_CMD_LEAVE, .rank = number(record, 0)};

    command.received[0] = number(record, 1);
    (void)apply(rack, command);
    poll(rack);
}

/* A new epoch; PSNs and QPNs begin where they began before, which only a fuzzer's control core would do. */
static void resume(struct rack *rack, const struct record *record)
{
    const struct psc_command command = {.kind = PSC_CMD_RESUME};

    if (!apply(rack, command))
        return;
    memset(rack->sent_crc, 0, sizeof rack->sent_crc);
    for (uint32_t rank = 0; rank < SCRIPT_RANKS; rank++)
        if (!(rack->job->left_ranks >> rank & 1))
            connect_rank(rack, rank, number(record, rank));
}

static void run(struct rack *rack, const struct record *record)
{
    switch ((enum record_kind)record->kind) {
    case RECORD_FRAME:
    case RECORD_DUE:
    case RECORD_MORE:
        take_frame(rack, record);
        return;
    case RECORD_WAIT:
        rack->now_ns += (number(record, 0) | number(record, 1) << 8) * WAIT_UNIT_NS;
        poll(rack);
        return;
    case RECORD_STALL:
        rack->stalled = !rack->stalled;
        release(rack);
        return;
    case RECORD_ROOM:
        rack->room = number(record, 0) % (EMITS + 1);
        return;
    case RECORD_LEAVE:
        leave(rack, record);
        return;
    case RECORD_HALT:
        (void)apply(rack, (struct psc_command){.kind = PSC_CMD_HALT,
                                               .rank = number(record, 0),
                                               .fault = PSC_FAULT_RETRY_EXCEEDED});
        poll(rack);
        return;
    case RECORD_RESUME:
        resume(rack, record);
        return;
    case RECORD_END:
        (void)apply(rack, (struct psc_command){.kind = PSC_CMD_END, .ranks = number(record, 0)});
        poll(rack);
        return;
    case RECORD_DETACH:
        detach(rack);
        attach(rack);
        return;
    case RECORD_KINDS:
        return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *at = data + 1, *end = data + size;
    struct record record;

    if (size == 0)
        return -1;
    struct rack *rack = calloc(1, sizeof *rack);
    assert(rack);
    rack->shape = data[0];
    rack->memory = (struct psc_memory){.alloc = take, .release = give};
    rack->now_ns = START_NS;
    rack->room = EMITS;
    const struct psc_lane_config config = {.local = script_local(rack->shape),
                                           .prefix_bits = rack->shape & SHAPE_IPV6 ? 64 : 24,
                                           .dscp = 26,
                                           .max_unacked_packets = 8,
                                           .retransmit_ns = RETRANSMIT_NS,
                                           .retries = 6,
                                           .progress_ns = PROGRESS_NS,
                                           .waiting_event_ns = PROGRESS_NS};
    const struct psc_memory lane_memory = {.alloc = take_lane, .release = keep_lane};
    rack->lane = psc_lane_new(&config, &lane_memory, &rack->stats);
    attach(rack);
    for (uint32_t i = 0; i < SCRIPT_MAX_RECORDS && script_next(&at, end, &record); i++)
        run(rack, &record);
    rack->room = EMITS;
    poll(rack);
    detach(rack);
    psc_lane_free(rack->lane);
    free(rack);
    return 0;
}
