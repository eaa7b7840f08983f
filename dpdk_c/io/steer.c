/* Flow rules: a NIC sorts the packets of a port to its lanes' queues, by the low bits of the QPN or by the
 * address that is the lane's own. Written after DPDK's documentation; no rule of these has been verified on a
 * NIC. Called by EAL's main thread only. */
#include "psc_io_internal.h"

#include <rte_flow.h>
#include <rte_version.h>
#include <stdio.h>
#include <string.h>

#if RTE_VERSION >= RTE_VERSION_NUM(23, 7, 0, 0)
#define HAVE_IB_BTH 1
#else
#define HAVE_IB_BTH 0
#endif

#define PATTERN_ITEMS 5
/* mlx5 matches the BTH after a jump out of group 0 only; other drivers know no groups. */
#define LATER_GROUP 1

static bool is_v4(const struct psc_io_port *port)
{
    return port->overhead_bytes == PSC_IO_ROCE_OVERHEAD_V4;
}

bool psc_io_may_steer(const struct psc_io_port *port, enum psc_io_steering how, char *why)
{
    struct rte_eth_dev_info info;
    const char *name = how == PSC_IO_STEER_QPN ? "ib_bth" : "address";

    why[0] = '\0';
    if (how == PSC_IO_STEER_QPN && !HAVE_IB_BTH)
        snprintf(why, PSC_IO_WHY_BYTES, "%s: wants DPDK 23.07, this is %s", name,
                 rte_version() + strlen("DPDK "));
    else if (how == PSC_IO_STEER_ADDRESS && !port->own_addresses)
        snprintf(why, PSC_IO_WHY_BYTES, "%s: lanes.addresses gives none", name);
    else if (rte_eth_dev_info_get(port->port_id, &info) != 0 || info.max_rx_queues < port->lane_count ||
             info.max_tx_queues < port->lane_count)
        snprintf(why, PSC_IO_WHY_BYTES, "%s: the port has fewer queues than %u lanes", name,
                 port->lane_count);
    return why[0] == '\0';
}

/* One rule; false: refused, and *error says why. */
static bool add_rule(struct psc_io_port *port, uint32_t group, const struct rte_flow_item *pattern,
                     const struct rte_flow_action *actions, struct rte_flow_error *error)
{
    const struct rte_flow_attr ingress = {.group = group, .ingress = 1};
    struct rte_flow *rule;

    memset(error, 0, sizeof *error);
    if (rte_flow_validate(port->port_id, &ingress, pattern, actions, error) != 0)
        return false;
    rule = rte_flow_create(port->port_id, &ingress, pattern, actions, error);
    if (rule == NULL)
        return false;
    port->rules[port->rule_count++] = rule;
    return true;
}

void psc_io_unsteer(struct psc_io_port *port)
{
    struct rte_flow_error error;

    while (port->rule_count > 0)
        (void)rte_flow_destroy(port->port_id, port->rules[--port->rule_count], &error);
}

static bool to_queue(struct psc_io_port *port, uint32_t group, const struct rte_flow_item *pattern,
                     uint16_t queue, struct rte_flow_error *error)
{
    const struct rte_flow_action_queue to = {.index = queue};
    const struct rte_flow_action actions[] = {{.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &to},
                                              {.type = RTE_FLOW_ACTION_TYPE_END}};

    return add_rule(port, group, pattern, actions, error);
}

/* ---- By the QPN. ---- */

#if HAVE_IB_BTH
static bool rule_for_qpn(struct psc_io_port *port, uint32_t group, const struct psc_io_lane *lane,
                         struct rte_flow_error *error)
{
    const uint8_t mask_bits = PSC_IO_MAX_LANES - 1;
    const struct rte_flow_item_udp udp = {.hdr.dst_port = RTE_BE16(PSC_ROCE_UDP_PORT)};
    const struct rte_flow_item_udp udp_mask = {.hdr.dst_port = RTE_BE16(0xffff)};
    struct rte_flow_item_ib_bth bth = {0}, bth_mask = {0};
    enum rte_flow_item_type ip = is_v4(port) ? RTE_FLOW_ITEM_TYPE_IPV4 : RTE_FLOW_ITEM_TYPE_IPV6;

    bth.hdr.dst_qp[2] = (uint8_t)lane->number;
    bth_mask.hdr.dst_qp[2] = mask_bits;
    const struct rte_flow_item pattern[PATTERN_ITEMS] = {
        {.type = RTE_FLOW_ITEM_TYPE_ETH},
        {.type = ip},
        {.type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &udp, .mask = &udp_mask},
        {.type = RTE_FLOW_ITEM_TYPE_IB_BTH, .spec = &bth, .mask = &bth_mask},
        {.type = RTE_FLOW_ITEM_TYPE_END}};
    return to_queue(port, group, pattern, lane->rx_queue, error);
}
#else
static bool rule_for_qpn(struct psc_io_port *port, uint32_t group, const struct psc_io_lane *lane,
                         struct rte_flow_error *error)
{
    (void)port, (void)group, (void)lane;
    error->message = "this DPDK has no item ib_bth";
    return false;
}
#endif

/* ---- By the address. ---- */

static bool rule_for_address(struct psc_io_port *port, uint32_t group, const struct psc_io_lane *lane,
                             struct rte_flow_error *error)
{
    struct rte_flow_item_ipv4 v4 = {0}, v4_mask = {.hdr.dst_addr = RTE_BE32(UINT32_MAX)};
    struct rte_flow_item_ipv6 v6 = {0}, v6_mask = {0};
    struct rte_flow_item pattern[PATTERN_ITEMS] = {
        {.type = RTE_FLOW_ITEM_TYPE_ETH},
        {.type = RTE_FLOW_ITEM_TYPE_IPV4, .spec = &v4, .mask = &v4_mask},
        {.type = RTE_FLOW_ITEM_TYPE_END}};

    memcpy(&v4.hdr.dst_addr, lane->ip.b + 12, sizeof v4.hdr.dst_addr);
    memcpy(&v6.hdr.dst_addr, lane->ip.b, sizeof lane->ip.b);
    memset(&v6_mask.hdr.dst_addr, 0xff, sizeof lane->ip.b);
    if (!is_v4(port))
        pattern[1] = (struct rte_flow_item){.type = RTE_FLOW_ITEM_TYPE_IPV6, .spec = &v6, .mask = &v6_mask};
    return to_queue(port, group, pattern, lane->rx_queue, error);
}

/* ---- All lanes of a port. ---- */

static bool rules_in_group(struct psc_io_port *port, enum psc_io_steering how, uint32_t group,
                           struct rte_flow_error *error)
{
    for (uint32_t i = 0; i < PSC_IO_MAX_LANES; i++)
        if (port->lanes[i] != NULL &&
            !(how == PSC_IO_STEER_QPN ? rule_for_qpn : rule_for_address)(port, group, port->lanes[i], error))
            return false;
    return true;
}

static bool jump_to_group(struct psc_io_port *port, uint32_t group, struct rte_flow_error *error)
{
    const struct rte_flow_action_jump to = {.group = group};
    const struct rte_flow_action actions[] = {{.type = RTE_FLOW_ACTION_TYPE_JUMP, .conf = &to},
                                              {.type = RTE_FLOW_ACTION_TYPE_END}};
    const struct rte_flow_item udp_port[] = {
        {.type = RTE_FLOW_ITEM_TYPE_ETH},
        {.type = is_v4(port) ? RTE_FLOW_ITEM_TYPE_IPV4 : RTE_FLOW_ITEM_TYPE_IPV6},
        {.type = RTE_FLOW_ITEM_TYPE_UDP,
         .spec = &(const struct rte_flow_item_udp){.hdr.dst_port = RTE_BE16(PSC_ROCE_UDP_PORT)},
         .mask = &(const struct rte_flow_item_udp){.hdr.dst_port = RTE_BE16(0xffff)}},
        {.type = RTE_FLOW_ITEM_TYPE_END}};

    return add_rule(port, 0, udp_port, actions, error);
}

bool psc_io_steer(struct psc_io_port *port, enum psc_io_steering how, char *why)
{
    const char *name = how == PSC_IO_STEER_QPN ? "ib_bth" : "address";
    struct rte_flow_error first, later;

    if (rules_in_group(port, how, 0, &first))
        return true;
    psc_io_unsteer(port);
    if (how == PSC_IO_STEER_QPN && rules_in_group(port, how, LATER_GROUP, &later) &&
        jump_to_group(port, LATER_GROUP, &later))
        return true;
    psc_io_unsteer(port);
    snprintf(why, PSC_IO_WHY_BYTES, "%s: the driver refuses the rule (%s)", name,
             first.message != NULL ? first.message : "without a reason");
    return false;
}
