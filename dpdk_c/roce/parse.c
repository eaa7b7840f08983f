/* The parser: bytes of one Ethernet frame -> struct psc_packet, or the reason why not. Step "parsed" of the
 * story. One function per layer, in the receive order; each checks a length before it reads, and trusts a
 * length field only after it has been compared with the layer below. */
#include <string.h>

#include "frame.h"

#define ICMP_ECHO_REQUEST       8
#define ICMPV6_ECHO_REQUEST     128
#define NEIGHBOUR_SOLICITATION  135
#define NEIGHBOUR_ADVERTISEMENT 136

static const struct psc_mac broadcast = {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}};

/* Our solicited-node group: where neighbours ask for our address. */
static bool is_our_group(const struct psc_mac *mac, const struct psc_local *local)
{
    struct psc_ip group = psc_solicited_node(&local->ip);
    struct psc_mac group_mac = psc_group_mac(&group);
    return !psc_ip_is_v4(&local->ip) && psc_mac_equal(mac, &group_mac);
}

enum psc_drop psc_open_ethernet(const uint8_t *frame, uint32_t bytes, const struct psc_local *local,
                                struct psc_l3 *l3)
{
    const struct psc_ethernet *ethernet = (const void *)frame;
    if (bytes < sizeof *ethernet)
        return PSC_DROP_RUNT;
    bool ours = psc_mac_equal(&ethernet->dst, &local->mac);
    bool to_everyone = psc_mac_equal(&ethernet->dst, &broadcast);
    if (!ours && !to_everyone && !is_our_group(&ethernet->dst, local))
        return PSC_DROP_FOREIGN_MAC;

    uint16_t type = psc_from_be16(ethernet->type);
    uint32_t l2_bytes = sizeof *ethernet;
    if (type == PSC_ETHERTYPE_VLAN) {
        const struct psc_vlan_tag *tag = (const void *)(frame + l2_bytes);
        if (bytes - l2_bytes < sizeof *tag)
            return PSC_DROP_RUNT;
        uint16_t vid = psc_from_be16(tag->tci) & PSC_VLAN_VID_MASK;
        if (vid != 0 && vid != local->vlan)
            return PSC_DROP_VLAN;
        type = psc_from_be16(tag->type);
        l2_bytes += (uint32_t)sizeof *tag;
    }
    if (type == PSC_ETHERTYPE_VLAN || type == PSC_ETHERTYPE_QINQ)
        return PSC_DROP_VLAN;
    if (!ours && type != (to_everyone ? PSC_ETHERTYPE_ARP : PSC_ETHERTYPE_IPV6))
        return PSC_DROP_FOREIGN_MAC;

    *l3 = (struct psc_l3){.data = frame + l2_bytes,
                          .bytes = bytes - l2_bytes,
                          .l2_bytes = l2_bytes,
                          .ethertype = type,
                          .to_group = !ours,
                          .src_mac = ethernet->src};
    return PSC_DROP_NONE;
}

enum psc_drop psc_open_ipv4(const struct psc_l3 *l3, const struct psc_local *local,
                            struct psc_datagram *datagram)
{
    const struct psc_ipv4 *ip = (const void *)l3->data;
    if (l3->bytes < sizeof *ip)
        return PSC_DROP_RUNT;
    uint32_t total_bytes = psc_from_be16(ip->total_bytes);
    if (ip->version_ihl != PSC_IPV4_VERSION_IHL || total_bytes < sizeof *ip)
        return PSC_DROP_IP_HEADER;
    if (total_bytes > l3->bytes)
        return PSC_DROP_RUNT;
    if (psc_ipv4_sum(ip) != 0xffff)
        return PSC_DROP_IP_HEADER;
    if ((psc_from_be16(ip->fragment) & PSC_IPV4_FRAGMENT_MASK) != 0)
        return PSC_DROP_IP_FRAGMENT;

    *datagram = (struct psc_datagram){.ip_header = l3->data,
                                      .payload = l3->data + sizeof *ip,
                                      .payload_bytes = total_bytes - (uint32_t)sizeof *ip,
                                      .protocol = ip->protocol,
                                      .ecn = ip->tos & PSC_ECN_CE};
    bool ours = psc_ip_is_v4(&local->ip) && memcmp(ip->dst, local->ip.b + 12, sizeof ip->dst) == 0;
    return ours ? PSC_DROP_NONE : PSC_DROP_FOREIGN_IP;
}

static bool is_ipv6_extension(uint8_t next_header)
{
    /* hop-by-hop, routing, authentication, destination options: legal IPv6, never in front of RoCE */
    return next_header == 0 || next_header == 43 || next_header == 51 || next_header == 60;
}

/* To our address at our MAC, or a question to our group, which some switches deliver to our MAC. */
static enum psc_drop check_ipv6_destination(const struct psc_l3 *l3, const struct psc_ipv6 *ip,
                                            const struct psc_local *local)
{
    if (psc_ip_equal(&ip->dst, &local->ip))
        return l3->to_group ? PSC_DROP_FOREIGN_MAC : PSC_DROP_NONE;
    if (psc_ip_is_v4(&local->ip) || ip->next_header != PSC_IPPROTO_ICMPV6)
        return PSC_DROP_FOREIGN_IP;
    struct psc_ip group = psc_solicited_node(&local->ip);
    return psc_ip_equal(&ip->dst, &group) ? PSC_DROP_NONE : PSC_DROP_FOREIGN_IP;
}

enum psc_drop psc_open_ipv6(const struct psc_l3 *l3, const struct psc_local *local,
                            struct psc_datagram *datagram)
{
    const uint8_t fragment_header = 44;
    const struct psc_ipv6 *ip = (const void *)l3->data;
    if (l3->bytes < sizeof *ip)
        return PSC_DROP_RUNT;
    if (l3->to_group && ip->next_header != PSC_IPPROTO_ICMPV6) /* the group is for questions alone */
        return PSC_DROP_FOREIGN_MAC;
    uint32_t version_class_flow = psc_from_be32(ip->version_class_flow);
    /* A mapped address on the wire would pass for IPv4 of that address (RFC 4942 2.2). */
    if (version_class_flow >> 28 != 6 || psc_ip_is_v4(&ip->src) || psc_ip_is_v4(&ip->dst))
        return PSC_DROP_IP_HEADER;
    uint32_t payload_bytes = psc_from_be16(ip->payload_bytes);
    if (payload_bytes > l3->bytes - sizeof *ip)
        return PSC_DROP_RUNT;
    if (ip->next_header == fragment_header)
        return PSC_DROP_IP_FRAGMENT;
    if (is_ipv6_extension(ip->next_header))
        return PSC_DROP_IP_HEADER;

    *datagram = (struct psc_datagram){.ip_header = l3->data,
                                      .payload = l3->data + sizeof *ip,
                                      .payload_bytes = payload_bytes,
                                      .protocol = ip->next_header,
                                      .ecn = version_class_flow >> 20 & PSC_ECN_CE};
    return check_ipv6_destination(l3, ip, local);
}

/* Step 3: UDP's length must be IP's. The shortest RoCE packet is UDP 8, BTH 12, ICRC 4. */
static enum psc_drop open_udp(const struct psc_datagram *datagram)
{
    const struct psc_udp *udp = (const void *)datagram->payload;
    if (datagram->payload_bytes < sizeof *udp)
        return PSC_DROP_UDP_LENGTH;
    if (psc_from_be16(udp->dst_port) != PSC_ROCE_UDP_PORT)
        return PSC_DROP_NOT_ROCE;
    uint32_t bytes = psc_from_be16(udp->bytes);
    if (bytes != datagram->payload_bytes || bytes < sizeof *udp + sizeof(struct psc_bth) + PSC_ICRC_BYTES)
        return PSC_DROP_UDP_LENGTH;
    return PSC_DROP_NONE;
}

/* The fields that the row says are there, in their order on the wire. */
static void read_extensions(struct psc_packet *packet, const uint8_t *at)
{
    if (packet->row->flags & PSC_OPF_RETH) {
        const struct psc_reth *reth = (const void *)at;
        packet->va = psc_from_be64(reth->va);
        packet->rkey = psc_from_be32(reth->rkey);
        packet->dma_len = psc_from_be32(reth->dma_len);
        at += sizeof *reth;
    }
    if (packet->row->flags & PSC_OPF_IMM)
        packet->imm = psc_from_be32(*(const struct psc_be32 *)(const void *)at);
    if (packet->row->flags & PSC_OPF_AETH) {
        const struct psc_aeth *aeth = (const void *)at;
        packet->syndrome = aeth->syndrome;
        packet->msn = psc_from_be24(aeth->msn);
    }
}

/* Steps 4 and 5: `transport_bytes` from the BTH to the ICRC's last byte, at least a BTH and an ICRC. The
 * row comes before any subtraction: with a header length of 0 for an unknown opcode, every length below would
 * be wrong. Headers are whole words, so a pad without payload fails the length checks. */
static enum psc_drop open_bth(const uint8_t *transport, uint32_t transport_bytes, struct psc_packet *packet)
{
    const struct psc_bth *bth = (const void *)transport;
    const struct psc_opcode_row *row = &psc_opcode_rows[bth->opcode];
    if (row->flags == 0)
        return PSC_DROP_OPCODE;
    uint32_t pad_bytes = bth->flags >> PSC_BTH_PAD_SHIFT & 3;
    uint32_t around_payload = row->header_bytes + pad_bytes + PSC_ICRC_BYTES;
    if ((bth->flags & PSC_BTH_TVER_MASK) != 0 || transport_bytes < around_payload || transport_bytes % 4 != 0)
        return PSC_DROP_BTH;
    uint32_t payload_bytes = transport_bytes - around_payload;
    if (payload_bytes != 0 && !(row->flags & PSC_OPF_PAYLOAD))
        return PSC_DROP_BTH;

    packet->row = row;
    packet->p_key = psc_from_be16(bth->p_key);
    packet->opcode = bth->opcode;
    packet->ack_req = (bth->ack_req & PSC_BTH_ACK_REQ) != 0;
    packet->dest_qpn = psc_from_be24(bth->dest_qpn);
    packet->psn = psc_from_be24(bth->psn);
    packet->payload = transport + row->header_bytes;
    packet->payload_bytes = payload_bytes;
    read_extensions(packet, transport + sizeof *bth);
    return PSC_DROP_NONE;
}

static enum psc_drop open_roce(const struct psc_datagram *datagram, struct psc_packet *packet)
{
    enum psc_drop why = open_udp(datagram);
    if (why != PSC_DROP_NONE)
        return why;
    packet->congestion_experienced = datagram->ecn == PSC_ECN_CE;
    packet->ip_header = datagram->ip_header;
    const uint8_t *end = datagram->payload + datagram->payload_bytes;
    packet->icrc_bytes = (uint32_t)(end - datagram->ip_header) - PSC_ICRC_BYTES;
    packet->icrc_sound = false;
    const uint32_t udp_bytes = sizeof(struct psc_udp);
    return open_bth(datagram->payload + udp_bytes, datagram->payload_bytes - udp_bytes, packet);
}

/* ICMP and ICMPv6: what a host must answer. The rest of the message is judged by whoever answers. */
static enum psc_frame_kind icmp_kind(const struct psc_datagram *datagram)
{
    const struct psc_icmp_echo *icmp = (const void *)datagram->payload;
    bool v4 = psc_datagram_is_v4(datagram);
    if (datagram->protocol != (v4 ? PSC_IPPROTO_ICMP : PSC_IPPROTO_ICMPV6) ||
        datagram->payload_bytes < sizeof *icmp || icmp->code != 0)
        return PSC_FRAME_DROP;
    if (icmp->type == (v4 ? ICMP_ECHO_REQUEST : ICMPV6_ECHO_REQUEST))
        return PSC_FRAME_PING;
    bool neighbour = icmp->type == NEIGHBOUR_SOLICITATION || icmp->type == NEIGHBOUR_ADVERTISEMENT;
    return neighbour && !v4 ? PSC_FRAME_NEIGHBOUR : PSC_FRAME_DROP;
}

static enum psc_drop open_ip(const struct psc_l3 *l3, const struct psc_local *local,
                             struct psc_datagram *datagram)
{
    switch (l3->ethertype) {
    case PSC_ETHERTYPE_IPV4:
        return psc_open_ipv4(l3, local, datagram);
    case PSC_ETHERTYPE_IPV6:
        return psc_open_ipv6(l3, local, datagram);
    default:
        return PSC_DROP_ETHERTYPE;
    }
}

bool psc_packet_is_from(const struct psc_packet *packet, const struct psc_ip *peer)
{
    const struct psc_ipv4 *ip = (const void *)packet->ip_header;

    if (ip->version_ihl == PSC_IPV4_VERSION_IHL)
        return memcmp(ip->src, peer->b + sizeof peer->b - sizeof ip->src, sizeof ip->src) == 0 &&
               psc_ip_is_v4(peer);
    return psc_ip_equal(&((const struct psc_ipv6 *)(const void *)ip)->src, peer);
}

/* Flat: what a layer finds out about a frame of 4 KiB stays in registers (measured: docs/performance.md). */
__attribute__((flatten)) enum psc_frame_kind psc_parse(const uint8_t *frame, uint32_t bytes,
                                                       const struct psc_local *local,
                                                       struct psc_packet *packet, enum psc_drop *why)
{
    struct psc_l3 l3;
    struct psc_datagram datagram;
    *why = psc_open_ethernet(frame, bytes, local, &l3);
    if (*why != PSC_DROP_NONE)
        return PSC_FRAME_DROP;
    if (l3.ethertype == PSC_ETHERTYPE_ARP) {
        *why = l3.bytes < sizeof(struct psc_arp) ? PSC_DROP_RUNT : PSC_DROP_NONE;
        return *why == PSC_DROP_NONE ? PSC_FRAME_NEIGHBOUR : PSC_FRAME_DROP;
    }
    *why = open_ip(&l3, local, &datagram);
    if (*why != PSC_DROP_NONE)
        return PSC_FRAME_DROP;
    if (datagram.protocol != PSC_IPPROTO_UDP) {
        enum psc_frame_kind kind = icmp_kind(&datagram);
        *why = kind == PSC_FRAME_DROP ? PSC_DROP_NOT_ROCE : PSC_DROP_NONE;
        return kind;
    }
    *why = open_roce(&datagram, packet);
    return *why == PSC_DROP_NONE ? PSC_FRAME_ROCE : PSC_FRAME_DROP;
}
