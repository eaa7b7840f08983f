/* What a peer must not be able to guess, and what must not come again too soon: our ends of QPs.
 * Needs no lane and no DPDK; time is a parameter. */
#ifndef PSC_IDENTITY_H
#define PSC_IDENTITY_H

#include <stdbool.h>

#include "psc_ctl.h"
#include "psc_lane.h"

#define PSC_CTL_LANE_QPS (1u << PSC_QP_INDEX_BITS)
/* QPNs that one index of the lane's table remembers as recently used. */
#define PSC_CTL_RETIRED_PER_INDEX 8
/* A QPN is not used again for so long. */
#define PSC_CTL_QUARANTINE_US 60000000u

/* One index of a lane's QP table. Written by the control thread. */
struct psc_ctl_qp_index {
    bool used;
    uint32_t retired_qpn[PSC_CTL_RETIRED_PER_INDEX]; /* 0: none, for no QPN of ours is 0 */
    uint64_t retired_us[PSC_CTL_RETIRED_PER_INDEX];
};

/* The QPNs of a lane; all zero at first. Written by the control thread. */
struct psc_ctl_qpns {
    struct psc_ctl_qp_index index[PSC_CTL_LANE_QPS];
    uint32_t cursor; /* indexes are taken in turn, so that one rests as long as possible */
    uint32_t used;
};

/* Fills our end of a new QP; false: the lane has no index left whose QPN may be used. */
bool psc_ctl_qp_new(struct psc_ctl_qpns *qpns, uint32_t lane, uint64_t now_us, struct psc_ctl_qp *qp);
/* The QP is no more; its QPN goes to quarantine. */
void psc_ctl_qp_retire(struct psc_ctl_qpns *qpns, uint32_t qpn, uint64_t now_us);

#endif
