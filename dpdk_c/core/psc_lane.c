/* core/: the first story, "packet in -> result out", in psc_lane_poll; and the lane's own memory. */
#include "psc_lane_state.h"

/* By fours: some five instructions less for a packet, of 1,630. */
static uint64_t bytes_of_frames(const struct psc_frame *frames, uint32_t n)
{
    uint64_t bytes = 0;

#pragma GCC unroll 4
    for (uint32_t i = 0; i < n; i++)
        bytes += frames[i].bytes;
    return bytes;
}

static uint64_t bytes_of_emits(const struct psc_emit *emits, uint32_t n)
{
    uint64_t bytes = 0;

#pragma GCC unroll 4
    for (uint32_t i = 0; i < n; i++)
        bytes += emits[i].header_bytes + emits[i].payload_bytes + emits[i].trailer_bytes;
    return bytes;
}

/* Once for the burst: a counter that is written for every packet costs a lane more than it tells. */
static void count_turn(struct psc_lane *lane, const struct psc_frame *frames, uint32_t n,
                       const struct psc_outbox *out)
{
    struct psc_lane_stats *stats = lane->stats;

    PSC_COUNT(stats->rx_packets, n);
    PSC_COUNT(stats->rx_bytes, bytes_of_frames(frames, n));
    PSC_COUNT(stats->tx_packets, out->count);
    PSC_COUNT(stats->tx_bytes, bytes_of_emits(out->emits, out->count));
    PSC_COUNT(stats->polls, 1);
    PSC_COUNT(stats->busy_polls, n > 0 || out->count > 0);
}

/* burst received -> parsed -> QP found -> responder step -> slot added -> slot full -> result built once,
 * one header per worker -> burst sent. */
uint32_t psc_lane_poll(struct psc_lane *lane, const struct psc_frame *frames, uint32_t n, uint64_t now_ns,
                       struct psc_emit *emits, uint32_t max)
{
    struct psc_outbox out = {.emits = emits, .max = max};

    psc_start_turn(lane, now_ns);
    psc_receive_frames(lane, frames, n, &out); /* parsed -> QP found -> responder step */
    psc_add_contributions(lane);               /* slot added: the frames end with this turn */
    psc_publish_results(lane);                 /* slot full -> result built once */
    psc_judge_clocks(lane, n, &out);
    psc_send_replies(lane, &out); /* ACKs and NAKs: at most one per QP and burst */
    psc_send_results(lane, &out); /* one header per worker */

    count_turn(lane, frames, n, &out);
    return out.count;
}

struct psc_emit *psc_outbox_take(struct psc_outbox *out)
{
    struct psc_emit *emit = &out->emits[out->count++];

    emit->header_bytes = emit->payload_bytes = emit->trailer_bytes = 0;
    emit->payload = NULL;
    emit->hold = NULL;
    return emit;
}

struct psc_lane *psc_lane_new(const struct psc_lane_config *config, const struct psc_memory *memory,
                              struct psc_lane_stats *stats)
{
    size_t lane_bytes = (sizeof(struct psc_lane) + 63) & ~(size_t)63;
    size_t answers_bytes = (PSC_LANE_ANSWERS + 1) * PSC_ANSWER_BYTES;
    struct psc_lane *lane = memory->alloc(memory->context, lane_bytes + PSC_LANE_ZEROS + answers_bytes);

    if (!lane)
        return NULL;
    lane->config = *config;
    lane->requester_config = (struct psc_requester_config){.max_unacked_packets = config->max_unacked_packets,
                                                           .retries = config->retries,
                                                           .retransmit_ns = config->retransmit_ns,
                                                           .progress_ns = config->progress_ns,
                                                           .immediates = true};
    lane->wheel.tick_ns =
        (config->retransmit_ns + PSC_LANE_TICKS_PER_RETRANSMIT) / PSC_LANE_TICKS_PER_RETRANSMIT;
    lane->memory = *memory;
    lane->stats = stats;
    lane->zeros = (uint8_t *)lane + lane_bytes;
    lane->unsent_answer = lane->zeros + PSC_LANE_ZEROS;
    for (uint32_t i = 0; i < PSC_LANE_ANSWERS; i++)
        lane->answers[i].data = lane->unsent_answer + (i + 1) * PSC_ANSWER_BYTES;
    return lane;
}

void psc_lane_set_realtime_offset(struct psc_lane *lane, uint64_t realtime_offset_ns)
{
    lane->config.realtime_offset_ns = realtime_offset_ns;
}

void psc_lane_free(struct psc_lane *lane)
{
    if (lane)
        lane->memory.release(lane->memory.context, lane);
}
