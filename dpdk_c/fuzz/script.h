/* fuzz/: the input of fuzz_lane: a script for one lane. Shared by the target, which runs it, and the mutator,
 * which writes it. Bytes of a script: one byte of shape, then records of a kind, a length (16 bits, little
 * endian) and as many bytes. Whatever the fuzzer makes of them is a script. */
#ifndef PSC_FUZZ_SCRIPT_H
#define PSC_FUZZ_SCRIPT_H

#include "psc_lane_state.h"

#define SCRIPT_RANKS       2u
#define SCRIPT_MTU         256u
#define SCRIPT_WINDOW      2u
#define SCRIPT_OPS         5u /* op windows 1 to 5; 3 and 4 look up and make longer results */
#define SCRIPT_STREAMS     5u /* the op window whose contributions are streams of sub-blocks */
#define SCRIPT_PACKETS     4u
#define SCRIPT_MAX_RECORDS 256u
#define SCRIPT_FRAME_MAX   2048u
#define RECORD_BYTES       3u

/* Bits of the shape. */
#define SHAPE_IPV6 1u
#define SHAPE_VLAN 2u

enum record_kind {
    RECORD_FRAME = 0, /* as it is */
    RECORD_DUE,       /* a frame whose PSN and round are set to what its QP waits for, its ICRC made anew */
    RECORD_MORE,      /* as DUE, but in one burst with the frame that follows */
    RECORD_WAIT,      /* so many units of 50 us: a retransmission, a fault of time */
    RECORD_STALL,     /* from here on the port keeps what it is given; or, if it does, lets go of all */
    RECORD_ROOM,      /* the port takes so many frames in the next turn */
    RECORD_LEAVE,     /* rank, received rounds */
    RECORD_HALT,      /* rank: its QP has died */
    RECORD_RESUME,    /* of a halted job; all ranks that are left connect, with results that they lack */
    RECORD_END,       /* bit per dead rank */
    RECORD_DETACH,    /* the job goes and comes again */
    RECORD_KINDS
};

struct record {
    uint8_t kind;
    const uint8_t *data;
    uint32_t bytes;
};

/* The record at *at, which moves on; false: the script ends. */
bool script_next(const uint8_t **at, const uint8_t *end, struct record *record);

/* The rack that every script runs in: nothing is random, so that a mutator knows what is valid. */
struct psc_local script_local(uint8_t shape);
struct psc_ip script_worker_ip(uint8_t shape, uint32_t rank);
struct psc_qp_spec script_qp(uint8_t shape, uint32_t rank);
/* How the worker sends to its QP. */
struct psc_flow script_flow(uint8_t shape, uint32_t rank);

/* Where the IP header of a frame begins, and whether there is a whole one. */
bool script_find_ip(const uint8_t *frame, uint32_t bytes, uint32_t *ip_at, bool *v6);
/* Makes lengths, checksums and ICRC of a frame what its size and bytes call for. Frames too short for a BTH
 * and an ICRC are left alone. */
void script_repair(uint8_t *frame, uint32_t bytes);

#endif
