/* C's way into the statistics contract: guards, the file that cffi reads, and asserted sizes. */
#ifndef PSC_STATS_H
#define PSC_STATS_H

#include <stdint.h>

#include "psc_stats.def.h"

_Static_assert(sizeof(struct psc_stats_header) == 64, "statistics header");
_Static_assert(sizeof(struct psc_lane_stats) == 512, "lane block");
_Static_assert(sizeof(struct psc_job_stats) == 256, "job row");
_Static_assert(PSC_DROP_COUNT <= 32, "drop reasons fit the lane block");

#endif
