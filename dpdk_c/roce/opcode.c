/* The opcode table: one row per opcode that IBTA defines for RC, and the CNP. All other opcodes have no row,
 * and a packet without a row is dropped before any length is subtracted from it. A new opcode is a row, not a
 * branch. */
#include "psc_roce.h"

enum { /* extension headers, in bytes */
       BTH = 12,
       RETH = 16,
       AETH = 4,
       IMM = 4,
       IETH = 4,           /* rkey to invalidate */
       ATOMIC_ETH = 28,    /* va, rkey, two operands */
       ATOMIC_ACK_ETH = 8, /* the value before */
       FETH = 4,           /* of FLUSH; stands before its RETH, so FLUSH carries no RETH flag */
       CNP_RESERVED = 16,
};

#define REQUEST(where, more) (PSC_OPF_REQUEST | (where) | (more))
#define WRITE(where, more)   (PSC_OPF_REQUEST | PSC_OPF_WRITE | PSC_OPF_PAYLOAD | (where) | (more))
#define FIRST                PSC_OPF_FIRST
#define MIDDLE               0
#define LAST                 PSC_OPF_LAST
#define ONLY                 (PSC_OPF_FIRST | PSC_OPF_LAST)

const struct psc_opcode_row psc_opcode_rows[256] = {
    /* SEND: not enabled here; rows so that the responder can refuse them with NAK 61. */
    [0x00] = {REQUEST(FIRST, PSC_OPF_PAYLOAD), BTH},
    [0x01] = {REQUEST(MIDDLE, PSC_OPF_PAYLOAD), BTH},
    [0x02] = {REQUEST(LAST, PSC_OPF_PAYLOAD), BTH},
    [0x03] = {REQUEST(LAST, PSC_OPF_PAYLOAD | PSC_OPF_IMM), BTH + IMM},
    [0x04] = {REQUEST(ONLY, PSC_OPF_PAYLOAD), BTH},
    [0x05] = {REQUEST(ONLY, PSC_OPF_PAYLOAD | PSC_OPF_IMM), BTH + IMM},

    [PSC_RC_WRITE_FIRST] = {WRITE(FIRST, PSC_OPF_RETH), BTH + RETH},
    [PSC_RC_WRITE_MIDDLE] = {WRITE(MIDDLE, 0), BTH},
    [PSC_RC_WRITE_LAST] = {WRITE(LAST, 0), BTH},
    [PSC_RC_WRITE_LAST_IMM] = {WRITE(LAST, PSC_OPF_IMM), BTH + IMM},
    [PSC_RC_WRITE_ONLY] = {WRITE(ONLY, PSC_OPF_RETH), BTH + RETH},
    [PSC_RC_WRITE_ONLY_IMM] = {WRITE(ONLY, PSC_OPF_RETH | PSC_OPF_IMM), BTH + RETH + IMM},

    /* READ request and its responses. */
    [0x0c] = {REQUEST(ONLY, PSC_OPF_RETH), BTH + RETH},
    [0x0d] = {PSC_OPF_RESPONSE | FIRST | PSC_OPF_AETH | PSC_OPF_PAYLOAD, BTH + AETH},
    [0x0e] = {PSC_OPF_RESPONSE | MIDDLE | PSC_OPF_PAYLOAD, BTH},
    [0x0f] = {PSC_OPF_RESPONSE | LAST | PSC_OPF_AETH | PSC_OPF_PAYLOAD, BTH + AETH},
    [0x10] = {PSC_OPF_RESPONSE | ONLY | PSC_OPF_AETH | PSC_OPF_PAYLOAD, BTH + AETH},

    [PSC_RC_ACK] = {PSC_OPF_RESPONSE | ONLY | PSC_OPF_AETH, BTH + AETH},

    /* Atomics: acknowledge, compare-and-swap, fetch-and-add. */
    [0x12] = {PSC_OPF_RESPONSE | ONLY | PSC_OPF_AETH, BTH + AETH + ATOMIC_ACK_ETH},
    [0x13] = {REQUEST(ONLY, 0), BTH + ATOMIC_ETH},
    [0x14] = {REQUEST(ONLY, 0), BTH + ATOMIC_ETH},

    /* SEND with invalidate. */
    [0x16] = {REQUEST(LAST, PSC_OPF_PAYLOAD), BTH + IETH},
    [0x17] = {REQUEST(ONLY, PSC_OPF_PAYLOAD), BTH + IETH},

    /* FLUSH and ATOMIC WRITE (IBTA 1.5). */
    [0x1c] = {REQUEST(ONLY, 0), BTH + FETH + RETH},
    [0x1d] = {REQUEST(ONLY, PSC_OPF_RETH | PSC_OPF_PAYLOAD), BTH + RETH},

    [PSC_CNP] = {PSC_OPF_CNP, BTH + CNP_RESERVED},
};
