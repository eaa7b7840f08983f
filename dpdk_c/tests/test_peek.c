/* For which lane a frame is, at a glance: every kind of frame, with and without a tag, and cut off after
 * every byte (in memory of exactly so many, which a sanitizer watches). */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#define QPN 0xabcde7u

static enum psc_peek_kind peek(const uint8_t *frame, uint32_t bytes, uint32_t *qpn)
{
    uint8_t *exact = malloc(bytes > 0 ? bytes : 1);
    enum psc_peek_kind kind;

    memcpy(exact, frame, bytes);
    kind = psc_peek(exact, bytes, qpn);
    free(exact);
    return kind;
}

/* RoCE only once the BTH's end is there, and never past the frame's end. */
static void check_roce(const char *hex, uint32_t bth_end)
{
    uint8_t frame[FRAME_MAX_BYTES];
    uint32_t bytes = unhex(hex, frame), qpn;

    assert_true(bth_end <= PSC_PEEK_BYTES);
    for (uint32_t cut = 0; cut <= bytes; cut++) {
        qpn = 0;
        assert_int_equal(peek(frame, cut, &qpn), cut < bth_end ? PSC_PEEK_OTHER : PSC_PEEK_ROCE);
        assert_int_equal(qpn, cut < bth_end ? 0 : QPN);
    }
}

static void roce_over_ipv4(void **state)
{
    (void)state;
    check_roce(
        "020000000002 020000000001 0800 456a 0030 0000 4000 40 11 2651 0a000001 0a000002 c123 12b7 001c 0000"
        "11 40 ffff 00 abcde7 00 fffffe 1f 000007 f70e1088",
        54);
    check_roce("020000000002 020000000001 8100 0005 0800 456a 0030 0000 4000 40 11 2651 0a000001 0a000002"
               "c123 12b7 001c 0000 11 40 ffff 00 abcde7 00 fffffe 1f 000007 f70e1088",
               58);
}

static void roce_over_ipv6(void **state)
{
    (void)state;
    check_roce("020000000002 020000000001 86dd 66a00000 001c 11 40 fd000000000000000000000000000001"
               "fd000000000000000000000000000002 c123 12b7 001c 0000 11 40 ffff 00 abcde7 00 fffffe 1f "
               "000007 01020304",
               74);
    check_roce("020000000002 020000000001 8100 0005 86dd 66a00000 001c 11 40 fd000000000000000000000000000001"
               "fd000000000000000000000000000002 c123 12b7 001c 0000 11 40 ffff 00 abcde7 00 fffffe 1f "
               "000007 01020304",
               PSC_PEEK_BYTES);
}

static void check(enum psc_peek_kind kind, const char *hex)
{
    uint8_t frame[FRAME_MAX_BYTES];
    uint32_t qpn = 0, bytes = unhex(hex, frame);

    assert_int_equal(peek(frame, bytes, &qpn), kind);
    assert_int_equal(qpn, 0);
}

static void neighbours(void **state)
{
    (void)state;
    check(PSC_PEEK_NEIGHBOUR, "ffffffffffff 020000000001 0806 0001");
    check(PSC_PEEK_NEIGHBOUR, "ffffffffffff 020000000001 8100 0005 0806 0001");
    check(PSC_PEEK_NEIGHBOUR,
          "3333ff000002 020000000001 86dd 60000000 0020 3a ff fd000000000000000000000000000001"
          "ff0200000000000000000001ff000002 87 00 0000");
    check(PSC_PEEK_NEIGHBOUR,
          "020000000002 020000000001 86dd 60000000 0020 3a ff fd000000000000000000000000000001"
          "fd000000000000000000000000000002 88 00 0000");
}

static void others(void **state)
{
    (void)state;
    /* ICMP, ICMPv6 echo, another UDP port, IP options, another Ethertype */
    check(PSC_PEEK_OTHER,
          "020000000002 020000000001 0800 4500 0030 0000 4000 40 01 2651 0a000001 0a000002 0800 0000"
          "0000000000000000000000000000000000000000");
    check(PSC_PEEK_OTHER,
          "020000000002 020000000001 86dd 60000000 0020 3a ff fd000000000000000000000000000001"
          "fd000000000000000000000000000002 80 00 0000");
    check(PSC_PEEK_OTHER,
          "020000000002 020000000001 0800 456a 0030 0000 4000 40 11 2651 0a000001 0a000002 12b7 c123"
          "001c 0000 11 40 ffff 00 abcde7 00 fffffe");
    check(PSC_PEEK_OTHER,
          "020000000002 020000000001 0800 466a 0030 0000 4000 40 11 2651 0a000001 0a000002 c123 12b7"
          "001c 0000 11 40 ffff 00 abcde7 00 fffffe 00000000");
    check(PSC_PEEK_OTHER, "020000000002 020000000001 88cc 0000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roce_over_ipv4),
        cmocka_unit_test(roce_over_ipv6),
        cmocka_unit_test(neighbours),
        cmocka_unit_test(others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
