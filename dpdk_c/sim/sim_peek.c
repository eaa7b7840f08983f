/* sim/: looks inside the lane, where the rest of the simulation sees it only through core/'s door: late
 * packets are aimed at the exact PSN that a queue pair expects. Reads, never writes. */
#include "psc_lane_state.h"
#include "sim.h"

bool sim_peek_position(const struct sim *sim, uint32_t qpn, struct sim_position *position)
{
    const struct psc_lane *lane = sim->appliance.lane;
    const struct psc_qp *qp = lane ? lane->qps[(qpn >> PSC_LANE_BITS) & (PSC_LANE_QPS - 1)] : NULL;

    if (!qp || qp->spec.qpn != qpn || qp->state != PSC_QP_RTS)
        return false;
    *position =
        (struct sim_position){qp->responder.expected_psn, qp->requester.unacked_psn, qp->requester.fresh_psn};
    return true;
}
