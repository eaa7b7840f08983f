/* The invariant CRC: CRC-32 over 8 bytes of FF and a copy of the packet in which everything that a router may
 * change reads as ones. */
#include <assert.h>
#include <string.h>

#include "crc.h"
#include "frame.h"

#define V4_BYTES (sizeof(struct psc_ipv4) + sizeof(struct psc_udp) + sizeof(struct psc_bth))
#define V6_BYTES (sizeof(struct psc_ipv6) + sizeof(struct psc_udp) + sizeof(struct psc_bth))

/* What a router may change, by family: type of service or traffic class and flow label, time to live, the
 * checksums, and the congestion byte of the BTH. Nothing of it lies further from the IP header, so the first
 * vector of a packet is the only one that is masked. */
static const union {
    struct {
        struct psc_ipv4 ip;
        struct psc_udp udp;
        struct psc_bth bth;
    } v4;
    struct {
        struct psc_ipv6 ip;
        struct psc_udp udp;
        struct psc_bth bth;
    } v6;
    uint8_t bytes[PSC_CRC_MASK_BYTES];
} mask_v4 = {.v4 = {.ip = {.tos = 0xff, .ttl = 0xff, .checksum = {{0xff, 0xff}}},
                    .udp = {.checksum = {{0xff, 0xff}}},
                    .bth = {.congestion = 0xff}}},
  mask_v6 = {.v6 = {.ip = {.version_class_flow = {{0x0f, 0xff, 0xff, 0xff}}, .hop_limit = 0xff},
                    .udp = {.checksum = {{0xff, 0xff}}},
                    .bth = {.congestion = 0xff}}};

uint32_t psc_icrc(const uint8_t *ip_header, uint32_t bytes)
{
    bool v4 = ip_header[0] >> 4 == 4;

    assert(bytes >= (v4 ? V4_BYTES : V6_BYTES));
    if (!PSC_ICRC_IS_MADE)
        return 0;
    return ~psc_crc_chosen->masked(PSC_ICRC_SEED, v4 ? mask_v4.bytes : mask_v6.bytes, ip_header, bytes);
}

void psc_icrc_finish(uint32_t crc, uint8_t out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(~crc >> 8 * i);
}

bool psc_icrc_ok(const struct psc_packet *packet)
{
    uint8_t expected[PSC_ICRC_BYTES];
    if (packet->icrc_sound || !PSC_ICRC_IS_MADE)
        return true;
    psc_icrc_finish(~psc_icrc(packet->ip_header, packet->icrc_bytes), expected);
    return memcmp(expected, packet->ip_header + packet->icrc_bytes, sizeof expected) == 0;
}

/* ---- Several packets in one check. A CRC is linear, so the sum of messages has the sum of their CRCs: as
 * homomorphic as what we carry. Each message is moved by 64 bytes against the next one before it is added,
 * else a memory that always spoils the same bit would spoil two packets whose errors cancel each other. ----
 */

struct psc_crc_message psc_icrc_message(const struct psc_packet *packet)
{
    struct psc_crc_message message = {
        .mask = packet->ip_header[0] >> 4 == 4 ? mask_v4.bytes : mask_v6.bytes,
        .headers = packet->ip_header,
        .header_bytes = (uint32_t)(packet->payload - packet->ip_header),
        .payload = packet->payload,
    };

    memcpy(&message.claimed, packet->ip_header + packet->icrc_bytes, sizeof message.claimed);
    message.claimed = ~message.claimed;
    return message;
}

bool psc_icrc_together(const struct psc_packet *packet)
{
    return PSC_ICRC_IS_MADE && psc_crc_chosen->together && packet->payload_bytes > 0 &&
           packet->payload_bytes % PSC_CRC_TURN_BYTES == 0 &&
           packet->payload - packet->ip_header <= PSC_CRC_MASK_BYTES;
}

void psc_icrc_checked(struct psc_packet *const packets[PSC_CRC_TOGETHER], uint32_t left)
{
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        packets[i]->icrc_sound = left == 0;
}

void psc_icrc_check(struct psc_packet *const packets[PSC_CRC_TOGETHER])
{
    struct psc_crc_message messages[PSC_CRC_TOGETHER];

    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        messages[i] = psc_icrc_message(packets[i]);
    psc_icrc_checked(packets, psc_crc_chosen->together(PSC_ICRC_SEED, messages, packets[0]->payload_bytes));
}
