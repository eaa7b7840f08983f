/* qp/: the requester. A sender of go-back-N: one cursor into the stream, moved back by a loss and forward by
 * an ACK. */
#include "psc_requester.h"

#include "psc_psn.h"

#define SYNDROME_KIND_MASK 0xe0u /* b7 = 0, b6:5 = kind; a set b7 is reserved and matches no kind */
#define SYNDROME_KIND_ACK  0x00u
#define SYNDROME_KIND_RNR  0x20u

/* RNR NAK timer codes in units of 10 us; code 0 is the longest. */
static const uint32_t rnr_timer_10us[32] = {
    65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
    256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

void psc_requester_init(struct psc_requester *requester, const struct psc_requester_config *config,
                        struct psc_message *ring, uint32_t ring_size, uint32_t start_psn)
{
    *requester = (struct psc_requester){.config = config,
                                        .ring = ring,
                                        .ring_size = ring_size,
                                        .unacked_psn = start_psn,
                                        .cursor_psn = start_psn,
                                        .fresh_psn = start_psn,
                                        .ready_psn = start_psn,
                                        .posted_psn = start_psn};
}

/* The i-th message after the oldest, i <= ring_count. Once round the ring at most: no division. */
static struct psc_message *message_at(const struct psc_requester *requester, uint32_t i)
{
    uint32_t at = requester->ring_head + i;

    return &requester->ring[at < requester->ring_size ? at : at - requester->ring_size];
}

static uint32_t end_psn(const struct psc_message *message)
{
    return psc_psn_add(message->first_psn, message->packets);
}

bool psc_requester_post(struct psc_requester *requester, uint64_t tag, uint32_t packets)
{
    if (requester->ring_count == requester->ring_size)
        return false;
    *message_at(requester, requester->ring_count++) =
        (struct psc_message){.tag = tag, .first_psn = requester->posted_psn, .packets = packets};
    requester->posted_psn = psc_psn_add(requester->posted_psn, packets);
    return true;
}

void psc_requester_ready(struct psc_requester *requester, uint32_t packets, uint64_t now_ns)
{
    if (requester->unacked_psn == requester->ready_psn) /* idle until now */
        requester->progress_ns = now_ns;
    requester->ready_psn = psc_psn_add(requester->ready_psn, packets);
}

static uint8_t write_opcode(const struct psc_message *message, uint32_t index, bool immediate)
{
    bool first = index == 0;

    if (index < message->packets - 1)
        return first ? PSC_RC_WRITE_FIRST : PSC_RC_WRITE_MIDDLE;
    if (immediate)
        return first ? PSC_RC_WRITE_ONLY_IMM : PSC_RC_WRITE_LAST_IMM;
    return first ? PSC_RC_WRITE_ONLY : PSC_RC_WRITE_LAST;
}

/* Peers acknowledge only what asks for it: ask at every message's end, when nothing more is ready (a
 * cut-through message may pause in its middle), and every quarter of the window, which therefore never closes
 * unasked. */
static bool wants_ack(const struct psc_requester *requester, const struct psc_sending *sending)
{
    uint32_t max = requester->config->max_unacked_packets;
    uint32_t after_psn = psc_psn_add(sending->psn, 1);

    return sending->index == sending->message->packets - 1 || after_psn == requester->ready_psn ||
           (requester->unrequested + 1) * 4 >= max;
}

bool psc_requester_next(struct psc_requester *requester, uint64_t now_ns, struct psc_sending *sending)
{
    uint32_t psn = requester->cursor_psn;

    if (psn == requester->ready_psn || requester->rnr_until_ns != 0 ||
        psc_psn_distance(psn, requester->unacked_psn) >= (int32_t)requester->config->max_unacked_packets)
        return false;
    while (psc_psn_distance(psn, end_psn(message_at(requester, requester->cursor_message))) >= 0)
        requester->cursor_message++;

    const struct psc_message *message = message_at(requester, requester->cursor_message);
    uint32_t index = (uint32_t)psc_psn_distance(psn, message->first_psn);
    *sending = (struct psc_sending){.message = message,
                                    .index = index,
                                    .psn = psn,
                                    .opcode = write_opcode(message, index, requester->config->immediates),
                                    .again = psn != requester->fresh_psn};
    sending->ack_req = wants_ack(requester, sending);

    requester->cursor_psn = psc_psn_add(psn, 1);
    if (!sending->again)
        requester->fresh_psn = requester->cursor_psn;
    requester->unrequested++;
    if (sending->ack_req) {
        if (!requester->ack_req_sent)
            requester->timer_ns = now_ns;
        requester->ack_req_sent = true;
        requester->ack_req_psn = psn;
        requester->unrequested = 0;
    }
    return true;
}

static void rewind_to(struct psc_requester *requester, uint32_t psn)
{
    requester->cursor_psn = psn;
    requester->cursor_message = 0;
    requester->unrequested = 0;
}

/* Everything before `psn` has arrived. An acknowledgement beyond the cursor, after a rewind, moves it
 * forward. */
static void acknowledge_before(struct psc_requester *requester, uint32_t psn, uint64_t now_ns)
{
    if (psc_psn_distance(psn, requester->unacked_psn) <= 0)
        return;
    requester->unacked_psn = psn;
    if (psc_psn_distance(requester->cursor_psn, psn) < 0)
        requester->cursor_psn = psn;
    if (requester->ack_req_sent && psc_psn_distance(requester->ack_req_psn, psn) < 0)
        requester->ack_req_sent = false;
    requester->timeouts = 0;
    requester->rewound = false;
    requester->rnr_until_ns = 0;
    requester->timer_ns = requester->progress_ns = now_ns;
}

/* The peer misses `psn`. It repeats the NAK for every packet that was still under way: one rewind is enough.
 */
static void obey_nak_sequence(struct psc_requester *requester, uint32_t psn)
{
    if (requester->rewound && requester->rewound_psn == psn)
        return;
    requester->rewound = true;
    requester->rewound_psn = psn;
    rewind_to(requester, psn);
}

static void obey_rnr(struct psc_requester *requester, uint32_t psn, uint8_t syndrome, uint64_t now_ns)
{
    uint64_t until_ns = now_ns + rnr_timer_10us[syndrome & 0x1f] * UINT64_C(10000);

    if (until_ns > requester->rnr_until_ns)
        requester->rnr_until_ns = until_ns;
    rewind_to(requester, psn);
}

enum psc_response psc_requester_response(struct psc_requester *requester, uint32_t psn, uint8_t syndrome,
                                         uint64_t now_ns)
{
    uint32_t kind = syndrome & SYNDROME_KIND_MASK;
    bool acknowledges = kind == SYNDROME_KIND_ACK;
    bool rnr = kind == SYNDROME_KIND_RNR;
    bool nak = syndrome >= PSC_SYNDROME_NAK_SEQUENCE && syndrome <= PSC_SYNDROME_NAK_OPERATION;

    if (!acknowledges && !rnr && !nak)
        return PSC_RESPONSE_RESERVED;
    if (psc_psn_distance(psn, requester->unacked_psn) < 0 || psc_psn_distance(psn, requester->fresh_psn) >= 0)
        return PSC_RESPONSE_STALE;
    acknowledge_before(requester, acknowledges ? psc_psn_add(psn, 1) : psn, now_ns);
    if (rnr)
        obey_rnr(requester, psn, syndrome, now_ns);
    else if (syndrome == PSC_SYNDROME_NAK_SEQUENCE)
        obey_nak_sequence(requester, psn);
    else if (nak)
        return PSC_RESPONSE_FATAL;
    return PSC_RESPONSE_TAKEN;
}

/* The message with this tag, if it is unacknowledged and every packet of it has been sent. */
static const struct psc_message *find_sent(const struct psc_requester *requester, uint64_t tag)
{
    for (uint32_t i = 0; i < requester->ring_count; i++) {
        const struct psc_message *message = message_at(requester, i);
        if (message->tag == tag)
            return psc_psn_distance(end_psn(message), requester->fresh_psn) <= 0 ? message : NULL;
    }
    return NULL;
}

bool psc_requester_sent(const struct psc_requester *requester, uint64_t tag)
{
    return find_sent(requester, tag) != NULL;
}

void psc_requester_acked_through(struct psc_requester *requester, uint64_t tag, uint64_t now_ns)
{
    const struct psc_message *message = find_sent(requester, tag);

    if (message)
        acknowledge_before(requester, end_psn(message), now_ns);
}

bool psc_requester_pop(struct psc_requester *requester, uint64_t *tag)
{
    if (requester->ring_count == 0)
        return false;
    const struct psc_message *oldest = message_at(requester, 0);
    if (psc_psn_distance(end_psn(oldest), requester->unacked_psn) > 0)
        return false;
    *tag = oldest->tag;
    requester->ring_head = (uint32_t)(message_at(requester, 1) - requester->ring);
    requester->ring_count--;
    if (requester->cursor_message > 0)
        requester->cursor_message--;
    return true;
}

uint64_t psc_requester_due_ns(const struct psc_requester *requester)
{
    uint64_t due_ns = requester->progress_ns + requester->config->progress_ns;
    uint64_t timer_ns = requester->rnr_until_ns;

    if (timer_ns == 0 && requester->ack_req_sent)
        timer_ns = requester->timer_ns + requester->config->retransmit_ns;
    return timer_ns != 0 && timer_ns < due_ns ? timer_ns : due_ns;
}

enum psc_expiry psc_requester_expire(struct psc_requester *requester, uint64_t now_ns)
{
    const struct psc_requester_config *config = requester->config;

    if (requester->unacked_psn == requester->ready_psn)
        return PSC_EXPIRY_NONE;
    if (now_ns - requester->progress_ns >= config->progress_ns) /* a port that takes nothing is no excuse */
        return PSC_EXPIRY_EXHAUSTED;
    if (requester->rnr_until_ns != 0) { /* the ACK timer is suspended */
        if (now_ns < requester->rnr_until_ns)
            return PSC_EXPIRY_NONE;
        requester->rnr_until_ns = 0;
        requester->timer_ns = now_ns;
        return PSC_EXPIRY_RESUME;
    }
    if (!requester->ack_req_sent || now_ns - requester->timer_ns < config->retransmit_ns)
        return PSC_EXPIRY_NONE;
    if (requester->timeouts == config->retries)
        return PSC_EXPIRY_EXHAUSTED;
    requester->timeouts++;
    requester->rewound = false;
    requester->timer_ns = now_ns;
    rewind_to(requester, requester->unacked_psn);
    return PSC_EXPIRY_TIMEOUT;
}
