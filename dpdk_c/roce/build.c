/* The builder: one header per packet and worker, from what is constant of a flow and what changes. Step "one
 * header per worker" of the story. Payload, pad and ICRC are the caller's. */
#include <assert.h>
#include <string.h>

#include "frame.h"

#define TTL 64

static uint8_t *put_ethernet(const struct psc_flow *flow, uint8_t *at)
{
    uint16_t ip_type = psc_ip_is_v4(&flow->dst) ? PSC_ETHERTYPE_IPV4 : PSC_ETHERTYPE_IPV6;
    struct psc_ethernet *ethernet = (void *)at;
    *ethernet = (struct psc_ethernet){flow->dst_mac, flow->src_mac, psc_to_be16(ip_type)};
    if (flow->vlan == 0)
        return at + sizeof *ethernet;
    struct psc_vlan_tag *tag = (void *)(ethernet + 1);
    ethernet->type = psc_to_be16(PSC_ETHERTYPE_VLAN);
    *tag = (struct psc_vlan_tag){psc_to_be16(flow->vlan & PSC_VLAN_VID_MASK), psc_to_be16(ip_type)};
    return (uint8_t *)(tag + 1);
}

/* `udp_bytes`: UDP header to ICRC. The IPv4 identification is 0: a datagram that is never fragmented needs
 * none (RFC 6864 4.1), and the same PSN then always means the same bytes. */
static uint8_t *put_ip(const struct psc_flow *flow, uint32_t udp_bytes, uint8_t *at)
{
    uint8_t traffic_class = (uint8_t)(flow->dscp << 2 | PSC_ECN_ECT0);
    if (!psc_ip_is_v4(&flow->dst)) {
        struct psc_ipv6 *ip = (void *)at;
        *ip = (struct psc_ipv6){.version_class_flow = psc_to_be32(6u << 28 | (uint32_t)traffic_class << 20),
                                .payload_bytes = psc_to_be16((uint16_t)udp_bytes),
                                .next_header = PSC_IPPROTO_UDP,
                                .hop_limit = TTL,
                                .src = flow->src,
                                .dst = flow->dst};
        return (uint8_t *)(ip + 1);
    }
    struct psc_ipv4 *ip = (void *)at;
    *ip = (struct psc_ipv4){.version_ihl = PSC_IPV4_VERSION_IHL,
                            .tos = traffic_class,
                            .total_bytes = psc_to_be16((uint16_t)(sizeof *ip + udp_bytes)),
                            .fragment = psc_to_be16(PSC_IPV4_DONT_FRAGMENT),
                            .ttl = TTL,
                            .protocol = PSC_IPPROTO_UDP};
    memcpy(ip->src, flow->src.b + 12, sizeof ip->src);
    memcpy(ip->dst, flow->dst.b + 12, sizeof ip->dst);
    uint16_t checksum = (uint16_t)~psc_ipv4_sum(ip);
    memcpy(&ip->checksum, &checksum, sizeof checksum);
    return (uint8_t *)(ip + 1);
}

/* MigReq is always 1: some NIC firmware loses packets of a peer that sends 0. A CNP is BECN and no PSN. */
static uint8_t *put_bth(const struct psc_flow *flow, const struct psc_header *header, uint32_t pad_bytes,
                        uint8_t *at)
{
    bool cnp = (psc_opcode_rows[header->opcode].flags & PSC_OPF_CNP) != 0;
    struct psc_bth *bth = (void *)at;
    *bth = (struct psc_bth){.opcode = header->opcode,
                            .flags = (uint8_t)(PSC_BTH_MIG_REQ | pad_bytes << PSC_BTH_PAD_SHIFT),
                            .p_key = psc_to_be16(PSC_P_KEY_DEFAULT),
                            .congestion = cnp ? PSC_BTH_BECN : 0,
                            .dest_qpn = psc_to_be24(flow->dest_qpn),
                            .ack_req = header->ack_req && !cnp ? PSC_BTH_ACK_REQ : 0,
                            .psn = psc_to_be24(cnp ? 0 : header->psn)};
    return (uint8_t *)(bth + 1);
}

static void put_extensions(const struct psc_header *header, uint8_t *at)
{
    const struct psc_opcode_row *row = &psc_opcode_rows[header->opcode];
    if (row->flags & PSC_OPF_CNP)
        memset(at, 0, row->header_bytes - sizeof(struct psc_bth)); /* reserved */
    if (row->flags & PSC_OPF_RETH) {
        struct psc_reth *reth = (void *)at;
        *reth = (struct psc_reth){psc_to_be64(header->va), psc_to_be32(header->rkey),
                                  psc_to_be32(header->dma_len)};
        at += sizeof *reth;
    }
    if (row->flags & PSC_OPF_IMM)
        *(struct psc_be32 *)(void *)at = psc_to_be32(header->imm);
    if (row->flags & PSC_OPF_AETH)
        *(struct psc_aeth *)(void *)at = (struct psc_aeth){header->syndrome, psc_to_be24(header->msn)};
}

uint32_t psc_build(const struct psc_flow *flow, const struct psc_header *header, uint32_t payload_bytes,
                   uint8_t *out, uint32_t *crc)
{
    const struct psc_opcode_row *row = &psc_opcode_rows[header->opcode];
    assert(row->flags != 0 && (payload_bytes == 0 || row->flags & PSC_OPF_PAYLOAD));
    uint32_t pad_bytes = (0 - payload_bytes) & 3;
    uint32_t udp_bytes =
        (uint32_t)sizeof(struct psc_udp) + row->header_bytes + payload_bytes + pad_bytes + PSC_ICRC_BYTES;

    uint8_t *ip_header = put_ethernet(flow, out);
    struct psc_udp *udp = (void *)put_ip(flow, udp_bytes, ip_header);
    *udp = (struct psc_udp){psc_to_be16(flow->udp_port), psc_to_be16(PSC_ROCE_UDP_PORT),
                            psc_to_be16((uint16_t)udp_bytes), psc_to_be16(0)};
    uint8_t *bth = (uint8_t *)(udp + 1);
    put_extensions(header, put_bth(flow, header, pad_bytes, bth));

    const uint8_t *end = bth + row->header_bytes;
    *crc =
        ~psc_icrc(ip_header, (uint32_t)(end - ip_header)); /* its final inversion undone: payload follows */
    return (uint32_t)(end - out);
}

void psc_template_init(struct psc_template *made, const struct psc_flow *flow, uint32_t payload_bytes,
                       const struct psc_crc32_shift *past_payload)
{
    const struct psc_header header = {.opcode = PSC_RC_WRITE_MIDDLE};
    uint32_t crc;

    made->header_bytes = psc_build(flow, &header, payload_bytes, made->header, &crc);
    made->crc = psc_crc32_combine(past_payload, crc, 0);
}

/* A CRC is linear: the word of AckReq and PSN, zero in the template, adds what it alone comes to behind the
 * bytes that follow it. */
uint32_t psc_build_middle(const struct psc_template *made, uint32_t psn, bool ack_req,
                          const struct psc_crc32_shift *past_psn, uint32_t payload_crc, uint8_t *out,
                          uint32_t *crc)
{
    struct psc_be32 wire =
        psc_to_be32((ack_req ? (uint32_t)PSC_BTH_ACK_REQ << 24 : 0) | (psn & PSC_PSN_MASK));
    uint32_t word;

    _Static_assert(offsetof(struct psc_bth, psn) + sizeof(struct psc_be24) == sizeof(struct psc_bth) &&
                       offsetof(struct psc_bth, ack_req) + PSC_PSN_WORD_BYTES == sizeof(struct psc_bth),
                   "the word is the BTH's last");
    memcpy(out, made->header, PSC_HEADER_MAX);
    memcpy(out + made->header_bytes - sizeof wire, &wire, sizeof wire);
    memcpy(&word, &wire, sizeof word);
    *crc = made->crc ^ psc_crc32_combine(past_psn, word, payload_crc);
    return made->header_bytes;
}
