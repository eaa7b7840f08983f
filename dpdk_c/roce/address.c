/* Addresses and the checksum of IP and ICMP: what parser, builder and host answers share. */
#include <string.h>

#include "frame.h"

static const uint8_t v4_mapped_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}; /* RFC 4291 2.5.5.2 */

bool psc_ip_is_v4(const struct psc_ip *ip)
{
    return memcmp(ip->b, v4_mapped_prefix, sizeof v4_mapped_prefix) == 0;
}

bool psc_ip_equal(const struct psc_ip *a, const struct psc_ip *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

struct psc_ip psc_ip_from_v4(const uint8_t address[4])
{
    struct psc_ip ip;
    memcpy(ip.b, v4_mapped_prefix, sizeof v4_mapped_prefix);
    memcpy(ip.b + sizeof v4_mapped_prefix, address, 4);
    return ip;
}

bool psc_mac_equal(const struct psc_mac *a, const struct psc_mac *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

uint16_t psc_internet_checksum(const void *data, uint32_t bytes)
{
    const uint8_t *at = data;
    uint64_t sum = 0;
    for (uint32_t i = 0; i + 1 < bytes; i += 2)
        sum += (uint32_t)at[i] << 8 | at[i + 1];
    if (bytes % 2 != 0)
        sum += (uint32_t)at[bytes - 1] << 8;
    while (sum >> 16 != 0)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}
