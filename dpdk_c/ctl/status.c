/* What the appliance runs with, for `pascaline-appliance status` and for leak tests. Reads only. */
#include <stdio.h>
#include <string.h>

#include "psc_ctl_internal.h"

enum psc_ctl_code psc_ctl_port_status(uint32_t port, struct psc_ctl_port_status *status)
{
    struct psc_io_port_info info;

    if (psc_ctl.io == NULL)
        return PSC_CTL_STATE;
    if (port >= psc_ctl.config.port_count)
        return PSC_CTL_ARGUMENT;
    psc_io_port_info(psc_ctl.io, port, &info);
    memset(status, 0, sizeof *status);
    snprintf(status->devargs, sizeof status->devargs, "%s", info.devargs);
    snprintf(status->driver, sizeof status->driver, "%s", info.driver);
    memcpy(status->mac, info.mac.b, sizeof status->mac);
    status->link_up = info.link_up ? 1 : 0;
    status->lends_payload = info.lends_payload ? 1 : 0;
    status->link_mtu = info.link_mtu;
    status->roce_mtu = info.roce_mtu;
    status->steering = info.steering;
    status->rx_queues = info.rx_queues;
    status->tx_queues = info.tx_queues;
    status->dispatched_frames = info.dispatched_frames;
    snprintf(status->why, sizeof status->why, "%s", info.why);
    return PSC_CTL_OK;
}

const struct psc_lane_stats *psc_ctl_lane_stats(uint32_t lane)
{
    if (psc_ctl.segment == NULL || lane >= psc_ctl.config.lane_count)
        return NULL;
    return psc_segment_lane(psc_ctl.segment, lane);
}

const struct psc_job_stats *psc_ctl_job_stats(uint32_t job, uint32_t lane)
{
    const struct psc_ctl_entry *entry = psc_ctl_find(job);

    for (uint32_t i = 0; entry != NULL && i < entry->shard_count; i++)
        if (entry->shards[i].lane == lane)
            return entry->shards[i].row;
    return NULL;
}

void psc_ctl_usage(struct psc_ctl_usage *usage)
{
    memset(usage, 0, sizeof *usage);
    if (psc_ctl.io == NULL)
        return;
    for (uint32_t i = 0; i < psc_ctl.config.max_jobs; i++)
        usage->jobs += psc_ctl.entries[i].number != 0;
    for (uint32_t i = 0; i < psc_ctl.config.lane_count; i++)
        usage->qps += psc_ctl.qpns[i].used;
    usage->mbufs_in_use = psc_io_mbufs_in_use(psc_ctl.io);
}
