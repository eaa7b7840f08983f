/* What an op costs: every one by itself and with many values in a pass, the CRC, and both as a lane does
 * them; with working sets in L1, L2, L3 and memory. Prints the CPU time of one packet of 4 KiB, repetition by
 * repetition, each between two copies of as many bytes: tests/bench/kernels.py makes ratios of them.
 *
 *     psc_bench_kernels [REPETITIONS] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "psc_arith.h"
#include "psc_roce.h"

#define PACKET_BYTES 4096u
/* As in an mbuf behind its head room: payloads lie at 54 beyond a cache line, after Ethernet, IPv4, UDP and
 * BTH. */
#define SLOT_BYTES    (PACKET_BYTES + 128)
#define IP_OFFSET     14
#define HEADER_BYTES  40
#define VALUE_OFFSET  (IP_OFFSET + HEADER_BYTES)
#define BATCH_PACKETS 512u /* some 50 us: the clock is read twice */
#define MAX_REPEATED  1001

enum level { L1, L2, L3, DRAM, LEVELS };
static const char *const level_names[LEVELS] = {"L1", "L2", "L3", "DRAM"};

enum kind {
    READ,
    CRC,
    ICRC,
    HEADER,
    RESULT,
    COMBINE,
    FIRST,
    ICRC_THEN_COMBINE,
    COMBINE_THEN_CRC,
    COMBINE_WITH_CRC,
    ICRCS_TOGETHER,
    ICRCS_TOGETHER_THEN_COMBINE
};
static const char *const kind_names[] = {"read",
                                         "crc",
                                         "icrc",
                                         "icrc of headers",
                                         "combine two crcs",
                                         "combine",
                                         "first",
                                         "icrc, combine",
                                         "combine, crc",
                                         "combine with crc",
                                         "icrcs together",
                                         "icrcs together, combine"};

/* One thing to measure; `count` values in a pass over the accumulator. */
struct work {
    enum kind kind;
    enum psc_op op;
    uint32_t count;
};

static const struct op_name {
    enum psc_op op;
    const char *name;
} op_names[] = {{PSC_OP_SUM_I32, "sum_i32"},   {PSC_OP_SUM_F32, "sum_f32"},   {PSC_OP_MAX_F32, "max_f32"},
                {PSC_OP_OR_U32, "or_u32"},     {PSC_OP_SUM_F16, "sum_f16"},   {PSC_OP_SUM_BF16, "sum_bf16"},
                {PSC_OP_LUT4_U8, "lut4_u8"},   {PSC_OP_LUT4_U16, "lut4_u16"}, {PSC_OP_LUT2_U8, "lut2_u8"},
                {PSC_OP_LUT2_U16, "lut2_u16"}, {PSC_OP_LUT8_U16, "lut8_u16"}};
#define OPS (sizeof op_names / sizeof *op_names)

static const uint32_t counts[] = {1, 4, PSC_COMBINE_MAX};
#define COUNTS (sizeof counts / sizeof *counts)

#define MAX_WORKS 96
static struct work works[MAX_WORKS];
static uint32_t work_count;

/* Packets are only read, accumulators only written, so that each keeps what it was filled with. `position`
 * goes on from batch to batch: in DRAM nothing is touched twice before all has been. */
static struct {
    uint8_t *packets, *accumulators;
    size_t bytes[LEVELS]; /* of a working set */
    size_t position;
    uint8_t table[PSC_MAX_TABLE];
    struct psc_crc32_shift shift;
    volatile uint32_t sink;
} rig;

/* Repetition by repetition, ns of one packet: the work's, and of the two copies around it. */
static double found_ns[LEVELS][MAX_WORKS][MAX_REPEATED], copy_ns[LEVELS][MAX_WORKS][MAX_REPEATED];

static void add_work(enum kind kind, enum psc_op op, uint32_t count)
{
    works[work_count++] = (struct work){kind, op, count};
}

static void list_works(void)
{
    for (enum kind kind = READ; kind <= RESULT; kind++)
        add_work(kind, PSC_OP_PROBE, 1);
    for (uint32_t i = 0; i < OPS; i++) {
        add_work(FIRST, op_names[i].op, 1);
        for (uint32_t k = 0; k < COUNTS; k++)
            add_work(COMBINE, op_names[i].op, counts[k]);
    }
    for (uint32_t k = 0; k < COUNTS; k++)
        add_work(ICRC_THEN_COMBINE, PSC_OP_SUM_I32, counts[k]);
    const struct psc_packet full = {
        .ip_header = rig.packets, .payload = rig.packets + HEADER_BYTES, .payload_bytes = PACKET_BYTES};
    if (psc_icrc_together(&full)) {
        add_work(ICRCS_TOGETHER, PSC_OP_PROBE, PSC_CRC_TOGETHER);
        add_work(ICRCS_TOGETHER_THEN_COMBINE, PSC_OP_SUM_I32, PSC_CRC_TOGETHER);
    }
    /* The CRC of the sums, as the results' packets want it. */
    for (uint32_t i = 0; i < OPS; i++) {
        add_work(COMBINE_THEN_CRC, op_names[i].op, 4);
        add_work(COMBINE_WITH_CRC, op_names[i].op, 4);
    }
}

static size_t cache_bytes(int name, size_t otherwise)
{
    long bytes = sysconf(name);
    return bytes > 0 ? (size_t)bytes : otherwise;
}

/* Well inside a cache and well outside the one before. */
static bool make_rig(void)
{
    size_t l1 = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10),
           l2 = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 1 << 20),
           l3 = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 32 << 20);

    rig.bytes[L1] = l1 / 4 * 3;
    rig.bytes[L2] = l2 / 2;
    rig.bytes[L3] = l3 / 4 < 4 * l2 ? l3 / 4 : 4 * l2;
    rig.bytes[DRAM] = 8 * l3 < (size_t)512 << 20 ? 8 * l3 : (size_t)512 << 20;
    rig.packets = aligned_alloc(4096, rig.bytes[DRAM]);
    rig.accumulators = aligned_alloc(4096, rig.bytes[DRAM]);
    if (rig.packets == NULL || rig.accumulators == NULL)
        return false;
    uint32_t x = 1;
    for (size_t i = 0; i < rig.bytes[DRAM]; i++, x = x * 1664525 + 1013904223)
        rig.packets[i] = (uint8_t)(x >> 24);
    for (size_t i = 0; i < rig.bytes[DRAM] / SLOT_BYTES; i++)
        rig.packets[i * SLOT_BYTES + IP_OFFSET] = 0x45;
    memset(rig.accumulators, 0, rig.bytes[DRAM]);
    for (uint32_t i = 0; i < sizeof rig.table; i++)
        rig.table[i] = (uint8_t)(2 * i < 30 ? 2 * i : 30); /* eight of the greatest fit a byte, as thc's do */
    psc_crc32_shift_init(&rig.shift, PACKET_BYTES);
    return true;
}

/* ---- The work of one group: `count` packets and their accumulator. ---- */

typedef uint64_t vector __attribute__((vector_size(32), aligned(1), may_alias));

/* By 32 bytes, of which a CPU loads two at a time. */
__attribute__((target("avx2"))) static uint32_t read_by_32(const uint8_t *at)
{
    vector sum[4] = {{0}};
    for (uint32_t i = 0; i < PACKET_BYTES; i += 128) {
        const vector *from = (const void *)(at + i);
        sum[0] |= from[0];
        sum[1] |= from[1];
        sum[2] |= from[2];
        sum[3] |= from[3];
    }
    sum[0] |= sum[1] | sum[2] | sum[3];
    return (uint32_t)(sum[0][0] | sum[0][1] | sum[0][2] | sum[0][3]);
}

static uint32_t read_by_8(const uint8_t *at)
{
    uint64_t sum = 0, word;
    for (uint32_t i = 0; i < PACKET_BYTES; i += 8) {
        memcpy(&word, at + i, 8);
        sum |= word;
    }
    return (uint32_t)sum;
}

static inline const uint8_t *table_of(enum psc_op op)
{
    return psc_op_form(op)->table_entries > 0 ? rig.table : NULL;
}

static inline void combine(const struct work *work, uint8_t *accumulator, const uint8_t *slots)
{
    const struct psc_op_row *row = &psc_op_rows()[work->op];
    uint32_t units = PACKET_BYTES / psc_op_form(work->op)->unit_bytes;
    const void *values[PSC_COMBINE_MAX];

    for (uint32_t k = 0; k < work->count; k++)
        values[k] = slots + (size_t)k * SLOT_BYTES + VALUE_OFFSET;
    if (work->kind == FIRST)
        row->first(accumulator, slots + VALUE_OFFSET, units, table_of(work->op));
    else if (work->kind == COMBINE_WITH_CRC)
        rig.sink = row->combine_many_crc(accumulator, values, work->count, units, table_of(work->op));
    else if (work->count == 1)
        row->combine(accumulator, slots + VALUE_OFFSET, units, table_of(work->op));
    else
        row->combine_many(accumulator, values, work->count, units, table_of(work->op));
}

/* As a lane does; a wrong ICRC costs what a right one does. */
static inline void check_together(const uint8_t *slots)
{
    struct psc_packet packets[PSC_CRC_TOGETHER], *list[PSC_CRC_TOGETHER];

    for (uint32_t k = 0; k < PSC_CRC_TOGETHER; k++) {
        packets[k].ip_header = slots + (size_t)k * SLOT_BYTES + IP_OFFSET;
        packets[k].icrc_bytes = HEADER_BYTES + PACKET_BYTES;
        packets[k].payload = packets[k].ip_header + HEADER_BYTES;
        packets[k].payload_bytes = PACKET_BYTES;
        list[k] = &packets[k];
    }
    psc_icrc_check(list);
    rig.sink = packets[0].icrc_sound;
}

static inline void do_work(const struct work *work, uint8_t *accumulator, const uint8_t *slots)
{
    switch (work->kind) {
    case READ:
        rig.sink = __builtin_cpu_supports("avx2") ? read_by_32(slots) : read_by_8(slots);
        break;
    case CRC:
        rig.sink = psc_crc32(0, slots + VALUE_OFFSET, PACKET_BYTES);
        break;
    case ICRC:
        rig.sink = psc_icrc(slots + IP_OFFSET, HEADER_BYTES + PACKET_BYTES);
        break;
    case HEADER:
        rig.sink = psc_icrc(slots + IP_OFFSET, HEADER_BYTES);
        break;
    case RESULT:
        rig.sink = psc_crc32_combine(&rig.shift, rig.sink, 0x12345678);
        break;
    case ICRC_THEN_COMBINE:
        for (uint32_t k = 0; k < work->count; k++)
            rig.sink = psc_icrc(slots + (size_t)k * SLOT_BYTES + IP_OFFSET, HEADER_BYTES + PACKET_BYTES);
        combine(work, accumulator, slots);
        break;
    case COMBINE_THEN_CRC:
        combine(work, accumulator, slots);
        rig.sink = psc_crc32(0, accumulator, (size_t)PACKET_BYTES * psc_op_form(work->op)->expansion);
        break;
    case ICRCS_TOGETHER:
        check_together(slots);
        break;
    case ICRCS_TOGETHER_THEN_COMBINE:
        check_together(slots);
        combine(work, accumulator, slots);
        break;
    default:
        combine(work, accumulator, slots);
    }
}

/* ---- Batches ---- */

/* Of this thread, so that the time of others on a busy machine is not in it. */
static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* ns of one packet. */
static double run_copies(size_t set_bytes, uint32_t packets)
{
    size_t blocks = set_bytes / (2 * PACKET_BYTES), block = rig.position % blocks;
    double begin = now_ns();

    for (uint32_t i = 0; i < packets; i++, block = block + 1 < blocks ? block + 1 : 0) {
        memcpy(rig.accumulators + block * PACKET_BYTES, rig.packets + block * PACKET_BYTES, PACKET_BYTES);
        __asm__ volatile("" ::: "memory");
    }
    rig.position += packets;
    return (now_ns() - begin) / packets;
}

static double run_work(const struct work *work, size_t set_bytes, uint32_t packets)
{
    size_t sum_bytes = work->kind < COMBINE ? 0 : (size_t)PACKET_BYTES * psc_op_form(work->op)->expansion;
    size_t value_bytes = (size_t)work->count * SLOT_BYTES, groups = set_bytes / (value_bytes + sum_bytes);
    size_t group = groups > 0 ? rig.position / work->count % groups : 0;
    double begin = now_ns();

    for (uint32_t i = 0; i < packets; i += work->count, group = group + 1 < groups ? group + 1 : 0)
        do_work(work, rig.accumulators + group * sum_bytes, rig.packets + group * value_bytes);
    rig.position += packets;
    return (now_ns() - begin) / packets;
}

/* Both fill the caches with their own set first, but for DRAM's. */
static void measure(enum level level, uint32_t w, uint32_t repetition)
{
    size_t set_bytes = rig.bytes[level];
    uint32_t warm_packets = level == L1 ? 64 : level == L2 ? BATCH_PACKETS : 0;
    double before, after;

    run_copies(set_bytes, warm_packets);
    before = run_copies(set_bytes, BATCH_PACKETS);
    run_work(&works[w], set_bytes, warm_packets);
    found_ns[level][w][repetition] = run_work(&works[w], set_bytes, BATCH_PACKETS);
    run_copies(set_bytes, warm_packets);
    after = run_copies(set_bytes, BATCH_PACKETS);
    copy_ns[level][w][repetition] = (before + after) / 2;
}

static void measure_all(uint32_t repetitions)
{
    for (uint32_t repetition = 0; repetition < repetitions; repetition++)
        for (enum level level = L1; level < LEVELS; level++) {
            if (level == L3)
                memcpy(rig.accumulators, rig.packets, rig.bytes[L3]);
            for (uint32_t w = 0; w < work_count; w++)
                measure(level, w, repetition);
        }
}

/* ---- What comes out ---- */

static const char *op_name(enum psc_op op)
{
    for (uint32_t i = 0; i < OPS; i++)
        if (op_names[i].op == op)
            return op_names[i].name;
    return "";
}

static void print_numbers(const char *name, const double *numbers, uint32_t count)
{
    printf("\"%s\": [", name);
    for (uint32_t i = 0; i < count; i++)
        printf("%s%.2f", i ? ", " : "", numbers[i]);
    printf("]");
}

static void print_rows(uint32_t repetitions)
{
    const char *separator = "";

    for (enum level level = L1; level < LEVELS; level++)
        for (uint32_t w = 0; w < work_count; w++, separator = ",") {
            printf("%s\n  {\"level\": \"%s\", \"work\": \"%s\", \"op\": \"%s\", \"values\": %u, ", separator,
                   level_names[level], kind_names[works[w].kind], op_name(works[w].op), works[w].count);
            print_numbers("ns", found_ns[level][w], repetitions);
            printf(", ");
            print_numbers("memcpy_ns", copy_ns[level][w], repetitions);
            printf("}");
        }
}

int main(int argc, char **argv)
{
    uint32_t repetitions = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 31;

    if (argc > 2 || repetitions == 0 || repetitions > MAX_REPEATED || psc_arith_refused() ||
        psc_crc_refused()) {
        fprintf(
            stderr,
            "usage: %s [REPETITIONS], 1 to %d; PASCALINE_ARITH and PASCALINE_CRC name variants that this CPU "
            "runs\n",
            argv[0], MAX_REPEATED);
        return 2;
    }
    list_works();
    if (!make_rig()) {
        fprintf(stderr, "%s: %zu bytes of memory are not to be had\n", argv[0], 2 * rig.bytes[DRAM]);
        return 1;
    }
    measure_all(repetitions);
    printf("{\"arith\": \"%s\", \"crc\": \"%s\", \"compiler\": \"%s\", \"packet_bytes\": %u,\n "
           "\"working_sets\": {",
           psc_arith_variant(), psc_crc_variant(), __VERSION__, PACKET_BYTES);
    for (enum level level = L1; level < LEVELS; level++)
        printf("%s\"%s\": %zu", level ? ", " : "", level_names[level], rig.bytes[level]);
    printf("},\n \"rows\": [");
    print_rows(repetitions);
    printf("]}\n");
    return 0;
}
