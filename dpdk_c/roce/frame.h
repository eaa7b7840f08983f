/* Layout of every header on the wire, and the first two layers of a received frame, private to roce/. The
 * structs hold only bytes: they have no padding and may lie at any address inside a frame. */
#ifndef PSC_ROCE_FRAME_H
#define PSC_ROCE_FRAME_H

#include <string.h>

#include "bytes.h"

#define PSC_ETHERTYPE_IPV4 0x0800
#define PSC_ETHERTYPE_ARP  0x0806
#define PSC_ETHERTYPE_VLAN 0x8100
#define PSC_ETHERTYPE_QINQ 0x88a8
#define PSC_ETHERTYPE_IPV6 0x86dd
#define PSC_VLAN_VID_MASK  0x0fff

#define PSC_ETHERNET_MIN_BYTES 60 /* without FCS; shorter frames are padded by whoever sends them */

#define PSC_IPPROTO_ICMP   1
#define PSC_IPPROTO_UDP    17
#define PSC_IPPROTO_ICMPV6 58

#define PSC_IPV4_VERSION_IHL   0x45 /* version 4, 5 words: no options */
#define PSC_IPV4_DONT_FRAGMENT 0x4000
#define PSC_IPV4_FRAGMENT_MASK 0x3fff /* more-fragments bit and offset */
#define PSC_ECN_ECT0           2      /* low two bits of TOS and traffic class (RFC 3168) */
#define PSC_ECN_CE             3

#define PSC_BTH_MIG_REQ   0x40 /* byte 1 */
#define PSC_BTH_TVER_MASK 0x0f
#define PSC_BTH_PAD_SHIFT 4
#define PSC_BTH_BECN      0x40 /* byte 4 */
#define PSC_BTH_ACK_REQ   0x80 /* byte 8 */
#define PSC_P_KEY_DEFAULT 0xffff
#define PSC_ICRC_BYTES    4

struct psc_ethernet {
    struct psc_mac dst, src;
    struct psc_be16 type;
};
struct psc_vlan_tag { /* follows a type of PSC_ETHERTYPE_VLAN */
    struct psc_be16 tci;
    struct psc_be16 type;
};
struct psc_ipv4 {
    uint8_t version_ihl, tos;
    struct psc_be16 total_bytes, id, fragment;
    uint8_t ttl, protocol;
    struct psc_be16 checksum;
    uint8_t src[4], dst[4];
};
struct psc_ipv6 {
    struct psc_be32 version_class_flow;
    struct psc_be16 payload_bytes;
    uint8_t next_header, hop_limit;
    struct psc_ip src, dst;
};
struct psc_udp {
    struct psc_be16 src_port, dst_port, bytes, checksum;
};
struct psc_bth {
    uint8_t opcode, flags;
    struct psc_be16 p_key;
    uint8_t congestion;
    struct psc_be24 dest_qpn;
    uint8_t ack_req;
    struct psc_be24 psn;
};
struct psc_reth {
    struct psc_be64 va;
    struct psc_be32 rkey, dma_len;
};
struct psc_aeth {
    uint8_t syndrome;
    struct psc_be24 msn;
};
struct psc_arp {
    struct psc_be16 hardware, protocol;
    uint8_t hardware_bytes, protocol_bytes;
    struct psc_be16 operation;
    struct psc_mac sender_mac;
    uint8_t sender_ip[4];
    struct psc_mac target_mac;
    uint8_t target_ip[4];
};
struct psc_icmp_echo { /* the same in ICMP and ICMPv6 */
    uint8_t type, code;
    struct psc_be16 checksum, id, sequence;
};
struct psc_nd { /* neighbour solicitation or advertisement; options follow (RFC 4861 4.3, 4.4) */
    uint8_t type, code;
    struct psc_be16 checksum;
    struct psc_be32 flags;
    struct psc_ip target;
};
struct psc_nd_mac { /* option: source or target link-layer address (RFC 4861 4.6.1) */
    uint8_t type, words;
    struct psc_mac mac;
};

_Static_assert(sizeof(struct psc_ethernet) == 14, "Ethernet");
_Static_assert(sizeof(struct psc_vlan_tag) == 4, "802.1Q");
_Static_assert(sizeof(struct psc_ipv4) == 20, "IPv4");
_Static_assert(sizeof(struct psc_ipv6) == 40, "IPv6");
_Static_assert(sizeof(struct psc_udp) == 8, "UDP");
_Static_assert(sizeof(struct psc_bth) == 12, "BTH");
_Static_assert(sizeof(struct psc_reth) == 16, "RETH");
_Static_assert(sizeof(struct psc_aeth) == 4, "AETH");
_Static_assert(sizeof(struct psc_arp) == 28, "ARP");
_Static_assert(sizeof(struct psc_icmp_echo) == 8, "ICMP echo");
_Static_assert(sizeof(struct psc_nd) == 24, "neighbour discovery");
_Static_assert(sizeof(struct psc_nd_mac) == 8, "link-layer address option");

/* What lies above Ethernet and at most one VLAN tag. */
struct psc_l3 {
    const uint8_t *data;
    uint32_t bytes;    /* up to the frame's end: Ethernet padding included */
    uint32_t l2_bytes; /* Ethernet header and tag */
    uint16_t ethertype;
    bool to_group; /* not to our MAC, but to everyone or to our solicited-node group */
    struct psc_mac src_mac;
};
/* Step 1 of the receive order. Frames to everyone are taken for ARP only, frames to our solicited-node group
 * for neighbour discovery only. */
enum psc_drop psc_open_ethernet(const uint8_t *frame, uint32_t bytes, const struct psc_local *local,
                                struct psc_l3 *l3);

/* One whole IP datagram to us; lengths are IP's, so Ethernet padding is gone. */
struct psc_datagram {
    const uint8_t *ip_header;
    const uint8_t *payload;
    uint32_t payload_bytes;
    uint8_t protocol;
    uint8_t ecn;
};
static inline bool psc_datagram_is_v4(const struct psc_datagram *datagram)
{
    return datagram->ip_header[0] >> 4 == 4;
}
/* Of one over IPv6. */
static inline const struct psc_ipv6 *psc_ipv6_of(const struct psc_datagram *datagram)
{
    return (const void *)datagram->ip_header;
}
/* Step 2 of the receive order. */
enum psc_drop psc_open_ipv4(const struct psc_l3 *l3, const struct psc_local *local,
                            struct psc_datagram *datagram);
enum psc_drop psc_open_ipv6(const struct psc_l3 *l3, const struct psc_local *local,
                            struct psc_datagram *datagram);

/* RFC 1071's sum of a header, in the machine's order of bytes: FFFF over a sound one, the complement of what
 * belongs in the field over one whose field is 0. Words of any width come to the same modulo FFFF, and it is
 * never 0, for a header is never all zeros. */
static inline uint16_t psc_ipv4_sum(const struct psc_ipv4 *ip)
{
    uint32_t words[sizeof *ip / 4];

    memcpy(words, ip, sizeof words);
    uint16_t rest = (uint16_t)(((uint64_t)words[0] + words[1] + words[2] + words[3] + words[4]) % 0xffff);
    return rest == 0 ? 0xffff : rest;
}

/* RFC 1071 checksum as a number: over a header whose checksum field is 0 it is what belongs there, over a
 * sound header as received it is 0. */
uint16_t psc_internet_checksum(const void *data, uint32_t bytes);
/* The same over the pseudo-header (RFC 8200 8.1) and `bytes` of ICMPv6. */
uint16_t psc_icmpv6_checksum(const struct psc_ipv6 *ip, const void *icmp, uint32_t bytes);

struct psc_ip psc_ip_from_v4(const uint8_t address[4]);
bool psc_ip_is_multicast(const struct psc_ip *ip);
bool psc_mac_equal(const struct psc_mac *a, const struct psc_mac *b);
/* The group that whoever has `ip` listens to (RFC 4291 2.7.1), and its MAC (RFC 2464 7). */
struct psc_ip psc_solicited_node(const struct psc_ip *ip);
struct psc_mac psc_group_mac(const struct psc_ip *group);

#endif
