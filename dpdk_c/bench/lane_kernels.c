/* What nothing could be faster than: the ICRC of every contribution, its addition, and the CRC of the sum,
 * over the same frames and as many slots, with nothing around them. */
#include <rte_cycles.h>
#include <string.h>

#include "lane_workers.h"
#include "psc_arith.h"
#include "psc_sparse.h"

#define IP_OFFSET 14u

static const uint8_t *payload_of(const struct bench_frame *frame)
{
    return rte_pktmbuf_mtod_offset(frame->m, uint8_t *, frame->payload_offset);
}

static struct psc_packet packet_of(const struct bench_frame *frame)
{
    return (struct psc_packet){.ip_header = rte_pktmbuf_mtod_offset(frame->m, uint8_t *, IP_OFFSET),
                               .icrc_bytes = frame->icrc_offset - IP_OFFSET,
                               .payload = payload_of(frame),
                               .payload_bytes = frame->payload_bytes};
}

/* As many as can be checked together, or one. Whether the sums of four, and their CRCs, are made meanwhile.
 */
static bool check(const struct bench_case *one, struct psc_packet *packets, uint32_t count, bool first,
                  uint8_t *slot, const uint8_t *table)
{
    psc_first_checked_fn *first_checked = first ? psc_first_checked(one->op) : NULL;
    struct psc_packet *list[PSC_CRC_TOGETHER];
    struct psc_crc_message messages[PSC_CRC_TOGETHER];
    uint32_t crcs[8];
    volatile bool sound;

    if (count < PSC_CRC_TOGETHER || !psc_icrc_together(&packets[0])) {
        for (uint32_t i = 0; i < count; i++)
            sound = psc_icrc_ok(&packets[i]);
        return false;
    }
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++) {
        list[i] = &packets[i];
        messages[i] = psc_icrc_message(&packets[i]);
    }
    if (first_checked)
        sound = first_checked(slot, messages, one->mtu, table, crcs) == 0;
    else
        psc_icrc_check(list);
    (void)sound;
    return first_checked != NULL;
}

static void add_packet(struct bench_workers *workers, uint32_t round, uint32_t packet, const uint8_t *table)
{
    const struct bench_case *one = &workers->one;
    const struct psc_op_row *row = &psc_op_rows()[one->op];
    size_t result_bytes = (size_t)one->mtu * workers->expansion;
    uint8_t *slot = workers->slots + (round % (2 * one->window) * one->packets + packet) * result_bytes;
    uint32_t units = one->mtu / psc_op_form(one->op)->unit_bytes;
    struct psc_packet packets[PSC_CRC_TOGETHER];
    const void *values[PSC_CRC_TOGETHER];
    volatile uint32_t crc;
    bool ahead = false;

    for (uint32_t rank = 0, count = 0; rank < one->ranks; rank++) {
        packets[count] =
            packet_of(&workers->ranks[rank].frames[round % workers->depth * one->packets + packet]);
        values[count] = packets[count].payload;
        if (++count < PSC_CRC_TOGETHER && rank < one->ranks - 1)
            continue;
        bool first = rank < PSC_CRC_TOGETHER;
        ahead = check(one, packets, count, first, slot, table);
        if (!ahead)
            (first ? row->first_many : row->combine_many)(slot, values, count, units, table);
        count = 0;
    }
    for (uint32_t part = 0; part < workers->expansion && !ahead; part++)
        crc = psc_crc32(0, slot + (size_t)part * one->mtu, one->mtu);
    (void)crc;
}

/* ---- Streams: the sub-blocks are where the rank's stream was made, the CRC is that of its frames. ---- */

#define SUB_BLOCK       PSC_SUB_BLOCK_EXPAND_SUM_I32
#define SUB_BLOCK_WORDS (SUB_BLOCK / 32)

/* One rank's; returns its next sub-block. */
static const uint8_t *add_sub_block(const struct psc_sparse_row *row, bool floats, const uint8_t *stream,
                                    uint32_t elements, uint32_t *united)
{
    uint32_t there, words = (elements + 31) / 32, bitmap[SUB_BLOCK_WORDS];

    memcpy(&there, stream, 4);
    stream += 4;
    if (there == elements) {
        memset(bitmap, 0xff, sizeof bitmap);
        bitmap[words - 1] = UINT32_MAX >> (32 * words - elements);
    } else if (there > 0) {
        memcpy(bitmap, stream, (size_t)4 * words);
        stream += (size_t)4 * words;
    }
    if (there > 0)
        (floats ? row->expand_f32 : row->expand_i32)(united + words, united, bitmap, words, stream);
    return stream + (size_t)4 * there;
}

static void add_streams(struct bench_workers *workers, uint32_t round)
{
    const struct bench_case *one = &workers->one;
    const struct psc_sparse_row *row = psc_sparse_row();
    uint8_t *slot = workers->slots + (size_t)(round % (2 * one->window)) * one->packets * one->mtu;
    uint32_t elements = bench_stream_elements(one), bitmap[SUB_BLOCK_WORDS];
    uint32_t *at = (uint32_t *)(void *)slot + PSC_SUB_BLOCK_SPARE_BYTES / 4, *out = (uint32_t *)(void *)slot;
    const uint8_t *streams[PSC_MAX_RANKS];
    volatile uint32_t crc;

    for (uint32_t rank = 0; rank < one->ranks; rank++) {
        const struct bench_worker *worker = &workers->ranks[rank];
        for (uint32_t packet = 0; packet < worker->packets; packet++) {
            const struct bench_frame *frame =
                &worker->frames[round % workers->depth * worker->packets + packet];
            crc = psc_crc32(PSC_ICRC_SEED, payload_of(frame), frame->payload_bytes);
        }
        streams[rank] = worker->contributions[round % BENCH_STAMPS] + 4;
    }
    for (uint32_t begin = 0; begin < elements; begin += SUB_BLOCK) {
        uint32_t here = elements - begin < SUB_BLOCK ? elements - begin : SUB_BLOCK, words = (here + 31) / 32;
        memset(at, 0, (size_t)4 * words);
        for (uint32_t rank = 0; rank < one->ranks; rank++)
            streams[rank] = add_sub_block(row, one->op == PSC_OP_EXPAND_SUM_F32, streams[rank], here, at);
        memcpy(bitmap, at, (size_t)4 * words);
        *out++ = row->count(bitmap, words);
        out += row->pack(out, at + words, bitmap, words);
        at += words + here;
    }
    for (uint32_t packet = 0; packet < workers->result_packets; packet++)
        crc = psc_crc32(0, slot + (size_t)packet * one->mtu,
                        packet == workers->result_packets - 1 ? workers->result_bytes - packet * one->mtu
                                                              : one->mtu);
    (void)crc;
}

static uint64_t add_round(struct bench_workers *workers, uint32_t round, const uint8_t *table)
{
    uint64_t packets = 0;

    for (uint32_t rank = 0; rank < workers->one.ranks; rank++)
        packets += workers->ranks[rank].packets;
    if (bench_is_stream(workers->one.op))
        add_streams(workers, round);
    else
        for (uint32_t packet = 0; packet < workers->one.packets; packet++)
            add_packet(workers, round, packet, table);
    return packets;
}

double bench_kernels_run(struct bench_workers *workers, uint64_t ticks)
{
    const struct psc_op_form *form = psc_op_form(workers->one.op);
    uint8_t table[PSC_MAX_TABLE] = {0};
    uint64_t begin = rte_rdtsc(), packets = 0;

    for (uint32_t i = 0; i < form->table_entries; i++)
        table[i] = bench_table_entry(form->table_entries, i);
    for (uint32_t round = 0; rte_rdtsc() - begin < ticks; round++)
        packets += add_round(workers, round, table);
    return (double)(rte_rdtsc() - begin) / (double)packets;
}
