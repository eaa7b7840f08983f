/* fuzz/: the rack of a script, and the repair of frames. See script.h. */
#include "script.h"

#include <string.h>

#include "frame.h"

#define FIRST_QPN 0x123400u

/* What UndefinedBehaviorSanitizer finds ends the run as a finding; left alone it prints a line and goes on.
 */
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void)
{
    return "halt_on_error=1:print_stacktrace=1";
}

bool script_next(const uint8_t **at, const uint8_t *end, struct record *record)
{
    if (end - *at < (ptrdiff_t)RECORD_BYTES)
        return false;
    uint32_t bytes = (uint32_t)(*at)[1] | (uint32_t)(*at)[2] << 8;
    uint32_t rest = (uint32_t)(end - *at) - RECORD_BYTES;
    *record = (struct record){
        .kind = (*at)[0] % RECORD_KINDS, .data = *at + RECORD_BYTES, .bytes = bytes < rest ? bytes : rest};
    *at = record->data + record->bytes;
    return true;
}

static struct psc_ip address(uint8_t shape, uint8_t host)
{
    const uint8_t v4[4] = {10, 0, 0, host};
    struct psc_ip v6 = {{0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host}};

    return shape & SHAPE_IPV6 ? v6 : psc_ip_from_v4(v4);
}

struct psc_local script_local(uint8_t shape)
{
    return (struct psc_local){
        .mac = {{2, 0, 0, 0, 0, 1}}, .ip = address(shape, 1), .vlan = shape & SHAPE_VLAN ? 100 : 0};
}

struct psc_ip script_worker_ip(uint8_t shape, uint32_t rank)
{
    return address(shape, (uint8_t)(10 + rank));
}

struct psc_qp_spec script_qp(uint8_t shape, uint32_t rank)
{
    return (struct psc_qp_spec){.rank = rank,
                                .qpn = FIRST_QPN + (rank << PSC_LANE_BITS),
                                .start_psn = 0xfffff0,
                                .rkey = 0x01020304 + rank,
                                .va_base = UINT64_C(0x123456789abcd000),
                                .udp_port = (uint16_t)(0xc000 + rank),
                                .peer = script_worker_ip(shape, rank),
                                .peer_qpn = 0x11 + rank,
                                .peer_start_psn = 0xfffffe,
                                .result_rkey = 0x0a0b0c0d,
                                .result_va = UINT64_C(0x7f0000000000)};
}

struct psc_flow script_flow(uint8_t shape, uint32_t rank)
{
    struct psc_local local = script_local(shape);

    return (struct psc_flow){.src_mac = {{2, 0, 0, 0, 1, (uint8_t)rank}},
                             .dst_mac = local.mac,
                             .src = script_worker_ip(shape, rank),
                             .dst = local.ip,
                             .vlan = local.vlan,
                             .udp_port = 0xd000,
                             .dscp = 26,
                             .dest_qpn = script_qp(shape, rank).qpn};
}

bool script_find_ip(const uint8_t *frame, uint32_t bytes, uint32_t *ip_at, bool *v6)
{
    const struct psc_ethernet *ethernet = (const void *)frame;
    uint32_t at = sizeof *ethernet;

    if (bytes < sizeof *ethernet + sizeof(struct psc_vlan_tag))
        return false;
    uint16_t type = psc_from_be16(ethernet->type);
    if (type == PSC_ETHERTYPE_VLAN) {
        type = psc_from_be16(((const struct psc_vlan_tag *)(const void *)(frame + at))->type);
        at += (uint32_t)sizeof(struct psc_vlan_tag);
    }
    *v6 = type == PSC_ETHERTYPE_IPV6;
    *ip_at = at;
    uint32_t ip_bytes = *v6 ? sizeof(struct psc_ipv6) : sizeof(struct psc_ipv4);
    return (*v6 || type == PSC_ETHERTYPE_IPV4) &&
           bytes >= at + ip_bytes + sizeof(struct psc_udp) + sizeof(struct psc_bth) + PSC_ICRC_BYTES;
}

/* Checksum of what IP carries, where it is one that a host answers. */
static void repair_icmp(uint8_t *icmp, uint32_t bytes, const struct psc_ipv6 *v6)
{
    struct psc_icmp_echo *echo = (void *)icmp;

    echo->checksum = psc_to_be16(0);
    echo->checksum =
        psc_to_be16(v6 ? psc_icmpv6_checksum(v6, icmp, bytes) : psc_internet_checksum(icmp, bytes));
}

void script_repair(uint8_t *frame, uint32_t bytes)
{
    uint32_t at;
    bool v6;

    if (!script_find_ip(frame, bytes, &at, &v6))
        return;
    uint32_t ip_bytes = v6 ? sizeof(struct psc_ipv6) : sizeof(struct psc_ipv4);
    uint32_t body_bytes = bytes - at - ip_bytes;
    uint8_t *body = frame + at + ip_bytes;
    struct psc_ipv6 *ip6 = (void *)(frame + at);
    struct psc_ipv4 *ip4 = (void *)(frame + at);
    if (v6) {
        ip6->payload_bytes = psc_to_be16((uint16_t)body_bytes);
        frame[at] = (uint8_t)(0x60 | (frame[at] & 0x0f));
    } else {
        ip4->version_ihl = PSC_IPV4_VERSION_IHL;
        ip4->total_bytes = psc_to_be16((uint16_t)(ip_bytes + body_bytes));
        ip4->checksum = psc_to_be16(0);
        ip4->checksum = psc_to_be16(psc_internet_checksum(ip4, sizeof *ip4));
    }
    uint8_t protocol = v6 ? ip6->next_header : ip4->protocol;
    if (protocol == (v6 ? PSC_IPPROTO_ICMPV6 : PSC_IPPROTO_ICMP)) {
        repair_icmp(body, body_bytes, v6 ? ip6 : NULL);
        return;
    }
    ((struct psc_udp *)(void *)body)->bytes = psc_to_be16((uint16_t)body_bytes);
    psc_icrc_finish(~psc_icrc(frame + at, bytes - at - PSC_ICRC_BYTES), frame + bytes - PSC_ICRC_BYTES);
}
