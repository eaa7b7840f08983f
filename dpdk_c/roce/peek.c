/* For which lane a frame is, at a glance: where one core reads a port for several lanes. It judges nothing:
 * whoever gets the frame parses it, so a frame that lies is dropped there. Beside the story, before "parsed".
 */
#include "frame.h"

#define NEIGHBOUR_SOLICITATION  135
#define NEIGHBOUR_ADVERTISEMENT 136

/* `data` begins with the header above IP. */
static enum psc_peek_kind peek_above_ip(uint8_t protocol, const uint8_t *data, uint32_t bytes,
                                        uint32_t *dest_qpn)
{
    const struct psc_udp *udp = (const void *)data;
    const struct psc_bth *bth = (const void *)(data + sizeof *udp);

    if (protocol == PSC_IPPROTO_ICMPV6 && bytes > 0)
        return data[0] == NEIGHBOUR_SOLICITATION || data[0] == NEIGHBOUR_ADVERTISEMENT ? PSC_PEEK_NEIGHBOUR
                                                                                       : PSC_PEEK_OTHER;
    if (protocol != PSC_IPPROTO_UDP || bytes < sizeof *udp + sizeof *bth ||
        psc_from_be16(udp->dst_port) != PSC_ROCE_UDP_PORT)
        return PSC_PEEK_OTHER;
    *dest_qpn = psc_from_be24(bth->dest_qpn);
    return PSC_PEEK_ROCE;
}

enum psc_peek_kind psc_peek(const uint8_t *frame, uint32_t bytes, uint32_t *dest_qpn)
{
    const struct psc_ethernet *ethernet = (const void *)frame;
    uint32_t at = sizeof *ethernet;
    uint16_t type;

    if (bytes < at)
        return PSC_PEEK_OTHER;
    type = psc_from_be16(ethernet->type);
    if (type == PSC_ETHERTYPE_VLAN && bytes >= at + sizeof(struct psc_vlan_tag)) {
        type = psc_from_be16(((const struct psc_vlan_tag *)(const void *)(frame + at))->type);
        at += (uint32_t)sizeof(struct psc_vlan_tag);
    }
    if (type == PSC_ETHERTYPE_ARP)
        return PSC_PEEK_NEIGHBOUR;
    if (type == PSC_ETHERTYPE_IPV4 && bytes >= at + sizeof(struct psc_ipv4)) {
        const struct psc_ipv4 *ip = (const void *)(frame + at);
        return peek_above_ip(ip->version_ihl == PSC_IPV4_VERSION_IHL ? ip->protocol : 0,
                             frame + at + sizeof *ip, bytes - at - (uint32_t)sizeof *ip, dest_qpn);
    }
    if (type == PSC_ETHERTYPE_IPV6 && bytes >= at + sizeof(struct psc_ipv6)) {
        const struct psc_ipv6 *ip = (const void *)(frame + at);
        return peek_above_ip(ip->next_header, frame + at + sizeof *ip, bytes - at - (uint32_t)sizeof *ip,
                             dest_qpn);
    }
    return PSC_PEEK_OTHER;
}
