/* sim/: frames that are not what was sent: flipped bits, cut ends, and what only an adversary or a very long
 * delay could make. */
#include <string.h>

#include "psc_roce.h"
#include "sim.h"

#define IP        14u
#define ICRC      4u
#define ETHERTYPE 12u

bool sim_frame_is_roce(const uint8_t *frame, uint32_t bytes)
{
    return bytes >= SIM_BTH + 12 + ICRC && frame[ETHERTYPE] == 8 && frame[ETHERTYPE + 1] == 0;
}

/* What a router may change is not covered by the ICRC: a frame damaged only there is as good as before. */
static bool covered(uint32_t byte)
{
    static const uint8_t uncovered[] = {IP + 1, IP + 8, IP + 10, IP + 11, 40, 41, SIM_BTH + 4};

    return byte >= IP && !memchr(uncovered, (int)byte, sizeof uncovered);
}

void sim_damage_corrupt(struct sim *sim, struct sim_frame *frame)
{
    uint64_t flips = sim_between(&sim->random, 1, 4);
    uint8_t before[SIM_FRAME_MAX];

    memcpy(before, frame->data, frame->bytes);
    while (flips-- > 0)
        frame->data[sim_below(&sim->random, frame->bytes)] ^= (uint8_t)(1u << sim_below(&sim->random, 8));
    for (uint32_t byte = 0; byte < frame->bytes; byte++) /* two flips may have undone each other */
        if (frame->data[byte] != before[byte] && covered(byte))
            frame->intact = false;
}

void sim_damage_truncate(struct sim *sim, struct sim_frame *frame)
{
    frame->bytes = (uint32_t)sim_below(&sim->random, frame->bytes);
    frame->intact = false;
}

static void repair_ip_checksum(uint8_t *ip)
{
    uint32_t sum = 0;

    ip[10] = ip[11] = 0;
    for (uint32_t i = 0; i < 20; i += 2)
        sum += (uint32_t)ip[i] << 8 | ip[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    sum = ~((sum & 0xffff) + (sum >> 16));
    ip[10] = (uint8_t)(sum >> 8);
    ip[11] = (uint8_t)sum;
}

void sim_damage_mark(struct sim_frame *frame)
{
    if (!sim_frame_is_roce(frame->data, frame->bytes))
        return;
    frame->data[IP + 1] |= 3;
    repair_ip_checksum(frame->data + IP);
}

static void repair_icrc(struct sim_frame *frame)
{
    uint32_t icrc_bytes = frame->bytes - IP - ICRC;
    uint32_t crc = psc_icrc(frame->data + IP, icrc_bytes);

    for (uint32_t i = 0; i < ICRC; i++)
        frame->data[frame->bytes - ICRC + i] = (uint8_t)(crc >> 8 * i);
}

/* From here on the sums of this life prove nothing, unless the frame comes to nothing: whoever counts must
 * allow for it. */
static void taint(struct sim_frame *frame)
{
    frame->intact = false;
    if (frame->life == frame->worker->job->life)
        frame->worker->job->tampered = true;
}

void sim_damage_tamper(struct sim *sim, struct sim_frame *frame)
{
    if (!sim_frame_is_roce(frame->data, frame->bytes))
        return;
    uint32_t room = frame->bytes - ICRC - SIM_BTH;
    uint32_t byte = SIM_BTH + (uint32_t)sim_below(&sim->random, room);

    frame->data[byte] ^= (uint8_t)(1u << sim_below(&sim->random, 8));
    repair_icrc(frame);
    taint(frame);
}

static void set_psn(struct sim_frame *frame, uint32_t psn)
{
    uint8_t *at = frame->data + SIM_BTH + 9;

    at[0] = (uint8_t)(psn >> 16);
    at[1] = (uint8_t)(psn >> 8);
    at[2] = (uint8_t)psn;
    repair_icrc(frame);
}

static const struct sim_queue *queue_of(const struct sim_frame *frame)
{
    uint32_t qpn = sim_frame_qpn(frame->data);

    for (uint32_t p = 0; p < SIM_POOLS; p++) {
        const struct sim_queue *queue = &frame->worker->queues[p];
        if (queue->endpoint && qpn == (frame->to_appliance ? queue->appliance_qpn : queue->qpn))
            return queue;
    }
    return NULL;
}

/* A packet that comes 2^23 or 2^24 +- 1 packets after it was sent meets a receiver that has moved on by as
 * much. Nobody can run so many packets here; but only the difference of the two numbers is visible, so the
 * old frame gets the PSN that has this difference now. */
bool sim_damage_haunt(struct sim *sim, struct sim_frame *frame, bool unseeable)
{
    const struct sim_queue *queue = queue_of(frame);
    struct sim_position at;
    bool response = frame->data[SIM_BTH] == PSC_RC_ACK;

    if (!queue || frame->data[SIM_BTH] == PSC_CNP)
        return false;
    if (!frame->to_appliance)
        at = queue->endpoint->ops->position(queue->endpoint);
    else if (!sim_peek_position(sim, queue->appliance_qpn, &at))
        return false;
    uint32_t flight = (at.fresh_psn - at.unacked_psn) & PSC_PSN_MASK;
    if (response && unseeable && flight == 0)
        return false;
    /* Past and future by half the circle, and by one: what is 2^24 +- 1 packets old looks like this. */
    static const uint32_t far[] = {0x800000, 0x800001, 0x7fffff, 0xffffff, 1, 2};
    uint32_t distance = far[sim_below(&sim->random, 6)];
    if (response) /* of the range [unacked, fresh) in which it would count */
        set_psn(frame, unseeable             ? at.unacked_psn + (uint32_t)sim_below(&sim->random, flight)
                       : distance < 0x800000 ? at.fresh_psn + distance - 1
                                             : at.unacked_psn + distance);
    else
        set_psn(frame, at.expected_psn + (unseeable ? 0 : distance));
    if (unseeable)
        taint(frame);
    return true;
}
