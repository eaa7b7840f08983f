/* What a host answers besides RoCE: who has its address, and ping, so that peers can find the lane's address
 * and operators can reach it. ARP and ICMP are here, ICMPv6 is in host_ipv6.c. Pure functions from frame to
 * frame; who remembers a neighbour is the caller's business. */
#include <string.h>

#include "host.h"

#define ARP_HARDWARE_ETHERNET 1
#define ARP_REQUEST           1
#define ARP_REPLY             2
#define ICMP_ECHO_REPLY       0
#define ICMP_ECHO_REQUEST     8
#define TTL                   64

static const struct psc_mac broadcast = {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}};

static uint32_t pad_to_minimum(uint8_t *out, uint32_t bytes)
{
    if (bytes >= PSC_ETHERNET_MIN_BYTES)
        return bytes;
    memset(out + bytes, 0, PSC_ETHERNET_MIN_BYTES - bytes);
    return PSC_ETHERNET_MIN_BYTES;
}

/* The ARP packet in a frame to us or to everyone that asks for, or answers to, our address; NULL: none. */
static const struct psc_arp *open_arp(const struct psc_l3 *l3, const struct psc_local *local)
{
    const struct psc_arp *arp = (const void *)l3->data;
    if (l3->ethertype != PSC_ETHERTYPE_ARP || l3->bytes < sizeof *arp)
        return NULL;
    uint16_t operation = psc_from_be16(arp->operation);
    bool ethernet_ipv4 = psc_from_be16(arp->hardware) == ARP_HARDWARE_ETHERNET &&
                         psc_from_be16(arp->protocol) == PSC_ETHERTYPE_IPV4 &&
                         arp->hardware_bytes == sizeof(struct psc_mac) && arp->protocol_bytes == 4;
    if (!ethernet_ipv4 || (operation != ARP_REQUEST && operation != ARP_REPLY) ||
        !psc_mac_is_unicast(&arp->sender_mac))
        return NULL;
    struct psc_ip target = psc_ip_from_v4(arp->target_ip);
    return psc_ip_equal(&target, &local->ip) ? arp : NULL;
}

void psc_answer_ethernet(const uint8_t *frame, const struct psc_l3 *l3, const struct psc_local *local,
                         uint8_t *out)
{
    memcpy(out, frame, l3->l2_bytes);
    struct psc_ethernet *ethernet = (void *)out;
    ethernet->dst = l3->src_mac;
    ethernet->src = local->mac;
}

static void put_arp(uint16_t operation, const struct psc_local *local, const struct psc_mac *target_mac,
                    const uint8_t target_ip[4], uint8_t *out)
{
    struct psc_arp *arp = (void *)out;
    *arp = (struct psc_arp){.hardware = psc_to_be16(ARP_HARDWARE_ETHERNET),
                            .protocol = psc_to_be16(PSC_ETHERTYPE_IPV4),
                            .hardware_bytes = sizeof(struct psc_mac),
                            .protocol_bytes = 4,
                            .operation = psc_to_be16(operation),
                            .sender_mac = local->mac,
                            .target_mac = *target_mac};
    memcpy(arp->sender_ip, local->ip.b + 12, 4);
    memcpy(arp->target_ip, target_ip, 4);
}

static uint32_t answer_arp(const uint8_t *frame, const struct psc_l3 *l3, const struct psc_local *local,
                           uint8_t *out)
{
    const struct psc_arp *request = open_arp(l3, local);
    if (request == NULL || psc_from_be16(request->operation) != ARP_REQUEST)
        return 0;
    psc_answer_ethernet(frame, l3, local, out);
    put_arp(ARP_REPLY, local, &request->sender_mac, request->sender_ip, out + l3->l2_bytes);
    return pad_to_minimum(out, l3->l2_bytes + (uint32_t)sizeof(struct psc_arp));
}

static bool may_be_a_host(const uint8_t address[4])
{
    return address[0] != 0 && address[0] != 127 &&
           address[0] < 224; /* this net, loopback, multicast and above */
}

static uint32_t answer_ping(const uint8_t *frame, const struct psc_l3 *l3, const struct psc_local *local,
                            uint8_t *out)
{
    struct psc_datagram datagram;
    const struct psc_ipv4 *request_ip = (const void *)l3->data;
    const struct psc_icmp_echo *request = (const void *)(request_ip + 1);
    if (psc_open_ipv4(l3, local, &datagram) != PSC_DROP_NONE || datagram.protocol != PSC_IPPROTO_ICMP ||
        datagram.payload_bytes < sizeof *request || !may_be_a_host(request_ip->src))
        return 0;
    if (request->type != ICMP_ECHO_REQUEST || request->code != 0 ||
        psc_internet_checksum(request, datagram.payload_bytes) != 0)
        return 0;

    psc_answer_ethernet(frame, l3, local, out);
    struct psc_ipv4 *ip = (void *)(out + l3->l2_bytes);
    uint32_t total_bytes = (uint32_t)sizeof *ip + datagram.payload_bytes;
    memcpy(ip, request_ip, total_bytes);
    memcpy(ip->src, request_ip->dst, sizeof ip->src);
    memcpy(ip->dst, request_ip->src, sizeof ip->dst);
    ip->ttl = TTL;
    ip->checksum = psc_to_be16(0);
    ip->checksum = psc_to_be16(psc_internet_checksum(ip, sizeof *ip));
    struct psc_icmp_echo *reply = (void *)(ip + 1);
    reply->type = ICMP_ECHO_REPLY;
    reply->checksum = psc_to_be16(0);
    reply->checksum = psc_to_be16(psc_internet_checksum(reply, datagram.payload_bytes));
    return pad_to_minimum(out, l3->l2_bytes + total_bytes);
}

uint32_t psc_host_answer(const uint8_t *frame, uint32_t bytes, const struct psc_local *local, uint8_t *out)
{
    struct psc_l3 l3;
    if (psc_open_ethernet(frame, bytes, local, &l3) != PSC_DROP_NONE || !psc_mac_is_unicast(&l3.src_mac))
        return 0;
    if (l3.ethertype == PSC_ETHERTYPE_ARP)
        return answer_arp(frame, &l3, local, out);
    if (l3.ethertype == PSC_ETHERTYPE_IPV6)
        return psc_ipv6_answer(frame, &l3, local, out);
    return l3.ethertype == PSC_ETHERTYPE_IPV4 ? answer_ping(frame, &l3, local, out) : 0;
}

uint32_t psc_ask_ethernet(const struct psc_local *local, const struct psc_mac *dst, uint16_t ethertype,
                          uint8_t *out)
{
    struct psc_ethernet *ethernet = (void *)out;
    *ethernet = (struct psc_ethernet){*dst, local->mac, psc_to_be16(ethertype)};
    if (local->vlan == 0)
        return sizeof *ethernet;
    struct psc_vlan_tag *tag = (void *)(ethernet + 1);
    *tag = (struct psc_vlan_tag){psc_to_be16(local->vlan & PSC_VLAN_VID_MASK), ethernet->type};
    ethernet->type = psc_to_be16(PSC_ETHERTYPE_VLAN);
    return sizeof *ethernet + sizeof *tag;
}

uint32_t psc_neighbour_request(const struct psc_local *local, const struct psc_ip *target, uint8_t *out)
{
    static const struct psc_mac unknown = {{0}};
    if (psc_ip_is_v4(target) != psc_ip_is_v4(&local->ip))
        return 0;
    if (!psc_ip_is_v4(target))
        return psc_ipv6_request(local, target, out);
    uint32_t bytes = psc_ask_ethernet(local, &broadcast, PSC_ETHERTYPE_ARP, out);
    put_arp(ARP_REQUEST, local, &unknown, target->b + 12, out + bytes);
    return pad_to_minimum(out, bytes + (uint32_t)sizeof(struct psc_arp));
}

bool psc_neighbour_heard(const uint8_t *frame, uint32_t bytes, const struct psc_local *local,
                         struct psc_ip *ip, struct psc_mac *mac)
{
    struct psc_l3 l3;
    if (psc_open_ethernet(frame, bytes, local, &l3) != PSC_DROP_NONE)
        return false;
    if (l3.ethertype == PSC_ETHERTYPE_IPV6)
        return psc_ipv6_heard(&l3, local, ip, mac);
    const struct psc_arp *arp = open_arp(&l3, local);
    /* An address probe (RFC 5227) has no sender address yet; our own address is not learned from anybody. */
    if (arp == NULL || !may_be_a_host(arp->sender_ip) || memcmp(arp->sender_ip, arp->target_ip, 4) == 0)
        return false;
    *ip = psc_ip_from_v4(arp->sender_ip);
    *mac = arp->sender_mac;
    return true;
}
