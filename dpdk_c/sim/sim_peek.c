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

bool sim_peek_exhausted(const struct sim *sim, const struct psc_job *job, uint32_t rank)
{
    const struct psc_lane_config *config = &sim->appliance.lane->config;

    for (uint32_t p = 0; p < job->spec.pool_count; p++) {
        const struct psc_qp *qp = &job->pools[p].qps[rank];
        const struct psc_requester *requester = &qp->requester;
        bool owed = requester->unacked_psn != requester->ready_psn;
        if ((qp->next_hop && !qp->next_hop->known) || (owed && requester->timeouts == config->retries) ||
            (owed && sim_appliance_now_ns(sim) - requester->progress_ns >= config->progress_ns))
            return true;
    }
    return false;
}
