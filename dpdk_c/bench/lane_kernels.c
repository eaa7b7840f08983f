/* What nothing could be faster than: the CRC of every contribution, its addition, and the CRC of the sum,
 * over the same frames and as many slots, with nothing around them. */
#include <rte_cycles.h>
#include <string.h>

#include "lane_workers.h"
#include "psc_arith.h"
#include "psc_sparse.h"

static const uint8_t *payload_of(const struct bench_frame *frame)
{
    return rte_pktmbuf_mtod_offset(frame->m, uint8_t *, frame->payload_offset);
}

static void add_packet(struct bench_workers *workers, uint32_t round, uint32_t packet, const uint8_t *table)
{
    const struct bench_case *one = &workers->one;
    const struct psc_op_row *row = &psc_op_rows()[one->op];
    size_t result_bytes = (size_t)one->mtu * workers->expansion;
    uint8_t *slot = workers->slots + (round % (2 * one->window) * one->packets + packet) * result_bytes;
    uint32_t units = one->mtu / psc_op_form(one->op)->unit_bytes;
    volatile uint32_t crc;

    const void *values[PSC_COMBINE_MAX];
    for (uint32_t rank = 0, count = 0; rank < one->ranks; rank++) {
        const struct bench_frame *frame =
            &workers->ranks[rank].frames[round % workers->depth * one->packets + packet];
        const uint8_t *payload = payload_of(frame);
        crc = psc_crc32(PSC_ICRC_SEED, payload, one->mtu);
        values[count++] = payload;
        if (count < PSC_COMBINE_MAX && rank < one->ranks - 1)
            continue;
        (rank < PSC_COMBINE_MAX ? row->first_many : row->combine_many)(slot, values, count, units, table);
        count = 0;
    }
    for (uint32_t part = 0; part < workers->expansion; part++)
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
