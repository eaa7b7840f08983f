/* What nothing could be faster than: the CRC of every contribution, its addition, and the CRC of the sum,
 * over the same frames and as many slots, with nothing around them. */
#include <rte_cycles.h>

#include "lane_workers.h"
#include "psc_arith.h"

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
        const uint8_t *payload = rte_pktmbuf_mtod_offset(frame->m, uint8_t *, frame->stamp.offset);
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

double bench_kernels_run(struct bench_workers *workers, uint64_t ticks)
{
    const struct psc_op_form *form = psc_op_form(workers->one.op);
    uint8_t table[PSC_MAX_TABLE] = {0};
    uint64_t begin = rte_rdtsc(), packets = 0;

    for (uint32_t i = 0; i < form->table_entries; i++)
        table[i] = bench_table_entry(form->table_entries, i);
    for (uint32_t round = 0; rte_rdtsc() - begin < ticks; round++)
        for (uint32_t packet = 0; packet < workers->one.packets; packet++) {
            add_packet(workers, round, packet, table);
            packets += workers->one.ranks;
        }
    return (double)(rte_rdtsc() - begin) / (double)packets;
}
