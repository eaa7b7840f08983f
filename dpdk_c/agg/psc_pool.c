/* agg/: slots and ledger. The checks say no before a byte is added; the rest cannot fail. */
#include "psc_pool.h"

#include <string.h>

#define ALIGNMENT_BYTES 64u

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT_BYTES - 1) & ~(size_t)(ALIGNMENT_BYTES - 1);
}

/* Of a contribution whose op does not expand; others have fewer. */
static size_t packets_per_slot(const struct psc_pool_shape *shape)
{
    return shape->chunk_bytes / shape->packet_bytes;
}

static uint32_t packets_of(const struct psc_pool *pool, uint32_t bytes)
{
    return (bytes + pool->shape.packet_bytes - 1) / pool->shape.packet_bytes;
}

static bool has_sub_blocks(enum psc_op op)
{
    return psc_op_form(op)->sub_block_elems > 0;
}

static size_t readers_bytes(const struct psc_pool_shape *shape)
{
    return shape->sub_blocks ? aligned(shape->world_size * sizeof(struct psc_expand_reader)) : 0;
}

static size_t crcs_bytes(const struct psc_pool_shape *shape)
{
    return shape->crcs ? aligned(packets_per_slot(shape) * sizeof(uint32_t)) : 0;
}

/* What counts a slot's packets counts its sub-blocks too: they are longer than any packet, and the spare
 * bytes make up for the last one. */
_Static_assert(4 * PSC_SUB_BLOCK_ELEMS > 4096, "a slot has no more sub-blocks than packets");

size_t psc_pool_memory_bytes(const struct psc_pool_shape *shape)
{
    size_t slots = 2 * (size_t)shape->window;

    return aligned(slots * sizeof(struct psc_slot)) +
           slots * (aligned(shape->chunk_bytes) + 2 * aligned(packets_per_slot(shape)) + crcs_bytes(shape)) +
           readers_bytes(shape);
}

void psc_pool_init(struct psc_pool *pool, const struct psc_pool_shape *shape, void *memory)
{
    uint32_t slots = 2 * shape->window;
    uint8_t *free_memory = (uint8_t *)memory + aligned(slots * sizeof(struct psc_slot));

    *pool = (struct psc_pool){
        .shape = *shape, .packet_shift = (uint32_t)__builtin_ctz(shape->packet_bytes), .slots = memory};
    for (uint32_t i = 0; i < slots; i++) {
        pool->slots[i].accumulator = free_memory;
        free_memory += aligned(shape->chunk_bytes);
        pool->slots[i].arrived = free_memory;
        free_memory += aligned(packets_per_slot(shape));
        pool->slots[i].waiting = memset(free_memory, 0, packets_per_slot(shape));
        free_memory += aligned(packets_per_slot(shape));
        pool->slots[i].packet_crc = shape->crcs ? (void *)free_memory : NULL;
        free_memory += crcs_bytes(shape);
    }
    if (shape->sub_blocks)
        pool->readers = (void *)free_memory;
}

bool psc_pool_op_exists(uint32_t op)
{
    return op < PSC_OP_COUNT && (psc_op_rows()[op].combine != NULL || has_sub_blocks((enum psc_op)op));
}

uint32_t psc_pool_contribution_max(const struct psc_pool *pool, enum psc_op op)
{
    return pool->shape.chunk_bytes / psc_op_form(op)->expansion;
}

/* Not of what is packed afterwards; nor where a unit makes more than a packet (LUT2_U16 at an MTU of 256). */
bool psc_pool_makes_crcs(const struct psc_pool *pool, enum psc_op op)
{
    const struct psc_op_form *form = psc_op_form(op);

    return pool->shape.crcs && !has_sub_blocks(op) &&
           pool->shape.packet_bytes >= (uint32_t)form->expansion * form->unit_bytes;
}

uint32_t psc_pool_slot_index(const struct psc_pool *pool, uint32_t round)
{
    return round & (2 * pool->shape.window - 1);
}

struct psc_slot *psc_pool_find(const struct psc_pool *pool, uint32_t round)
{
    struct psc_slot *slot = &pool->slots[psc_pool_slot_index(pool, round)];

    return slot->used && slot->round == round ? slot : NULL;
}

bool psc_pool_round_ok(const struct psc_pool *pool, uint32_t rank, uint32_t round, enum psc_op op,
                       uint32_t length_bytes, struct psc_refusal *refusal)
{
    uint32_t next_round = pool->ledger[rank].begun_rounds;
    uint32_t newest_round = pool->completed_rounds + pool->shape.window - 1;
    const struct psc_slot *slot = psc_pool_find(pool, round);

    if (round != next_round)
        return psc_refuse(refusal, PSC_FAULT_ROUND_MISMATCH, next_round, round);
    if (psc_round_distance(round, newest_round) > 0)
        return psc_refuse(refusal, PSC_FAULT_ROUND_MISMATCH, newest_round, round);
    if (slot && slot->op != op)
        return psc_refuse(refusal, PSC_FAULT_OP_MISMATCH, slot->op, op);
    if (slot && slot->length_bytes != length_bytes && !has_sub_blocks(op))
        return psc_refuse(refusal, PSC_FAULT_LENGTH_MISMATCH, slot->length_bytes, length_bytes);
    return true;
}

/* Every rank has the results of all rounds before `rounds`. */
static bool all_acknowledged(const struct psc_pool *pool, uint32_t rounds)
{
    for (uint32_t rank = 0; rank < pool->shape.world_size; rank++)
        if (psc_round_distance(pool->ledger[rank].acknowledged_rounds, rounds) < 0)
            return false;
    return true;
}

bool psc_pool_slot_writable(const struct psc_pool *pool, uint32_t round)
{
    const struct psc_slot *slot = &pool->slots[psc_pool_slot_index(pool, round)];

    return !slot->used || slot->round == round || all_acknowledged(pool, slot->round + 1);
}

bool psc_pool_begin(struct psc_pool *pool, uint32_t rank, enum psc_op op, uint32_t length_bytes)
{
    uint32_t round = pool->ledger[rank].begun_rounds++;
    struct psc_slot *slot = &pool->slots[psc_pool_slot_index(pool, round)];
    uint64_t rank_bit = UINT64_C(1) << rank;

    if (has_sub_blocks(op))
        psc_expand_begin(&pool->readers[rank], length_bytes);
    if (slot->used && slot->round == round) {
        slot->contributors |= rank_bit;
        return false;
    }
    uint32_t result_bytes =
        has_sub_blocks(op) ? pool->shape.chunk_bytes : length_bytes * psc_op_form(op)->expansion;
    memset(slot->arrived, 0, packets_of(pool, length_bytes));
    *slot = (struct psc_slot){.accumulator = slot->accumulator,
                              .arrived = slot->arrived,
                              .waiting = slot->waiting,
                              .packet_crc = slot->packet_crc,
                              .contributors = rank_bit,
                              .round = round,
                              .op = op,
                              .length_bytes = length_bytes,
                              .result_bytes = result_bytes,
                              .packets = packets_of(pool, result_bytes),
                              .used = true};
    return true;
}

/* The slot that the rank is contributing to. */
static struct psc_slot *current_slot(const struct psc_pool *pool, uint32_t rank)
{
    return &pool->slots[psc_pool_slot_index(pool, pool->ledger[rank].begun_rounds - 1)];
}

/* The op's own, NULL for an op that has none. */
static const uint8_t *table_of(const struct psc_pool *pool, enum psc_op op)
{
    return psc_op_form(op)->table_entries > 0 ? pool->shape.tables[op] : NULL;
}

/* The last addition to a range, result packet by result packet: each one's CRC is folded while the sums are
 * in registers, so that nobody reads them again for it. */
static void add_last(const struct psc_pool *pool, const struct psc_addition *addition)
{
    const struct psc_slot *slot = addition->slot;
    const struct psc_op_form *form = psc_op_form(slot->op);
    const struct psc_op_row *row = &psc_op_rows()[slot->op];
    psc_combine_many_crc_fn *add = addition->first ? row->first_many_crc : row->combine_many_crc;
    uint32_t packet = addition->packet * form->expansion, rest = addition->units;
    uint32_t packet_units = pool->shape.packet_bytes / form->expansion / form->unit_bytes;
    const uint8_t *values[PSC_COMBINE_MAX];

    memcpy(values, addition->values, sizeof(values));
    for (; rest > 0; packet++) {
        uint32_t units = rest < packet_units ? rest : packet_units;
        uint8_t *sums = slot->accumulator + (size_t)packet * pool->shape.packet_bytes;
        slot->packet_crc[packet] =
            add(sums, (const void *const *)values, addition->count, units, table_of(pool, slot->op));
        for (uint32_t i = 0; i < addition->count; i++)
            values[i] += (size_t)units * form->unit_bytes;
        rest -= units;
    }
}

static void add_now(const struct psc_pool *pool, const struct psc_addition *addition)
{
    const struct psc_slot *slot = addition->slot;
    const struct psc_op_row *row = &psc_op_rows()[slot->op];
    size_t packet_bytes = (size_t)pool->shape.packet_bytes * psc_op_form(slot->op)->expansion;
    psc_combine_many_fn *add = addition->first ? row->first_many : row->combine_many;

    add(slot->accumulator + addition->packet * packet_bytes, addition->values, addition->count,
        addition->units, table_of(pool, slot->op));
}

/* Nothing has come to this range of the slot, and it can be added to in whole turns. */
static bool may_add_ahead(const struct psc_pool *pool, const struct psc_slot *slot, uint32_t packet)
{
    return packet < slot->length_bytes >> pool->packet_shift && slot->arrived[packet] == 0 &&
           psc_pool_makes_crcs(pool, slot->op) && psc_first_checked(slot->op) &&
           pool->shape.packet_bytes % (PSC_CRC_TURN_BYTES * psc_op_form(slot->op)->expansion) == 0;
}

/* Other values' sum is about to lie there. */
static void forget_range(struct psc_pool *pool, const struct psc_slot *slot, uint32_t packet)
{
    for (uint32_t i = 0; i < PSC_POOL_AHEAD; i++)
        if (pool->ahead[i].slot == slot && pool->ahead[i].packet == packet)
            pool->ahead[i].slot = NULL;
}

bool psc_pool_add_ahead(struct psc_pool *pool, uint32_t round, uint32_t packet,
                        const struct psc_crc_message *messages, uint32_t *left)
{
    struct psc_slot *slot = psc_pool_find(pool, round);
    struct psc_ahead *ahead = &pool->ahead[pool->ahead_count % PSC_POOL_AHEAD];

    if (!slot || !may_add_ahead(pool, slot, packet))
        return false;
    forget_range(pool, slot, packet);
    pool->ahead_count++;
    ahead->slot = slot;
    ahead->packet = packet;
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        ahead->values[i] = messages[i].payload;
    size_t range_bytes = (size_t)pool->shape.packet_bytes * psc_op_form(slot->op)->expansion;
    *left = psc_first_checked(slot->op)(slot->accumulator + packet * range_bytes, messages,
                                        pool->shape.packet_bytes, table_of(pool, slot->op), ahead->crcs);
    return true;
}

void psc_pool_forget_ahead(struct psc_pool *pool)
{
    for (uint32_t i = 0; i < PSC_POOL_AHEAD; i++)
        pool->ahead[i].slot = NULL;
}

/* The sums of exactly these values, made ahead; else NULL. */
static struct psc_ahead *ahead_of(struct psc_pool *pool, const struct psc_addition *addition)
{
    if (!addition->first || addition->count != PSC_CRC_TOGETHER)
        return NULL;
    for (uint32_t i = 0; i < PSC_POOL_AHEAD; i++) {
        struct psc_ahead *ahead = &pool->ahead[i];
        if (ahead->slot == addition->slot && ahead->packet == addition->packet &&
            memcmp(ahead->values, addition->values, sizeof ahead->values) == 0)
            return ahead;
    }
    return NULL;
}

static void take_ahead(struct psc_ahead *ahead)
{
    uint32_t expansion = psc_op_form(ahead->slot->op)->expansion;

    memcpy(ahead->slot->packet_crc + (size_t)ahead->packet * expansion, ahead->crcs,
           expansion * sizeof(uint32_t));
    ahead->slot = NULL;
}

/* All ranks cut a message alike (one MTU, one length), so a range has its first packets or it has others: the
 * slot needs no clearing. */
static void add_waiting(struct psc_pool *pool, struct psc_addition *addition)
{
    const struct psc_slot *slot = addition->slot;

    struct psc_ahead *ahead = ahead_of(pool, addition);

    if (ahead)
        take_ahead(ahead);
    else if (slot->arrived[addition->packet] == pool->shape.world_size && psc_pool_makes_crcs(pool, slot->op))
        add_last(pool, addition);
    else
        add_now(pool, addition);
    slot->waiting[addition->packet] = 0;
    const struct psc_addition *last = &pool->waiting[--pool->waiting_count];
    if (addition != last) {
        *addition = *last;
        addition->slot->waiting[addition->packet] = (uint8_t)(addition - pool->waiting + 1);
    }
}

void psc_pool_settle(struct psc_pool *pool)
{
    while (pool->waiting_count > 0)
        add_waiting(pool, &pool->waiting[pool->waiting_count - 1]);
}

/* What waits for this range; opened, for payloads of this length, if nothing does. */
static struct psc_addition *waiting_for(struct psc_pool *pool, struct psc_slot *slot, uint32_t packet,
                                        uint32_t payload_bytes)
{
    if (slot->waiting[packet] > 0)
        return &pool->waiting[slot->waiting[packet] - 1];
    if (pool->waiting_count == PSC_POOL_WAITING)
        psc_pool_settle(pool);
    struct psc_addition *addition = &pool->waiting[pool->waiting_count++];
    slot->waiting[packet] = (uint8_t)pool->waiting_count;
    addition->slot = slot;
    addition->packet = packet;
    addition->units = payload_bytes / psc_op_form(slot->op)->unit_bytes;
    addition->count = 0;
    addition->first = slot->arrived[packet] == 0;
    return addition;
}

void psc_pool_add(struct psc_pool *pool, uint32_t rank, uint32_t offset_bytes, const void *payload,
                  uint32_t payload_bytes)
{
    struct psc_slot *slot = current_slot(pool, rank);
    uint32_t packet = offset_bytes >> pool->packet_shift;
    struct psc_addition *addition = waiting_for(pool, slot, packet, payload_bytes);

    addition->values[addition->count++] = payload;
    /* Each rank's packets come in order, so the packet that has all ranks is the next one to be summed. */
    if (++slot->arrived[packet] == pool->shape.world_size) {
        add_waiting(pool, addition);
        slot->summed_packets = offset_bytes + payload_bytes == slot->length_bytes
                                   ? slot->packets
                                   : (packet + 1) * psc_op_form(slot->op)->expansion;
    } else if (addition->count == PSC_COMBINE_MAX || ahead_of(pool, addition)) {
        add_waiting(pool, addition);
    }
}

bool psc_pool_reads(const struct psc_pool *pool, uint32_t rank)
{
    return has_sub_blocks(current_slot(pool, rank)->op);
}

bool psc_pool_read(struct psc_pool *pool, uint32_t rank, const void *payload, uint32_t payload_bytes,
                   struct psc_refusal *refusal)
{
    struct psc_slot *slot = current_slot(pool, rank);
    const struct psc_expand_slot to = {.sum = &slot->expand,
                                       .words = (uint32_t *)(void *)slot->accumulator,
                                       .arrived = slot->arrived,
                                       .op = slot->op,
                                       .elements_max = psc_sub_block_elems_max(pool->shape.chunk_bytes),
                                       .world_size = pool->shape.world_size};

    if (!psc_expand_read(&pool->readers[rank], &to, payload, payload_bytes, refusal))
        return false;
    if (psc_expand_whole(&slot->expand)) { /* and so are all contributions: each ends with its last */
        slot->result_bytes = 4 * slot->expand.result_words;
        slot->packets = slot->summed_packets = packets_of(pool, slot->result_bytes);
    }
    return true;
}

bool psc_pool_immediate_ok(const struct psc_pool *pool, uint32_t round, uint32_t imm,
                           struct psc_refusal *refusal)
{
    const struct psc_slot *slot = psc_pool_find(pool, round);

    if (!slot || slot->whole_ranks == 0 || slot->imm == imm)
        return true;
    return psc_refuse(refusal, PSC_FAULT_IMM_MISMATCH, slot->imm, imm);
}

bool psc_pool_finish(struct psc_pool *pool, uint32_t rank, uint32_t imm)
{
    struct psc_slot *slot = current_slot(pool, rank);

    slot->imm = imm;
    if (++slot->whole_ranks < pool->shape.world_size)
        return false;
    pool->completed_rounds++;
    return true;
}

const uint8_t *psc_slot_payload(const struct psc_pool *pool, const struct psc_slot *slot, uint32_t packet,
                                uint32_t *bytes)
{
    uint32_t offset_bytes = packet << pool->packet_shift;
    uint32_t rest_bytes = slot->result_bytes - offset_bytes;

    *bytes = rest_bytes < pool->shape.packet_bytes ? rest_bytes : pool->shape.packet_bytes;
    return slot->accumulator + offset_bytes;
}

void psc_pool_acknowledge(struct psc_pool *pool, uint32_t rank, uint32_t rounds)
{
    if (psc_round_distance(rounds, pool->ledger[rank].acknowledged_rounds) > 0)
        pool->ledger[rank].acknowledged_rounds = rounds;
}

bool psc_pool_has_all(const struct psc_pool *pool, uint32_t rank)
{
    return psc_round_distance(pool->ledger[rank].acknowledged_rounds, pool->completed_rounds) >= 0;
}

bool psc_pool_delivered(const struct psc_pool *pool)
{
    return all_acknowledged(pool, pool->completed_rounds);
}

uint64_t psc_pool_missing(const struct psc_pool *pool, uint32_t round)
{
    uint64_t missing = 0;

    for (uint32_t rank = 0; rank < pool->shape.world_size; rank++)
        if (psc_round_distance(pool->ledger[rank].begun_rounds, round) <= 0)
            missing |= UINT64_C(1) << rank;
    return missing;
}

void psc_pool_rewind(struct psc_pool *pool)
{
    for (uint32_t i = 0; i < 2 * pool->shape.window; i++)
        if (psc_round_distance(pool->slots[i].round, pool->completed_rounds) >= 0)
            pool->slots[i].used = false;
    for (uint32_t rank = 0; rank < pool->shape.world_size; rank++)
        pool->ledger[rank].begun_rounds = pool->completed_rounds;
}

bool psc_pool_received_ok(const struct psc_pool *pool, uint32_t rank, uint32_t received)
{
    return psc_round_distance(received, pool->completed_rounds) <= 0 &&
           psc_round_distance(received, pool->ledger[rank].acknowledged_rounds) >= 0;
}
