/* What a host answers over IPv6: neighbour discovery (RFC 4861) and ping. A discovery message is believed
 * only with a hop limit of 255, which no router lets through: so it was sent on our link. */
#include <string.h>

#include "host.h"

#define ECHO_REQUEST            128
#define ECHO_REPLY              129
#define NEIGHBOUR_SOLICITATION  135
#define NEIGHBOUR_ADVERTISEMENT 136

#define OPTION_SOURCE_MAC 1
#define OPTION_TARGET_MAC 2

#define FLAG_SOLICITED 0x40000000u
#define FLAG_OVERRIDE  0x20000000u

#define HOP_LIMIT         64
#define HOP_LIMIT_ON_LINK 255

static const struct psc_ip all_nodes = {{0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01}};
static const struct psc_ip unspecified = {{0}};
static const struct psc_ip loopback = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01}};

/* A mapped address would pass for IPv4 of that address (RFC 4942 2.2). */
static bool may_be_a_host(const struct psc_ip *ip)
{
    return !psc_ip_is_v4(ip) && !psc_ip_is_multicast(ip) && !psc_ip_equal(ip, &unspecified) &&
           !psc_ip_equal(ip, &loopback);
}

/* An ICMPv6 message to us of this type with code 0, of at least `least_bytes`, and with the right checksum;
 * NULL: none. */
static const uint8_t *open_icmpv6(const struct psc_l3 *l3, const struct psc_local *local, uint8_t type,
                                  uint32_t least_bytes, struct psc_datagram *datagram)
{
    if (l3->ethertype != PSC_ETHERTYPE_IPV6 || psc_open_ipv6(l3, local, datagram) != PSC_DROP_NONE ||
        datagram->protocol != PSC_IPPROTO_ICMPV6 || datagram->payload_bytes < least_bytes)
        return NULL;
    const uint8_t *icmp = datagram->payload;
    const struct psc_ipv6 *ip = (const void *)datagram->ip_header;
    bool sound =
        icmp[0] == type && icmp[1] == 0 && psc_icmpv6_checksum(ip, icmp, datagram->payload_bytes) == 0;
    return sound ? icmp : NULL;
}

/* The MAC that an option names, if there is one. False: the options are not whole (RFC 4861 4.6: no length is
 * 0), and the message is to be ignored. */
static bool read_options(const struct psc_datagram *datagram, uint8_t type, const struct psc_mac **mac)
{
    const uint8_t *at = datagram->payload + sizeof(struct psc_nd);
    const uint8_t *end = datagram->payload + datagram->payload_bytes;
    *mac = NULL;
    while (at < end) {
        const struct psc_nd_mac *option = (const void *)at;
        if (end - at < (ptrdiff_t)sizeof *option || option->words == 0 || end - at < option->words * 8)
            return false;
        if (option->type == type && option->words == 1)
            *mac = &option->mac;
        at += option->words * 8;
    }
    return *mac == NULL || psc_mac_is_unicast(*mac);
}

/* RFC 4861 7.1.1 and 7.1.2, what both messages have in common; NULL: not to be believed. */
static const struct psc_nd *open_nd(const struct psc_l3 *l3, const struct psc_local *local, uint8_t type,
                                    struct psc_datagram *datagram, const struct psc_mac **mac)
{
    const struct psc_nd *nd = (const void *)open_icmpv6(l3, local, type, sizeof *nd, datagram);
    if (nd == NULL || psc_ipv6_of(datagram)->hop_limit != HOP_LIMIT_ON_LINK)
        return NULL;
    uint8_t option = type == NEIGHBOUR_SOLICITATION ? OPTION_SOURCE_MAC : OPTION_TARGET_MAC;
    return psc_ip_is_multicast(&nd->target) || !read_options(datagram, option, mac) ? NULL : nd;
}

/* A question about our address. From nobody's address it is a host that is about to take an address and asks
 * whether it is free (RFC 4862 5.4): it goes to our group and names no MAC. */
static const struct psc_nd *open_solicitation(const struct psc_l3 *l3, const struct psc_local *local,
                                              struct psc_datagram *datagram, const struct psc_mac **mac)
{
    const struct psc_nd *nd = open_nd(l3, local, NEIGHBOUR_SOLICITATION, datagram, mac);
    if (nd == NULL || !psc_ip_equal(&nd->target, &local->ip))
        return NULL;
    if (psc_ip_equal(&psc_ipv6_of(datagram)->src, &unspecified))
        return psc_ip_is_multicast(&psc_ipv6_of(datagram)->dst) && *mac == NULL ? nd : NULL;
    return may_be_a_host(&psc_ipv6_of(datagram)->src) &&
                   !psc_ip_equal(&psc_ipv6_of(datagram)->src, &local->ip)
               ? nd
               : NULL;
}

/* Writes IPv6 header, message and its one option; returns their length. The checksum is made here. */
static uint32_t put_nd(const struct psc_ip *src, const struct psc_ip *dst, const struct psc_nd *nd,
                       const struct psc_nd_mac *option, uint8_t *out)
{
    const uint32_t icmp_bytes = sizeof *nd + sizeof *option;
    struct psc_ipv6 *ip = (void *)out;
    struct psc_nd *message = (void *)(ip + 1);
    *ip = (struct psc_ipv6){.version_class_flow = psc_to_be32(6u << 28),
                            .payload_bytes = psc_to_be16((uint16_t)icmp_bytes),
                            .next_header = PSC_IPPROTO_ICMPV6,
                            .hop_limit = HOP_LIMIT_ON_LINK,
                            .src = *src,
                            .dst = *dst};
    *message = *nd;
    *(struct psc_nd_mac *)(void *)(message + 1) = *option;
    message->checksum = psc_to_be16(psc_icmpv6_checksum(ip, message, icmp_bytes));
    return (uint32_t)sizeof *ip + icmp_bytes;
}

static uint32_t answer_solicitation(const uint8_t *frame, const struct psc_l3 *l3,
                                    const struct psc_local *local, uint8_t *out)
{
    struct psc_datagram datagram;
    const struct psc_mac *mac;
    if (open_solicitation(l3, local, &datagram, &mac) == NULL)
        return 0;
    bool probed = psc_ip_equal(&psc_ipv6_of(&datagram)->src, &unspecified);
    const struct psc_ip *to = probed ? &all_nodes : &psc_ipv6_of(&datagram)->src;
    const struct psc_nd nd = {.type = NEIGHBOUR_ADVERTISEMENT,
                              .flags = psc_to_be32(FLAG_OVERRIDE | (probed ? 0 : FLAG_SOLICITED)),
                              .target = local->ip};
    const struct psc_nd_mac option = {.type = OPTION_TARGET_MAC, .words = 1, .mac = local->mac};

    psc_answer_ethernet(frame, l3, local, out);
    if (probed)
        ((struct psc_ethernet *)(void *)out)->dst = psc_group_mac(&all_nodes);
    return l3->l2_bytes + put_nd(&local->ip, to, &nd, &option, out + l3->l2_bytes);
}

static uint32_t answer_ping(const uint8_t *frame, const struct psc_l3 *l3, const struct psc_local *local,
                            uint8_t *out)
{
    struct psc_datagram datagram;
    if (open_icmpv6(l3, local, ECHO_REQUEST, sizeof(struct psc_icmp_echo), &datagram) == NULL ||
        !may_be_a_host(&psc_ipv6_of(&datagram)->src) || psc_ip_is_multicast(&psc_ipv6_of(&datagram)->dst))
        return 0;
    psc_answer_ethernet(frame, l3, local, out);
    struct psc_ipv6 *ip = (void *)(out + l3->l2_bytes);
    struct psc_icmp_echo *reply = (void *)(ip + 1);
    memcpy(ip, datagram.ip_header, sizeof *ip + datagram.payload_bytes);
    ip->src = psc_ipv6_of(&datagram)->dst;
    ip->dst = psc_ipv6_of(&datagram)->src;
    ip->hop_limit = HOP_LIMIT;
    reply->type = ECHO_REPLY;
    reply->checksum = psc_to_be16(0);
    reply->checksum = psc_to_be16(psc_icmpv6_checksum(ip, reply, datagram.payload_bytes));
    return l3->l2_bytes + (uint32_t)sizeof *ip + datagram.payload_bytes;
}

uint32_t psc_ipv6_answer(const uint8_t *frame, const struct psc_l3 *l3, const struct psc_local *local,
                         uint8_t *out)
{
    uint32_t bytes = answer_solicitation(frame, l3, local, out);
    return bytes > 0 ? bytes : answer_ping(frame, l3, local, out);
}

uint32_t psc_ipv6_request(const struct psc_local *local, const struct psc_ip *target, uint8_t *out)
{
    struct psc_ip group = psc_solicited_node(target);
    struct psc_mac group_mac = psc_group_mac(&group);
    const struct psc_nd nd = {.type = NEIGHBOUR_SOLICITATION, .target = *target};
    const struct psc_nd_mac option = {.type = OPTION_SOURCE_MAC, .words = 1, .mac = local->mac};
    uint32_t l2_bytes = psc_ask_ethernet(local, &group_mac, PSC_ETHERTYPE_IPV6, out);
    return l2_bytes + put_nd(&local->ip, &group, &nd, &option, out + l2_bytes);
}

bool psc_ipv6_heard(const struct psc_l3 *l3, const struct psc_local *local, struct psc_ip *ip,
                    struct psc_mac *mac)
{
    struct psc_datagram datagram;
    const struct psc_mac *named;
    const struct psc_nd *nd = open_nd(l3, local, NEIGHBOUR_ADVERTISEMENT, &datagram, &named);
    if (nd != NULL)
        *ip = nd->target;
    else if (open_solicitation(l3, local, &datagram, &named) != NULL)
        *ip = psc_ipv6_of(&datagram)->src;
    else
        return false;
    if (named == NULL || !may_be_a_host(ip) || psc_ip_equal(ip, &local->ip))
        return false;
    *mac = *named;
    return true;
}
