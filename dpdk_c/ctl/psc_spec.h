/* What a job may be. Needs no lane and no DPDK. */
#ifndef PSC_SPEC_H
#define PSC_SPEC_H

#include <stdbool.h>

#include "psc_ctl.h"

/* False: the specification is outside the limits; `text` (of PSC_CTL_TEXT_BYTES) says what and which. */
bool psc_ctl_spec_check(const struct psc_ctl_job *spec, uint32_t lanes, char *text);

#endif
