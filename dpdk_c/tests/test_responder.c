/* What a protocol test cannot reach in reasonable time: the responder's counters at 2^24. Everything else
 * about it is in tests/protocol/test_responder.py. */
#include "support.h"

#include "psc_responder.h"

static void message_sequence_number_wraps(void **state)
{
    const struct psc_packet message = {
        .row = &psc_opcode_rows[PSC_RC_WRITE_ONLY_IMM], .opcode = PSC_RC_WRITE_ONLY_IMM, .ack_req = true};
    struct psc_responder responder;
    struct psc_header ack;

    (void)state;
    psc_responder_init(&responder, 256, 5);
    for (uint32_t i = 0; i < (1u << 24) - 1; i++)
        psc_responder_executed(&responder, &message);
    assert_int_equal(psc_responder_take_reply(&responder, &ack), PSC_REPLY_ACK);
    assert_int_equal(ack.msn, 0xffffff);
    assert_int_equal(ack.psn, 3); /* so have the PSNs */
    psc_responder_executed(&responder, &message);
    assert_int_equal(psc_responder_take_reply(&responder, &ack), PSC_REPLY_ACK);
    assert_int_equal(ack.msn, 0);
    assert_int_equal(ack.psn, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(message_sequence_number_wraps)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
