/* Contract between the rooms: what a check says when it refuses. The checks of qp/ and of agg/ speak the same
 * words, so that core/ can chain them without either room knowing the other. */
#ifndef PSC_REFUSAL_H
#define PSC_REFUSAL_H

#include <stdbool.h>

#include "psc_wire.h"

/* Written by the check that refused; read by core/ for the NAK and for the event. */
struct psc_refusal {
    enum psc_fault fault;
    uint64_t expected, got; /* the two values that the event names */
};

/* For the last line of a check: fills `refusal` and is false. */
static inline bool psc_refuse(struct psc_refusal *refusal, enum psc_fault fault, uint64_t expected,
                              uint64_t got)
{
    *refusal = (struct psc_refusal){.fault = fault, .expected = expected, .got = got};
    return false;
}

#endif
