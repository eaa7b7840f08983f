/* fuzz/: the parser and the host answers alone: any bytes in a buffer of exactly their size. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"
#include "script.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

/* Three of four inputs have checksums that fit: a wrong one ends nearly everything at once. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    size = LLVMFuzzerMutate(data, size, max_size);
    if (size > 1 && seed % 4 != 0)
        script_repair(data + 1, (uint32_t)size - 1);
    return size;
}

/* A packet that the parser vouches for lies inside its frame. */
static void check_packet(const struct psc_packet *packet, const uint8_t *frame, size_t bytes)
{
    const uint8_t *end = frame + bytes;

    assert(packet->row == &psc_opcode_rows[packet->opcode] && packet->row->flags != 0);
    assert(packet->ip_header >= frame && packet->payload > packet->ip_header);
    assert(packet->payload + packet->payload_bytes <= end);
    assert(packet->ip_header + packet->icrc_bytes + PSC_ICRC_BYTES <= end);
    assert(packet->payload + packet->payload_bytes <= packet->ip_header + packet->icrc_bytes);
    (void)psc_icrc_ok(packet);
}

static void check_host(const uint8_t *frame, uint32_t bytes, const struct psc_local *local)
{
    uint32_t room = bytes > PSC_HOST_FRAME_MAX ? bytes : PSC_HOST_FRAME_MAX;
    uint8_t *out = malloc(room);
    struct psc_ip ip;
    struct psc_mac mac;

    assert(out);
    uint32_t answer_bytes = psc_host_answer(frame, bytes, local, out);
    assert(answer_bytes <= room);
    if (answer_bytes > 0) /* from us, and to nobody who would answer again */
        assert(psc_mac_equal(&((const struct psc_ethernet *)(const void *)out)->src, &local->mac));
    if (psc_neighbour_heard(frame, bytes, local, &ip, &mac)) {
        assert((mac.b[0] & 1) == 0 && psc_ip_is_v4(&ip) == psc_ip_is_v4(&local->ip));
        assert(!psc_ip_equal(&ip, &local->ip) && !psc_ip_is_multicast(&ip));
    }
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct psc_packet packet;
    enum psc_drop why;

    if (size == 0 || size > SCRIPT_FRAME_MAX)
        return -1;
    struct psc_local local = script_local(data[0]);
    size_t bytes = size - 1;
    uint8_t *frame = malloc(bytes);
    assert(frame || bytes == 0);
    memcpy(frame, data + 1, bytes);
    switch (psc_parse(frame, (uint32_t)bytes, &local, &packet, &why)) {
    case PSC_FRAME_ROCE:
        check_packet(&packet, frame, bytes);
        break;
    case PSC_FRAME_NEIGHBOUR:
    case PSC_FRAME_PING:
        assert(why == PSC_DROP_NONE);
        break;
    case PSC_FRAME_DROP:
        assert(why > PSC_DROP_NONE && why < PSC_DROP_COUNT);
        break;
    }
    check_host(frame, (uint32_t)bytes, &local);
    free(frame);
    return 0;
}
