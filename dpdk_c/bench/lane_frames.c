/* The workers' frames: built once, then changed in place from round to round, the ICRC with them. */
#include <stdlib.h>
#include <string.h>

#include "lane_workers.h"

/* Over IPv4 without a tag; from BTH: opcode 1, flags 1, P_Key 2, congestion 1, QPN 3, AckReq 1, PSN 3. */
#define BTH_OFFSET   42u
#define PSN_OFFSET   (BTH_OFFSET + 8)
#define VA_OFFSET    (BTH_OFFSET + 12)
#define ROUND_OFFSET (VA_OFFSET + 1) /* bits 24..55 of the address, big-endian */

struct rte_mbuf *bench_frame_copy(struct bench_rig *rig, const struct psc_flow *flow,
                                  const struct psc_header *header, const void *payload, uint32_t bytes)
{
    struct rte_mbuf *m = rte_pktmbuf_alloc(rig->frames);
    uint32_t crc;

    if (m == NULL)
        bench_fail("too few mbufs for the workers' frames");
    uint8_t *at = rte_pktmbuf_mtod(m, uint8_t *);
    uint32_t header_bytes = psc_build(flow, header, bytes, at, &crc);
    if (bytes > 0)
        memcpy(at + header_bytes, payload, bytes);
    psc_icrc_finish(psc_crc32(crc, at + header_bytes, bytes), at + header_bytes + bytes);
    m->data_len = (uint16_t)(header_bytes + bytes + 4);
    m->pkt_len = m->data_len;
    return m;
}

static const struct psc_crc32_shift *shift_of(struct bench_workers *workers, uint32_t bytes)
{
    for (uint32_t i = 0; i < workers->shift_count; i++)
        if (workers->shift_bytes[i] == bytes)
            return &workers->shifts[i];
    if (workers->shift_count == BENCH_SHIFTS)
        bench_fail("more fields than places for them");
    psc_crc32_shift_init(&workers->shifts[workers->shift_count], bytes);
    workers->shift_bytes[workers->shift_count] = bytes;
    return &workers->shifts[workers->shift_count++];
}

static struct bench_field field_at(struct bench_workers *workers, uint32_t offset, uint32_t icrc_offset)
{
    return (struct bench_field){.offset = offset, .shift = shift_of(workers, icrc_offset - offset)};
}

static uint8_t opcode_of(uint32_t packet, uint32_t packets)
{
    if (packet == packets - 1)
        return packet == 0 ? PSC_RC_WRITE_ONLY_IMM : PSC_RC_WRITE_LAST_IMM;
    return packet == 0 ? PSC_RC_WRITE_FIRST : PSC_RC_WRITE_MIDDLE;
}

/* The one word of the packet that differs between stamps; UINT32_MAX: none does. */
static uint32_t stamp_at(const struct bench_worker *worker, uint32_t begin, uint32_t bytes)
{
    for (uint32_t at = begin; at < begin + bytes; at += 4)
        if (memcmp(worker->contributions[0] + at, worker->contributions[1] + at, 4) != 0)
            return at;
    return UINT32_MAX;
}

static struct bench_frame make_frame(struct bench_workers *workers, uint32_t rank, uint32_t packet,
                                     struct psc_header header)
{
    struct bench_worker *worker = &workers->ranks[rank];
    uint32_t begin = packet * workers->one.mtu, rest = worker->bytes - begin;
    uint32_t bytes = rest < workers->one.mtu ? rest : workers->one.mtu;

    header.opcode = opcode_of(packet, worker->packets);
    header.ack_req = packet == worker->packets - 1;
    struct bench_frame frame = {
        .m = bench_frame_copy(workers->rig, &worker->flow, &header, worker->contributions[0] + begin, bytes)};
    frame.icrc_offset = frame.m->data_len - 4u;
    frame.payload_offset = frame.icrc_offset - bytes;
    frame.payload_bytes = bytes;
    frame.psn = field_at(workers, PSN_OFFSET, frame.icrc_offset);
    if (packet == 0)
        frame.round = field_at(workers, ROUND_OFFSET, frame.icrc_offset);
    uint32_t at = stamp_at(worker, begin, bytes);
    if (at == UINT32_MAX)
        return frame;
    frame.stamp = field_at(workers, frame.payload_offset + at - begin, frame.icrc_offset);
    for (uint32_t stamp = 0; stamp < BENCH_STAMPS; stamp++)
        memcpy(&worker->stamp_words[stamp][packet], worker->contributions[stamp] + at, 4);
    return frame;
}

void bench_frames_make(struct bench_workers *workers, uint32_t rank, uint64_t va_base, uint32_t rkey,
                       uint32_t dest_qpn)
{
    struct bench_worker *worker = &workers->ranks[rank];
    struct psc_header header = {.va = va_base + psc_va_offset(1, 0),
                                .rkey = rkey,
                                .dma_len = worker->bytes,
                                .imm = 0x5eed,
                                .psn = worker->first_psn};

    worker->flow.dest_qpn = dest_qpn;
    worker->frames = calloc((size_t)workers->depth * worker->packets, sizeof *worker->frames);
    for (uint32_t i = 0; i < workers->depth * worker->packets; i++)
        worker->frames[i] = make_frame(workers, rank, i % worker->packets, header);
    header = (struct psc_header){.opcode = PSC_RC_ACK, .syndrome = PSC_SYNDROME_ACK};
    worker->ack.m = bench_frame_copy(workers->rig, &worker->flow, &header, NULL, 0);
    worker->ack.icrc_offset = worker->ack.m->data_len - 4u;
    worker->ack.psn = field_at(workers, PSN_OFFSET, worker->ack.icrc_offset);
}

void bench_frames_free(struct bench_workers *workers, uint32_t rank)
{
    struct bench_worker *worker = &workers->ranks[rank];

    for (uint32_t i = 0; i < workers->depth * worker->packets; i++)
        rte_pktmbuf_free(worker->frames[i].m);
    rte_pktmbuf_free(worker->ack.m);
    free(worker->frames);
}

static void change(uint8_t *frame, const struct bench_field *field, uint32_t word, uint8_t *icrc)
{
    uint32_t old, crc;

    memcpy(&old, frame + field->offset, 4);
    memcpy(&crc, icrc, 4);
    crc ^= psc_crc32_combine(field->shift, old ^ word, 0);
    memcpy(frame + field->offset, &word, 4);
    memcpy(icrc, &crc, 4);
}

/* AckReq stays as it is. */
static void change_psn(uint8_t *frame, const struct bench_field *field, uint32_t psn, uint8_t *icrc)
{
    uint32_t word = __builtin_bswap32((uint32_t)frame[field->offset] << 24 | (psn & PSC_PSN_MASK));

    change(frame, field, word, icrc);
}

struct rte_mbuf *bench_frame_of(struct bench_workers *workers, uint32_t rank, uint32_t round, uint32_t packet)
{
    struct bench_worker *worker = &workers->ranks[rank];
    uint32_t packets = worker->packets;
    const struct bench_frame *frame = &worker->frames[round % workers->depth * packets + packet];
    uint8_t *at = rte_pktmbuf_mtod(frame->m, uint8_t *), *icrc = at + frame->icrc_offset;

    change_psn(at, &frame->psn, worker->first_psn + round * packets + packet, icrc);
    if (frame->stamp.shift != NULL)
        change(at, &frame->stamp, worker->stamp_words[round % BENCH_STAMPS][packet], icrc);
    if (frame->round.shift != NULL)
        change(at, &frame->round, __builtin_bswap32(round), icrc);
    return bench_lend(frame->m);
}

struct rte_mbuf *bench_ack_of(struct bench_worker *worker, uint32_t psn)
{
    uint8_t *at = rte_pktmbuf_mtod(worker->ack.m, uint8_t *);

    change_psn(at, &worker->ack.psn, psn, at + worker->ack.icrc_offset);
    return bench_lend(worker->ack.m);
}

static void check_frame(const struct bench_workers *workers, uint32_t rank, uint32_t round, uint32_t packet,
                        struct rte_mbuf *m, uint64_t va_base)
{
    struct psc_packet parsed;
    enum psc_drop why;

    rte_mbuf_refcnt_set(m, 1);
    const struct psc_local appliance = {.mac = workers->rig->port.mac, .ip = workers->ranks[rank].flow.dst};
    if (psc_parse(rte_pktmbuf_mtod(m, uint8_t *), m->data_len, &appliance, &parsed, &why) != PSC_FRAME_ROCE)
        bench_fail("a frame of ours is dropped: %d", (int)why);
    if (!psc_icrc_ok(&parsed))
        bench_fail("round %u packet %u of rank %u: wrong ICRC", round, packet, rank);
    const struct bench_worker *worker = &workers->ranks[rank];
    uint32_t psn = worker->first_psn + round * worker->packets + packet, begin = packet * workers->one.mtu;
    if (parsed.psn != (psn & PSC_PSN_MASK) || (packet == 0 && parsed.va != va_base + psc_va_offset(1, round)))
        bench_fail("round %u packet %u of rank %u: wrong PSN or address", round, packet, rank);
    if (parsed.payload_bytes != (packet < worker->packets - 1 ? workers->one.mtu : worker->bytes - begin) ||
        memcmp(parsed.payload, worker->contributions[round % BENCH_STAMPS] + begin, parsed.payload_bytes) !=
            0)
        bench_fail("round %u packet %u of rank %u: wrong payload", round, packet, rank);
}

void bench_frames_check(struct bench_workers *workers, uint64_t va_base)
{
    static const uint32_t rounds[] = {0, 1, 2, 5, 255, 256, 65537, 0x12345678, 3};

    for (uint32_t rank = 0; rank < workers->one.ranks; rank++)
        for (uint32_t packet = 0; packet < workers->ranks[rank].packets; packet++)
            for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++)
                check_frame(workers, rank, rounds[i], packet,
                            bench_frame_of(workers, rank, rounds[i], packet),
                            va_base + ((uint64_t)rank << 56));
}
