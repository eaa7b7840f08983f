/* core/: the queue of events to the control core. */
#include "psc_lane_state.h"

struct psc_event psc_event_of(enum psc_event_kind kind, struct psc_job *job)
{
    struct psc_event event = {.kind = kind, .tag = job->spec.tag, .job = job};

    for (uint32_t i = 0; i < job->spec.pool_count; i++)
        event.complete[i] = job->pools[i].pool.completed_rounds;
    return event;
}

void psc_event_push(struct psc_lane *lane, const struct psc_event *event)
{
    /* WAITING alone can come without bound, and may be lost. The others come at most three times per QP
     * (CONNECTED, PROBED, LEFT) and three times per job (FAULT, ENDED, DETACHED) before the control core must
     * have read them to go on (RESUME follows a FAULT that it has read): at most six per QP of the lane, for
     * which the queue always keeps room. */
    uint32_t room = event->kind == PSC_EVENT_WAITING ? PSC_LANE_EVENTS - 6 * PSC_LANE_QPS : PSC_LANE_EVENTS;

    if (lane->event_count >= room)
        return;
    lane->events[(lane->event_head + lane->event_count++) % PSC_LANE_EVENTS] = *event;
}

bool psc_lane_next_event(struct psc_lane *lane, struct psc_event *event)
{
    if (lane->event_count == 0)
        return false;
    *event = lane->events[lane->event_head];
    lane->event_head = (lane->event_head + 1) % PSC_LANE_EVENTS;
    lane->event_count--;
    return true;
}
