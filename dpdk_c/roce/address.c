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

bool psc_ip_is_multicast(const struct psc_ip *ip)
{
    return ip->b[0] == 0xff;
}

struct psc_ip psc_solicited_node(const struct psc_ip *ip)
{
    struct psc_ip group = {{0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0xff}};
    memcpy(group.b + 13, ip->b + 13, 3);
    return group;
}

struct psc_mac psc_group_mac(const struct psc_ip *group)
{
    struct psc_mac mac = {{0x33, 0x33}};
    memcpy(mac.b + 2, group->b + 12, 4);
    return mac;
}

/* End-around carry until none is left. */
static uint16_t to_16_bits(uint64_t sum)
{
    while (sum >> 16 != 0)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static uint64_t sum_words(const void *data, uint32_t bytes)
{
    const uint8_t *at = data;
    uint64_t swapped = 0, sum;
    uint32_t i = 0;
    /* Ones' complement addition does not mind the order of bytes as long as it is the same for all (RFC 1071
     * 2B): four bytes at a time as they lie, turned round at the end. */
    for (; i + 4 <= bytes; i += 4) {
        uint32_t word;
        memcpy(&word, at + i, sizeof word);
        swapped += word;
    }
    sum = __builtin_bswap16(to_16_bits(swapped));
    for (; i + 1 < bytes; i += 2)
        sum += (uint32_t)at[i] << 8 | at[i + 1];
    if (bytes % 2 != 0)
        sum += (uint32_t)at[bytes - 1] << 8;
    return sum;
}

static uint16_t fold(uint64_t sum)
{
    return (uint16_t)~to_16_bits(sum);
}

uint16_t psc_internet_checksum(const void *data, uint32_t bytes)
{
    return fold(sum_words(data, bytes));
}

uint16_t psc_icmpv6_checksum(const struct psc_ipv6 *ip, const void *icmp, uint32_t bytes)
{
    uint64_t addresses = sum_words(&ip->src, sizeof ip->src + sizeof ip->dst);
    return fold(addresses + bytes + PSC_IPPROTO_ICMPV6 + sum_words(icmp, bytes));
}
