/* agg/: a pool's slots and its ledger: who has contributed what to which round, and which slot may be
 * written. Knows neither packets nor QPs, has no clock and allocates nothing. Steps of the story: "slot
 * added", "slot full".
 *
 * Rounds are 32-bit counters that wrap; they are compared by psc_round_distance alone. Since every rank
 * contributes in order and a round is complete only when all ranks have, rounds complete in order too: one
 * counter says which. */
#ifndef PSC_POOL_H
#define PSC_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "psc_arith.h"
#include "psc_expand.h"
#include "psc_refusal.h"

static inline int32_t psc_round_distance(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b);
}

struct psc_pool_shape {
    uint32_t world_size;
    uint32_t window;       /* W, a power of two; 2W slots */
    uint32_t chunk_bytes;  /* accumulator of a slot, multiple of packet_bytes */
    uint32_t packet_bytes; /* value range that is complete or not: one full packet of the path MTU, a power
                              of two */
    const uint8_t (*tables)[PSC_MAX_TABLE]; /* the job's, by enum psc_op; NULL: no op of it has one */
    bool sub_blocks;                        /* an op of the job has some: the pool reads their streams */
    bool crcs;                              /* of results are wanted, in the slots' packet_crc */
};

/* One accumulator and the round that it holds. Contents stay until all ranks have acknowledged the result.
 *
 * A result is as long as the contribution times the op's expansion. Its packets are full ones all the same:
 * contribution packet p makes the expansion's number of them, from p * expansion on; the contribution's last,
 * shorter one makes what is left.
 *
 * Cut-through and rule 4: what is summed may leave. The packet with the immediate is the last, and it is
 * summed only when the last packet of all N contributions is, that is, when all are whole; their immediates
 * were compared before.
 *
 * Of an op with sub-blocks nothing leaves before the round is complete: the message's first packet says how
 * long the result is, and that is known when its last sub-block is packed. */
struct psc_slot {
    uint8_t *accumulator;
    uint8_t *arrived; /* per packet of a contribution: ranks that are in the accumulator or wait for it; per
                         sub-block: ranks that have passed it */
    uint8_t *waiting; /* per packet of a contribution: 1 + its place in the pool's `waiting`, 0: none is */
    uint32_t *packet_crc; /* per full packet of the result that is summed: psc_crc32's register, seeded with
                             0. Made if psc_pool_makes_crcs, else by who wants them; NULL: nobody does */
    uint32_t round;
    enum psc_op op;
    uint32_t length_bytes;   /* op and length: as the round's first contributor said */
    uint32_t result_bytes;   /* with sub-blocks, until it is packed: the most that it can be */
    uint32_t packets;        /* of the result, as the next one */
    uint32_t summed_packets; /* leading packets that all ranks have contributed: these may leave */
    bool used;               /* holds a round */
    uint32_t whole_ranks;    /* ranks whose contribution is whole */
    uint32_t imm;            /* of the first whole contribution; the others must agree */
    uint64_t contributors;   /* bit per rank that has begun. A complete round has all of them today; a partial
                                result would say here whose it is */
    struct psc_expand_sum expand; /* of an op with sub-blocks */
};

/* One rank's account: every round is counted once, however often its packets come. */
struct psc_ledger_row {
    uint32_t begun_rounds;        /* = the rank's next round */
    uint32_t acknowledged_rounds; /* leading results that the rank is known to have */
};

/* Packets of one range of a slot that are to be added in one pass: an accumulator is loaded and stored once,
 * not once for each. They wait for no other: a range that all ranks have contributed is added at once, the
 * rest before their frames are given back (psc_pool_settle). */
struct psc_addition {
    struct psc_slot *slot;
    uint32_t packet; /* of the contribution */
    uint32_t units;  /* of each value */
    uint32_t count;
    bool first; /* nothing is in the accumulator yet */
    const void *values[PSC_COMBINE_MAX];
};
#define PSC_POOL_WAITING 64u

/* Sums that were made before anybody had decided whether their packets may be added: in a range that nothing
 * had come to, so that they are of no account until just these values come, as its first and in this order.
 */
struct psc_ahead {
    struct psc_slot *slot; /* NULL: none */
    uint32_t packet;
    const void *values[PSC_CRC_TOGETHER];
    uint32_t crcs[8]; /* of the range's packets of the result */
};
#define PSC_POOL_AHEAD 8u

struct psc_pool {
    struct psc_pool_shape shape;
    uint32_t packet_shift; /* log2 of packet_bytes */
    uint32_t completed_rounds;
    struct psc_ledger_row ledger[PSC_MAX_RANKS];
    struct psc_slot *slots;            /* 2W; round r lives in slot r mod 2W */
    struct psc_expand_reader *readers; /* by rank; NULL: no op of the job has sub-blocks */
    uint32_t waiting_count;
    struct psc_addition waiting[PSC_POOL_WAITING];
    struct psc_ahead ahead[PSC_POOL_AHEAD];
    uint32_t ahead_count; /* made so far: the next one is this modulo PSC_POOL_AHEAD */
};

/* Memory that a pool of this shape needs behind psc_pool_init: zeroed, 64-byte aligned. */
size_t psc_pool_memory_bytes(const struct psc_pool_shape *shape);
void psc_pool_init(struct psc_pool *pool, const struct psc_pool_shape *shape, void *memory);

/* An op that writes to a slot. */
bool psc_pool_op_exists(uint32_t op);
/* The longest contribution whose result has room in a slot. */
uint32_t psc_pool_contribution_max(const struct psc_pool *pool, enum psc_op op);
/* The CRCs of this op's results are there as soon as they are summed. */
bool psc_pool_makes_crcs(const struct psc_pool *pool, enum psc_op op);
uint32_t psc_pool_slot_index(const struct psc_pool *pool, uint32_t round);
/* The slot that holds this round, or NULL if nobody has begun it. */
struct psc_slot *psc_pool_find(const struct psc_pool *pool, uint32_t round);

/* ---- Before the first byte of a contribution. ---- */

/* Rule 2: the round is this rank's next and within the window, op and length are the first contributor's. Of
 * an op with sub-blocks the number of elements is, which psc_pool_read finds. */
bool psc_pool_round_ok(const struct psc_pool *pool, uint32_t rank, uint32_t round, enum psc_op op,
                       uint32_t length_bytes, struct psc_refusal *refusal);
/* Rule 6: the slot holds this round already, or every rank has acknowledged the round that it holds. */
bool psc_pool_slot_writable(const struct psc_pool *pool, uint32_t round);
/* Opens the rank's next round. True: the rank is its first contributor. */
bool psc_pool_begin(struct psc_pool *pool, uint32_t rank, enum psc_op op, uint32_t length_bytes);

/* ---- The contribution in progress: the rank's last begun round. ---- */

/* Adds one packet's payload, whole units of it, at `offset_bytes` of the contribution, a multiple of
 * packet_bytes. Called once per rank and packet, in order. The payload is borrowed until psc_pool_settle. */
void psc_pool_add(struct psc_pool *pool, uint32_t rank, uint32_t offset_bytes, const void *payload,
                  uint32_t payload_bytes);
/* Checks PSC_CRC_TOGETHER full packets (packet_bytes of payload each) of which each seems to be the next of
 * its rank at packet `packet` of a contribution to `round`, and makes their sum meanwhile. It counts if
 * psc_pool_add is called for each, in this order, before anything else comes to that range, and else never.
 * False: not possible there; else *left is what is left of the packets' claims (psc_icrc_checked). To be
 * forgotten before the frames end. */
bool psc_pool_add_ahead(struct psc_pool *pool, uint32_t round, uint32_t packet,
                        const struct psc_crc_message *messages, uint32_t *left);
void psc_pool_forget_ahead(struct psc_pool *pool);
/* Adds what waits. Due before a frame of the burst is given back. */
void psc_pool_settle(struct psc_pool *pool);
/* The op of the rank's contribution has sub-blocks: its packets are read. */
bool psc_pool_reads(const struct psc_pool *pool, uint32_t rank);
/* The same for such an op, whose payload says what it is. False: not what its op calls for; the
 * round can only be void now. */
bool psc_pool_read(struct psc_pool *pool, uint32_t rank, const void *payload, uint32_t payload_bytes,
                   struct psc_refusal *refusal);
/* Rule 4: the immediate is that of the contributions to this round that are already whole. */
bool psc_pool_immediate_ok(const struct psc_pool *pool, uint32_t round, uint32_t imm,
                           struct psc_refusal *refusal);
/* The rank's contribution is whole. True: so is the round. */
bool psc_pool_finish(struct psc_pool *pool, uint32_t rank, uint32_t imm);

/* ---- Results. ---- */

/* Payload of one packet of the result. */
const uint8_t *psc_slot_payload(const struct psc_pool *pool, const struct psc_slot *slot, uint32_t packet,
                                uint32_t *bytes);

/* The rank has the results of all rounds before `rounds`. */
void psc_pool_acknowledge(struct psc_pool *pool, uint32_t rank, uint32_t rounds);
/* The rank has every complete result. */
bool psc_pool_has_all(const struct psc_pool *pool, uint32_t rank);
/* Every rank has. */
bool psc_pool_delivered(const struct psc_pool *pool);
/* Bit per rank that has not begun this round. */
uint64_t psc_pool_missing(const struct psc_pool *pool, uint32_t round);

/* ---- Between two epochs (rule 7). ---- */

/* Incomplete rounds are void: their slots hold nothing, and the first of them is every rank's next. Complete
 * ones keep their slots until all ranks have acknowledged them. */
void psc_pool_rewind(struct psc_pool *pool);
/* What a rank says it has: nothing that is not complete, and everything that it has acknowledged, since only
 * what it has not acknowledged is sure to be in its slot still. */
bool psc_pool_received_ok(const struct psc_pool *pool, uint32_t rank, uint32_t received);

#endif
