/* Our ends of QPs: random within their fields, never twice within the quarantine, and usable again after it.
 */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "psc_identity.h"

#define LANE 5u

static struct psc_ctl_qpns *fresh(void)
{
    struct psc_ctl_qpns *qpns = test_calloc(1, sizeof *qpns);

    assert_non_null(qpns);
    return qpns;
}

static void fields_keep_to_their_bits(void **state)
{
    struct psc_ctl_qpns *qpns = fresh();
    uint64_t va_bits = 0;

    (void)state;
    for (uint32_t i = 0; i < PSC_CTL_LANE_QPS; i++) {
        struct psc_ctl_qp qp;

        assert_true(psc_ctl_qp_new(qpns, LANE, 1, &qp));
        assert_int_equal(qp.qpn & ((1u << PSC_LANE_BITS) - 1), LANE);
        assert_int_equal(qp.qpn >> PSC_LANE_BITS & (PSC_CTL_LANE_QPS - 1), i);
        assert_true(qp.qpn > 1 && qp.qpn <= PSC_QPN_MASK);
        assert_true(qp.start_psn <= PSC_PSN_MASK);
        assert_true(qp.udp_port >= 0xc000 && qp.udp_port <= 0xffff);
        va_bits |= qp.va_base;
    }
    assert_true(va_bits == (1ull << PSC_VA_BASE_BITS) - 1);
    test_free(qpns);
}

static void an_open_index_is_not_given_twice(void **state)
{
    struct psc_ctl_qpns *qpns = fresh();
    struct psc_ctl_qp qp;

    (void)state;
    for (uint32_t i = 0; i < PSC_CTL_LANE_QPS; i++)
        assert_true(psc_ctl_qp_new(qpns, LANE, 1, &qp));
    assert_false(psc_ctl_qp_new(qpns, LANE, 1, &qp));
    assert_int_equal(qpns->used, PSC_CTL_LANE_QPS);
    psc_ctl_qp_retire(qpns, qp.qpn, 1);
    assert_int_equal(qpns->used, PSC_CTL_LANE_QPS - 1);
    assert_true(psc_ctl_qp_new(qpns, LANE, 1, &qp));
    test_free(qpns);
}

static void a_qpn_rests_for_its_quarantine(void **state)
{
    static bool seen[1 << 24];
    struct psc_ctl_qpns *qpns = fresh();
    struct psc_ctl_qp qp;

    (void)state;
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < PSC_CTL_LANE_QPS * PSC_CTL_RETIRED_PER_INDEX; i++) {
        assert_true(psc_ctl_qp_new(qpns, LANE, 1 + i, &qp));
        assert_false(seen[qp.qpn]);
        seen[qp.qpn] = true;
        psc_ctl_qp_retire(qpns, qp.qpn, 1 + i);
    }
    assert_false(psc_ctl_qp_new(qpns, LANE, PSC_CTL_QUARANTINE_US, &qp));
    assert_true(psc_ctl_qp_new(qpns, LANE, 1 + PSC_CTL_QUARANTINE_US, &qp));
    test_free(qpns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_keep_to_their_bits),
        cmocka_unit_test(an_open_index_is_not_given_twice),
        cmocka_unit_test(a_qpn_rests_for_its_quarantine),
    };
    return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
