/* fuzz/: the mutator of fuzz_lane. It changes a script as a script: it adds sound packets, changes one field
 * of a packet, repeats and reorders, and repairs lengths and ICRC afterwards. Without that nearly every input
 * ends at the ICRC, and nothing behind it is reached. */
#include <stdlib.h>
#include <string.h>

#include "frame.h"
#include "script.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

static const uint8_t opcodes[] = {PSC_RC_WRITE_FIRST, PSC_RC_WRITE_MIDDLE, PSC_RC_WRITE_LAST_IMM,
                                  PSC_RC_WRITE_ONLY_IMM, PSC_RC_ACK};

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* ---- Sound packets. ---- */

static uint32_t write_length(uint32_t *state, bool looks_up)
{
    static const uint32_t lengths[] = {4,
                                       SCRIPT_MTU - 4,
                                       SCRIPT_MTU,
                                       SCRIPT_MTU + 4,
                                       2 * SCRIPT_MTU,
                                       3 * SCRIPT_MTU + 12,
                                       SCRIPT_PACKETS * SCRIPT_MTU,
                                       SCRIPT_PACKETS * SCRIPT_MTU + 4};

    if (looks_up) /* whole units, and not more than a slot has room for the result of, mostly */
        return 64u << next_random(state) % 4;
    return lengths[next_random(state) % (sizeof lengths / sizeof *lengths)];
}

static struct psc_header sound_header(uint8_t opcode, const struct psc_qp_spec *qp, uint32_t *state)
{
    static const uint8_t syndromes[] = {0x1f, 0x1f, 0x60, 0x2c, 0x61, 0x00};
    uint64_t window = next_random(state) % 8 == 0 ? 0 : 1 + next_random(state) % SCRIPT_OPS;

    return (struct psc_header){.opcode = opcode,
                               .ack_req = next_random(state) % 2,
                               .psn = qp->peer_start_psn + next_random(state) % 8,
                               .va = qp->va_base + (window << PSC_VA_WINDOW_SHIFT),
                               .rkey = qp->rkey,
                               .dma_len = write_length(state, window > 2 && window < SCRIPT_STREAMS),
                               .imm = window == 0 ? PSC_IMM_PROBE : 7,
                               .syndrome = syndromes[next_random(state) % sizeof syndromes]};
}

static uint32_t sound_payload_bytes(const struct psc_header *header, uint32_t *state)
{
    switch (header->opcode) {
    case PSC_RC_WRITE_FIRST:
    case PSC_RC_WRITE_MIDDLE:
        return SCRIPT_MTU;
    case PSC_RC_WRITE_ONLY_IMM:
        return header->dma_len < SCRIPT_MTU ? header->dma_len : SCRIPT_MTU;
    case PSC_RC_WRITE_LAST_IMM:
        return 1 + (write_length(state, false) - 1) % SCRIPT_MTU;
    default:
        return 0;
    }
}

/* Elements of a stream: mostly as many as a slot takes, `most`; else a number at a limit, of a slot or of
 * what a slot's sub-blocks are counted in. */
static uint32_t stream_elements(uint32_t most, uint32_t *state)
{
    const uint32_t limits[] = {0,        1,        most + 1,  2 * most, PSC_SUB_BLOCK_ELEMS + 1,
                               1u << 20, 1u << 28, UINT32_MAX};

    return next_random(state) % 4 > 0 ? most : limits[next_random(state) % (sizeof limits / sizeof *limits)];
}

/* The beginning of a stream that is as long as its message; one in four with a changed word. */
static void put_stream(uint8_t *payload, uint32_t payload_bytes, uint32_t length_bytes, uint32_t *state)
{
    uint32_t elements = psc_sub_block_elems_max(SCRIPT_PACKETS * SCRIPT_MTU), bitmap = (elements + 31) / 32;
    uint32_t words[SCRIPT_MTU / 4] = {stream_elements(elements, state), length_bytes / 4 - 2 - bitmap};

    for (uint32_t i = 0; i < words[1] && i < elements; i++) /* every third element, and round again */
        words[2 + (3 * i) % elements / 32] |= 1u << (3 * i) % elements % 32;
    if (next_random(state) % 4 == 0)
        words[next_random(state) % (next_random(state) % 2 ? 2 : 2 + bitmap)] ^= 1u
                                                                                 << next_random(state) % 32;
    memcpy(payload, words, payload_bytes);
}

/* Writes a sound frame of one of the workers; returns its length. `out` holds SCRIPT_FRAME_MAX bytes. */
static uint32_t put_packet(uint8_t shape, uint8_t *out, uint32_t *state)
{
    uint32_t rank = next_random(state) % SCRIPT_RANKS, crc;
    struct psc_qp_spec qp = script_qp(shape, rank);
    struct psc_flow flow = script_flow(shape, rank);
    struct psc_header header = sound_header(opcodes[next_random(state) % sizeof opcodes], &qp, state);
    uint32_t payload_bytes = sound_payload_bytes(&header, state);
    uint32_t header_bytes = psc_build(&flow, &header, payload_bytes, out, &crc);
    uint32_t padded_bytes = (payload_bytes + 3) & ~3u;

    memset(out + header_bytes, (int)(next_random(state) & 0x7f), padded_bytes);
    if (psc_va_window(header.va - qp.va_base) == SCRIPT_STREAMS &&
        (psc_opcode_rows[header.opcode].flags & PSC_OPF_RETH) && payload_bytes % 4 == 0)
        put_stream(out + header_bytes, payload_bytes, header.dma_len, state);
    psc_icrc_finish(psc_crc32(crc, out + header_bytes, padded_bytes), out + header_bytes + padded_bytes);
    return header_bytes + padded_bytes + PSC_ICRC_BYTES;
}

/* ---- Records. ---- */

/* Offsets of the records in a script; returns how many. */
static uint32_t index_records(const uint8_t *data, size_t size,
                              uint32_t offsets[static SCRIPT_MAX_RECORDS + 1])
{
    const uint8_t *at = data + 1, *end = data + size;
    struct record record;
    uint32_t count = 0;

    for (offsets[0] = 1; count < SCRIPT_MAX_RECORDS && script_next(&at, end, &record); count++)
        offsets[count + 1] = (uint32_t)(at - data);
    return count;
}

/* Makes room for, or closes, the bytes of [from, to) so that they are `bytes`; returns the new size, or the
 * old one if there is no room. */
static size_t resize(uint8_t *data, size_t size, size_t max_size, uint32_t from, uint32_t to, uint32_t bytes)
{
    if (size - (to - from) + bytes > max_size)
        return 0;
    memmove(data + from + bytes, data + to, size - to);
    return size - (to - from) + bytes;
}

/* Puts a record over [from, to); 0: no room. */
static size_t put_record(uint8_t *data, size_t size, size_t max_size, uint32_t from, uint32_t to,
                         const struct record *record)
{
    size_t new_size = resize(data, size, max_size, from, to, RECORD_BYTES + record->bytes);

    if (new_size == 0)
        return 0;
    data[from] = record->kind;
    data[from + 1] = (uint8_t)record->bytes;
    data[from + 2] = (uint8_t)(record->bytes >> 8);
    if (record->bytes > 0)
        memcpy(data + from + RECORD_BYTES, record->data, record->bytes);
    return new_size;
}

static size_t add(uint8_t *data, size_t size, size_t max_size, uint32_t at, uint32_t *state)
{
    uint8_t buffer[SCRIPT_FRAME_MAX];
    struct record record = {.data = buffer};

    if (next_random(state) % 8 < 6) {
        record.kind = next_random(state) % 8 == 0   ? RECORD_FRAME
                      : next_random(state) % 4 == 0 ? RECORD_MORE
                                                    : RECORD_DUE;
        record.bytes = put_packet(data[0], buffer, state);
    } else {
        record.kind = (uint8_t)(RECORD_WAIT + next_random(state) % (RECORD_KINDS - RECORD_WAIT));
        record.bytes = 2;
        buffer[0] = (uint8_t)next_random(state);
        buffer[1] = (uint8_t)(next_random(state) % 8 == 0 ? next_random(state) : 0);
        if (record.kind >= RECORD_LEAVE) {
            buffer[0] %= 4;
            buffer[1] %= 4;
        }
    }
    return put_record(data, size, max_size, at, at, &record);
}

/* One record's bytes by libFuzzer's own mutations, then mostly repaired. */
static size_t change(uint8_t *data, size_t size, size_t max_size, const uint32_t offsets[static 2],
                     uint32_t *state)
{
    uint8_t buffer[SCRIPT_FRAME_MAX];
    uint32_t bytes = offsets[1] - offsets[0] - RECORD_BYTES;

    if (bytes == 0 || bytes > sizeof buffer)
        return 0;
    memcpy(buffer, data + offsets[0] + RECORD_BYTES, bytes);
    /* Headers, where nearly all decisions are: half the time without the payload. */
    uint32_t part = next_random(state) % 2 && bytes > 90 ? 90 : bytes;
    if (part < bytes)
        LLVMFuzzerMutate(buffer, part, part);
    else
        bytes = (uint32_t)LLVMFuzzerMutate(buffer, bytes, sizeof buffer);
    if (data[offsets[0]] % RECORD_KINDS <= RECORD_MORE && next_random(state) % 8 != 0)
        script_repair(buffer, bytes);
    const struct record record = {.kind = data[offsets[0]], .data = buffer, .bytes = bytes};
    return put_record(data, size, max_size, offsets[0], offsets[1], &record);
}

static size_t copy(uint8_t *data, size_t size, size_t max_size, const uint32_t offsets[static 2], uint32_t to)
{
    uint8_t buffer[SCRIPT_FRAME_MAX];
    uint32_t bytes = offsets[1] - offsets[0] - RECORD_BYTES;

    if (bytes > sizeof buffer)
        return 0;
    memcpy(buffer, data + offsets[0] + RECORD_BYTES, bytes);
    const struct record record = {.kind = data[offsets[0]], .data = buffer, .bytes = bytes};
    return put_record(data, size, max_size, to, to, &record);
}

static size_t mutate_once(uint8_t *data, size_t size, size_t max_size, uint32_t *state)
{
    uint32_t offsets[SCRIPT_MAX_RECORDS + 1];
    uint32_t count = index_records(data, size, offsets);
    uint32_t to = offsets[next_random(state) % (count + 1)];

    if (count == 0 || next_random(state) % 4 == 0)
        return add(data, size, max_size, next_random(state) % 2 ? offsets[count] : to, state);
    const uint32_t *record = &offsets[next_random(state) % count];
    switch (next_random(state) % 8) {
    case 0: /* drop it */
        return resize(data, size, max_size, record[0], record[1], 0);
    case 1:
        return copy(data, size, max_size, record, to);
    case 2:
        data[record[0]] = (uint8_t)(next_random(state) % (RECORD_MORE + 1));
        return size;
    default:
        return change(data, size, max_size, record, state);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    uint32_t state = seed | 1u;

    if (size == 0) {
        data[0] = (uint8_t)(seed & (SHAPE_IPV6 | SHAPE_VLAN));
        size = 1;
    }
    for (uint32_t i = 1 + next_random(&state) % 4; i > 0; i--) {
        size_t new_size = mutate_once(data, size, max_size, &state);
        if (new_size > 0)
            size = new_size;
    }
    return size;
}
