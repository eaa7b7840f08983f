/* Contract: worker <-> appliance. What a worker puts into RETH, immediate and payload, and what it gets back.
 *
 * cffi reads this file verbatim: plain enums and integer constants only, no guards, no includes. C code
 * includes psc_wire.h. The version is compared at join; both numbers are named when they differ. */

#define PSC_WIRE_VERSION 1

/* What the aggregator does to a slot. All payloads are arrays of little-endian 4-byte elements.
 *
 * PROBE adds nothing: it is the op of window 0 in every job, and its packets are acknowledged, forgotten. */
enum psc_op {
    PSC_OP_PROBE = 0,
    PSC_OP_SUM_I32 = 1, /* modulo 2^32: wraps, never saturates */
    PSC_OP_SUM_F32 = 2, /* IEEE binary32 additions in arrival order */
    PSC_OP_MAX_F32 = 3, /* max of |x| as u32, the sign cleared: NaN > Inf > finite; the result has no sign */
    PSC_OP_COUNT = 4
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
#define PSC_MAX_OPS         15
#define PSC_MAX_RANKS       64
#define PSC_MAX_POOLS       8
#define PSC_MAX_CHUNK_BYTES 8388608
#define PSC_MAX_WINDOW      128

/* A result of round r is written to result_va + (r mod W) * chunk_bytes of its pool.
 *
 * Immediate of contribution and result, big-endian in the packet:
 *   CRC-32 (IEEE 802.3, as zlib.crc32) of four little-endian u32: sequence number of the collective in its
 * session, chunk index inside it, enum psc_op, message length in bytes.
 *
 * All ranks' immediates of a round must agree before its result is complete; the result carries the same
 * value. */
#define PSC_IMM_FIELDS 4

/* A probe is one WRITE_ONLY_WITH_IMM of exactly one path MTU: the worker's goes to op window 0, round 0; the
 * appliance's goes to result slot 0. Both carry this immediate. A probe consumes no round. */
#define PSC_IMM_PROBE 0x50534350

/* Why the appliance ended an epoch or refused something; the sentence beside it carries the values. */
enum psc_fault {
    PSC_FAULT_NONE = 0,
    PSC_FAULT_RETRY_EXCEEDED = 1,   /* a worker does not acknowledge: 6 retries or 2 s without progress */
    PSC_FAULT_STALLED_MESSAGE = 2,  /* a begun message has not advanced for 2 s */
    PSC_FAULT_INVALID_REQUEST = 3,  /* NAK 61 sent: opcode sequence, length, or operation not enabled */
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
    PSC_FAULT_COUNT = 15
};
