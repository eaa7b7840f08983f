/* The comparison of packet sequence numbers, around its two corners: the wrap at 2^24 and half the circle. */
#include "support.h"

#include "psc_psn.h"

static const struct {
    uint32_t a, b;
    int32_t distance; /* a - b */
} cases[] = {
    {0, 0, 0},
    {1, 0, 1},
    {0, 1, -1},
    {0xffffff, 0xfffffe, 1},
    {0x000000, 0xffffff, 1}, /* over the wrap */
    {0xffffff, 0x000000, -1},
    {0x000010, 0xfffff0, 0x20},
    {0xfffff0, 0x000010, -0x20},
    {0x7fffff, 0x000000, 0x7fffff},  /* the farthest future */
    {0x800000, 0x000000, -0x800000}, /* half the circle counts as past, from both sides */
    {0x000000, 0x800000, -0x800000},
    {0x800001, 0x000000, -0x7fffff},
    {0x123456, 0x923456, -0x800000},
    {0x923455, 0x123456, 0x7fffff},
};

static void distances(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (psc_psn_distance(cases[i].a, cases[i].b) != cases[i].distance)
            fail_msg("%06x - %06x is %d, not %d", cases[i].a, cases[i].b,
                     psc_psn_distance(cases[i].a, cases[i].b), cases[i].distance);
}

static void additions_wrap(void **state)
{
    (void)state;
    assert_int_equal(psc_psn_add(0xffffff, 1), 0);
    assert_int_equal(psc_psn_add(0xfffff0, 0x20), 0x10);
    assert_int_equal(psc_psn_add(0, PSC_PSN_MASK), 0xffffff); /* how one is subtracted */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(distances), cmocka_unit_test(additions_wrap)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
