/* C's way to the functions that Python may call: guards, the contracts they speak of, and the file that cffi
 * reads. */
#ifndef PSC_CTL_H
#define PSC_CTL_H

#include <stdint.h>

#include "psc_stats.h"
#include "psc_wire.h"

#include "psc_ctl.def.h"

_Static_assert(PSC_CTL_MAX_POOLS == PSC_MAX_JOB_POOLS, "pools of a job");
_Static_assert(PSC_CTL_MAX_OPS == PSC_MAX_OPS, "op windows of a job");
_Static_assert(sizeof(struct psc_ctl_qp) == 24, "our end of a QP");
_Static_assert(sizeof(struct psc_ctl_peer) == 40, "the worker's end of a QP");
_Static_assert(sizeof(struct psc_ctl_event) == 176, "event");

#endif
