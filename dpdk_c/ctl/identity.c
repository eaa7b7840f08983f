/* QPNs, start PSNs, rkeys, VA bases and source ports: all random from the kernel's CSPRNG, so that traffic of
 * an earlier life or of a blind sender meets nothing. */
#include "psc_identity.h"

#include <stdlib.h>
#include <sys/random.h>

#define QPN_BITS       24
#define QPN_HIGH_SHIFT (PSC_LANE_BITS + PSC_QP_INDEX_BITS)
#define QPN_TRIES      16

static uint64_t random_bits(uint32_t bits)
{
    uint64_t value;

    /* Never short for 8 bytes, and blocks only before the kernel's pool is first ready. Without it nothing is
     * safe. */
    if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value)
        abort();
    return value >> (64 - bits);
}

/* Whether `index` can remember one more retired QPN, and `qpn` is none of those in quarantine. */
static bool may_use(const struct psc_ctl_qp_index *index, uint32_t qpn, uint64_t now_us)
{
    bool can_remember = false;

    for (uint32_t i = 0; i < PSC_CTL_RETIRED_PER_INDEX; i++) {
        bool resting = index->retired_qpn[i] != 0 && now_us - index->retired_us[i] < PSC_CTL_QUARANTINE_US;

        if (resting && index->retired_qpn[i] == qpn)
            return false;
        can_remember = can_remember || !resting;
    }
    return can_remember;
}

/* A QPN of index `slot`; 0: none may be used now. The random high bits are never all zero: QPN 0 and 1 are
 * not ours. */
static uint32_t draw_qpn(const struct psc_ctl_qpns *qpns, uint32_t lane, uint32_t slot, uint64_t now_us)
{
    for (uint32_t i = 0; i < QPN_TRIES; i++) {
        uint32_t high = (uint32_t)random_bits(QPN_BITS - QPN_HIGH_SHIFT);
        uint32_t qpn = high << QPN_HIGH_SHIFT | slot << PSC_LANE_BITS | lane;

        if (high != 0 && may_use(&qpns->index[slot], qpn, now_us))
            return qpn;
    }
    return 0;
}

bool psc_ctl_qp_new(struct psc_ctl_qpns *qpns, uint32_t lane, uint64_t now_us, struct psc_ctl_qp *qp)
{
    for (uint32_t i = 0; i < PSC_CTL_LANE_QPS; i++) {
        uint32_t slot = (qpns->cursor + i) % PSC_CTL_LANE_QPS;
        uint32_t qpn = qpns->index[slot].used ? 0 : draw_qpn(qpns, lane, slot, now_us);

        if (qpn == 0)
            continue;
        qpns->index[slot].used = true;
        qpns->cursor = slot + 1;
        qpns->used++;
        qp->qpn = qpn;
        qp->start_psn = (uint32_t)random_bits(24);
        qp->rkey = (uint32_t)random_bits(32);
        qp->va_base = random_bits(PSC_VA_BASE_BITS);
        qp->udp_port = 0xc000u | (uint32_t)random_bits(14);
        return true;
    }
    return false;
}

void psc_ctl_qp_retire(struct psc_ctl_qpns *qpns, uint32_t qpn, uint64_t now_us)
{
    struct psc_ctl_qp_index *index = &qpns->index[qpn >> PSC_LANE_BITS & (PSC_CTL_LANE_QPS - 1)];
    uint32_t oldest = 0;

    for (uint32_t i = 1; i < PSC_CTL_RETIRED_PER_INDEX; i++)
        if (index->retired_us[i] < index->retired_us[oldest])
            oldest = i;
    index->retired_qpn[oldest] = qpn;
    index->retired_us[oldest] = now_us;
    index->used = false;
    qpns->used--;
}
