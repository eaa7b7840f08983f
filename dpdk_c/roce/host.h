/* What the two families of host answers share, private to roce/: host.c speaks ARP and ICMP and chooses the
 * family, host_ipv6.c speaks ICMPv6. */
#ifndef PSC_ROCE_HOST_H
#define PSC_ROCE_HOST_H

#include "frame.h"

/* A group address can be nobody's own: answering or learning one would make the lane an amplifier. */
static inline bool psc_mac_is_unicast(const struct psc_mac *mac)
{
    return (mac->b[0] & 1) == 0;
}

/* Ethernet header of an answer: the request's, tag included, turned round. */
void psc_answer_ethernet(const uint8_t *frame, const struct psc_l3 *l3, const struct psc_local *local,
                         uint8_t *out);
/* Ethernet header of a question, tagged if we are; returns its length. */
uint32_t psc_ask_ethernet(const struct psc_local *local, const struct psc_mac *dst, uint16_t ethertype,
                          uint8_t *out);

/* The three steps of the door (psc_host_answer and so on) for what lies in an IPv6 frame to us. */
uint32_t psc_ipv6_answer(const uint8_t *frame, const struct psc_l3 *l3, const struct psc_local *local,
                         uint8_t *out);
uint32_t psc_ipv6_request(const struct psc_local *local, const struct psc_ip *target, uint8_t *out);
bool psc_ipv6_heard(const struct psc_l3 *l3, const struct psc_local *local, struct psc_ip *ip,
                    struct psc_mac *mac);

#endif
