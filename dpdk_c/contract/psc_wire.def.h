/* Contract: worker <-> appliance. What a worker puts into RETH, immediate and payload, and what it gets back.
 *
 * cffi reads this file verbatim: plain enums and integer constants only, no guards, no includes. C code
 * includes psc_wire.h. The version is compared at join; both numbers are named when they differ. */

#define PSC_WIRE_VERSION 5

/* What the aggregator does to a slot. Numbers are little-endian.
 *
 * A contribution is a whole number of units, and its result is `expansion` times as long: both stand below,
 * by op. A packet of a contribution makes the `expansion` packets of the result that stand at `expansion`
 * times its offset; at the message's end they may be fewer.
 *
 * LUTn_Um adds up what a table of the job says, T[index], in unsigned m-bit sums: the join refuses a table
 * that could make them overflow. An index has n bits. One unit holds 64 * 8/n of them, so that
 *   n = 4: byte j = index j | index 64+j << 4;
 *   n = 2: byte j = index j | index 64+j << 2 | index 128+j << 4 | index 192+j << 6;
 *   n = 8: byte j = index j;
 * and the sums stand in the order of the indices, unit by unit.
 *
 * EXPAND_SUM_x adds 4-byte values of which each rank has some. A contribution, and the result, is a stream of
 * little-endian u32, as docs/expand-sum.md has it to the bit: the number of elements, alike on all ranks;
 * then, for each sub-block of so many elements (below; the last has what is left), how many of them are
 * there; one bit for each, element e of the sub-block in bit e mod 32 of word e / 32, unless none or all are
 * there; and the values of those that are. The result has an element if some rank has it, its value the sum
 * over the ranks that have. Contributions to a round have lengths of their own.
 *
 * PROBE adds nothing: it is the op of window 0 in every job, and its packets are acknowledged, forgotten. */
enum psc_op {
    PSC_OP_PROBE = 0,
    PSC_OP_SUM_I32 = 1,  /* modulo 2^32: wraps, never saturates */
    PSC_OP_SUM_F32 = 2,  /* IEEE binary32 additions in arrival order */
    PSC_OP_MAX_F32 = 3,  /* max of |x| as u32, the sign cleared: NaN > Inf > finite; the result has no sign */
    PSC_OP_SUM_F16 = 4,  /* IEEE binary16, each widened exactly to binary32; then as SUM_F32 */
    PSC_OP_SUM_BF16 = 5, /* bfloat16, each widened exactly to binary32; then as SUM_F32 */
    PSC_OP_LUT4_U8 = 6,
    PSC_OP_LUT4_U16 = 7,
    PSC_OP_LUT2_U8 = 8,
    PSC_OP_LUT2_U16 = 9,
    PSC_OP_LUT8_U16 = 10,
    PSC_OP_OR_U32 = 11,         /* bitwise */
    PSC_OP_EXPAND_SUM_I32 = 12, /* modulo 2^32 */
    PSC_OP_EXPAND_SUM_F32 = 13, /* IEEE binary32 additions in arrival order */
    PSC_OP_COUNT = 14
};

/* Bytes of a unit, by op: what a contribution's length is a multiple of. */
enum psc_op_unit {
    PSC_UNIT_SUM_I32 = 4,
    PSC_UNIT_SUM_F32 = 4,
    PSC_UNIT_MAX_F32 = 4,
    PSC_UNIT_SUM_F16 = 4,
    PSC_UNIT_SUM_BF16 = 4,
    PSC_UNIT_LUT4_U8 = 64,
    PSC_UNIT_LUT4_U16 = 64,
    PSC_UNIT_LUT2_U8 = 64,
    PSC_UNIT_LUT2_U16 = 64,
    PSC_UNIT_LUT8_U16 = 64,
    PSC_UNIT_OR_U32 = 4,
    PSC_UNIT_EXPAND_SUM_I32 = 4,
    PSC_UNIT_EXPAND_SUM_F32 = 4
};

/* Bytes of the result per byte of a contribution, by op. Of EXPAND_SUM_x, whose result is as long as its
 * union makes it: of the longest that a slot has room for. */
enum psc_op_expansion {
    PSC_EXPANSION_SUM_I32 = 1,
    PSC_EXPANSION_SUM_F32 = 1,
    PSC_EXPANSION_MAX_F32 = 1,
    PSC_EXPANSION_SUM_F16 = 2,
    PSC_EXPANSION_SUM_BF16 = 2,
    PSC_EXPANSION_LUT4_U8 = 2,
    PSC_EXPANSION_LUT4_U16 = 4,
    PSC_EXPANSION_LUT2_U8 = 4,
    PSC_EXPANSION_LUT2_U16 = 8,
    PSC_EXPANSION_LUT8_U16 = 2,
    PSC_EXPANSION_OR_U32 = 1,
    PSC_EXPANSION_EXPAND_SUM_I32 = 1,
    PSC_EXPANSION_EXPAND_SUM_F32 = 1
};

/* Elements of a sub-block, by op; other ops have none. */
enum psc_op_sub_block { PSC_SUB_BLOCK_EXPAND_SUM_I32 = 2048, PSC_SUB_BLOCK_EXPAND_SUM_F32 = 2048 };

/* n elements want 4 * (n + ceil(n / 32)) bytes of a slot, and so many for itself. */
#define PSC_SUB_BLOCK_SPARE_BYTES 64

/* Entries of the job's table, by op; other ops have none. A table begins with 0 and does not fall, and its
 * last entry, the greatest, is 1 to 255. */
enum psc_op_table {
    PSC_TABLE_LUT4_U8 = 16,
    PSC_TABLE_LUT4_U16 = 16,
    PSC_TABLE_LUT2_U8 = 4,
    PSC_TABLE_LUT2_U16 = 4,
    PSC_TABLE_LUT8_U16 = 256
};
#define PSC_MAX_TABLE       256
#define PSC_MAX_TABLE_ENTRY 255

/* The greatest sum, by op: greatest entry times ranks. */
enum psc_op_sum_max {
    PSC_SUM_MAX_LUT4_U8 = 255,
    PSC_SUM_MAX_LUT4_U16 = 65535,
    PSC_SUM_MAX_LUT2_U8 = 255,
    PSC_SUM_MAX_LUT2_U16 = 65535,
    PSC_SUM_MAX_LUT8_U16 = 65535
};

/* A job has pools: each is a set of slots with one QP per rank, its own rounds and its own window. Small
 * messages (norms, scales) have a pool of their own so that they never queue behind data. */
enum psc_pool_class { PSC_POOL_DATA = 0, PSC_POOL_SMALL = 1, PSC_POOL_CLASS_COUNT = 2 };

/* Remote address of a contribution: va_base + (op_window << 56 | round << 24 | byte offset in the slot).
 * va_base is random per QP and below 2^62, op windows are below 64: the sum never overflows 64 bits.
 * Round numbers start at 0 in a job and go on over its epochs; slot = round mod 2W. A message starts at
 * offset 0. */
#define PSC_VA_WINDOW_SHIFT 56
#define PSC_VA_ROUND_SHIFT  24
#define PSC_VA_BASE_BITS    62

/* Op window 0 is the probe; window k (1..PSC_MAX_OPS) is the k-th op of the join message. */
#define PSC_MAX_OPS       15
#define PSC_MAX_RANKS     64
#define PSC_MAX_POOLS     8  /* of a job, on each of its lanes */
#define PSC_MAX_JOB_POOLS 32 /* on all of them */
#define PSC_MAX_CHUNK_BYTES                                                                                  \
    8388608 /* of a slot, which holds a result; a contribution has 1/expansion of it */
#define PSC_MAX_WINDOW 128

/* A result of round r is written to result_va + (r mod W) * chunk_bytes of its pool. Its length is the
 * contribution's times the op's expansion; of an op with sub-blocks the RETH says it, and the completion.
 *
 * Immediate of contribution and result, big-endian in the packet:
 *   CRC-32 (IEEE 802.3, as zlib.crc32) of five little-endian u32: sequence number of the collective in its
 * session, chunk index inside it, enum psc_op, length of the contribution in bytes; of an op with sub-blocks
 * 4 times the number of elements; elements of the whole tensor modulo 2^32, since encodings of two lengths
 * may be equally long. A collective by another codec than its session's own begins the CRC not with 0 but
 * with the CRC of that codec's words.
 *
 * All ranks' immediates of a round must agree before its result is complete; the result carries the same
 * value. */
#define PSC_IMM_FIELDS 5

/* A probe is one WRITE_ONLY_WITH_IMM of exactly one path MTU: the worker's goes to op window 0, round 0; the
 * appliance's goes to result slot 0. Both carry this immediate. A probe consumes no round. */
#define PSC_IMM_PROBE 0x50534350

/* Why the appliance ended an epoch or refused something; the sentence beside it carries the values. */
enum psc_fault {
    PSC_FAULT_NONE = 0,
    PSC_FAULT_RETRY_EXCEEDED = 1,   /* a worker does not acknowledge: 6 retries or 2 s without progress */
    PSC_FAULT_STALLED_MESSAGE = 2,  /* a begun message has not advanced for 2 s */
    PSC_FAULT_INVALID_REQUEST = 3,  /* NAK 61 sent: opcode sequence, length, unit, or operation not
                                       enabled */
    PSC_FAULT_REMOTE_ACCESS = 4,    /* NAK 62 sent: rkey or address range */
    PSC_FAULT_ROUND_MISMATCH = 5,   /* NAK 61 sent: round is not this rank's next, or outside the window */
    PSC_FAULT_OP_MISMATCH = 6,      /* NAK 61 sent: op differs from the round's first contribution */
    PSC_FAULT_LENGTH_MISMATCH = 7,  /* NAK 61 sent: length differs from the round's first contribution */
    PSC_FAULT_IMM_MISMATCH = 8,     /* NAK 61 sent: the immediates of a round disagree: different tensors */
    PSC_FAULT_NAK_RECEIVED = 9,     /* the worker's NIC refused a result: 61, 62 or 63 */
    PSC_FAULT_UNREACHABLE = 10,     /* no ARP answer */
    PSC_FAULT_CONNECTION_LOST = 11, /* control connection closed or dead without leave */
    PSC_FAULT_RANK_LEFT = 12,       /* a round waits for a rank that has left */
    PSC_FAULT_STOPPING = 13,        /* the appliance is being stopped */
    PSC_FAULT_STRAGGLER = 14,       /* a live rank has not begun a round within straggler_timeout */
    /* Of a stream of sub-blocks: */
    PSC_FAULT_ELEMENTS_MISMATCH = 15, /* NAK 61 sent: elements differ from the round's first contribution */
    PSC_FAULT_ELEMENTS_RANGE = 16,    /* NAK 61 sent: it has no elements, or more than a slot takes */
    PSC_FAULT_SUB_BLOCK = 17,         /* NAK 61 sent: count, bitmap and size of a sub-block disagree */
    PSC_FAULT_STREAM_LENGTH = 18,     /* NAK 61 sent: its sub-blocks end elsewhere than its message */
    PSC_FAULT_COUNT = 19
};
