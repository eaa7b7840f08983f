/* Plain memory under the QP layer: what a request writes, what is refused, and what the target says. The
 * bytes that a peer sends are made by the builder; a live peer is in tests/softroce/test_perftest.py. */
#include <stdlib.h>
#include <string.h>

#include "psc_target.h"
#include "support.h"

#define VA           UINT64_C(0x7f0123456789)
#define RKEY         0xcafe0001u
#define QPN          0x123456u
#define PEER_QPN     0x000017u
#define MTU          1024u
#define FIRST_PSN    0xffffffu /* wraps after the first packet */
#define REGION_BYTES 5000
#define RETRANSMIT   UINT64_C(1000000)

struct fixture {
    struct psc_target *target;
    struct psc_flow flow; /* the peer's */
    uint8_t *memory;      /* exactly the region, for AddressSanitizer */
    uint8_t source[4 * MTU];
    uint32_t psn;
};

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct psc_target_qp_spec spec = {.qpn = QPN,
                                      .start_psn = FIRST_PSN,
                                      .mtu_bytes = MTU,
                                      .udp_port = 0xc001,
                                      .peer_mac = flow_v4.src_mac,
                                      .peer = flow_v4.src,
                                      .peer_qpn = PEER_QPN,
                                      .peer_start_psn = FIRST_PSN};

    fixture->memory = calloc(1, REGION_BYTES);
    spec.region =
        (struct psc_region){.memory = fixture->memory, .bytes = REGION_BYTES, .va_base = VA, .rkey = RKEY};
    fixture->target = psc_target_new(&local_v4, RETRANSMIT);
    fixture->flow = flow_v4;
    fixture->flow.dest_qpn = QPN;
    fixture->psn = FIRST_PSN;
    for (uint32_t i = 0; i < sizeof fixture->source; i++)
        fixture->source[i] = (uint8_t)(i * 7 + i / 256 + 1);
    assert_int_equal(psc_target_connect(fixture->target, &spec), 0);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;

    psc_target_free(fixture->target);
    free(fixture->memory);
    free(fixture);
    return 0;
}

/* One request of the peer's, with the next PSN. */
static void request(struct fixture *fixture, uint8_t opcode, int32_t offset, uint32_t dma_len,
                    uint32_t source, uint32_t bytes)
{
    const struct psc_header header = {.opcode = opcode,
                                      .ack_req = true,
                                      .psn = fixture->psn,
                                      .va = VA + (uint64_t)(int64_t)offset,
                                      .rkey = RKEY,
                                      .dma_len = dma_len};
    uint8_t frame[FRAME_MAX_BYTES];
    uint32_t frame_bytes = whole_frame(&fixture->flow, &header, fixture->source + source, bytes, frame);
    uint8_t *exact = exact_copy(frame, frame_bytes);

    psc_target_receive(fixture->target, exact, frame_bytes, 1);
    free(exact);
    fixture->psn = (fixture->psn + 1) & PSC_PSN_MASK;
}

/* What the target sends next, parsed as the peer does; false: nothing. */
static bool next_packet(struct fixture *fixture, uint64_t now_ns, struct psc_packet *packet, uint8_t *frame)
{
    const struct psc_local peer = {.mac = flow_v4.src_mac, .ip = flow_v4.src};
    struct psc_target_frame out;
    enum psc_drop why;

    if (!psc_target_emit(fixture->target, now_ns, &out))
        return false;
    memcpy(frame, out.header, out.header_bytes);
    memcpy(frame + out.header_bytes, out.payload, out.payload_bytes);
    memcpy(frame + out.header_bytes + out.payload_bytes, out.trailer, out.trailer_bytes);
    uint32_t bytes = out.header_bytes + out.payload_bytes + out.trailer_bytes;
    assert_int_equal(psc_parse(frame, bytes, &peer, packet, &why), PSC_FRAME_ROCE);
    assert_true(psc_icrc_ok(packet));
    assert_int_equal(packet->dest_qpn, PEER_QPN);
    return true;
}

static void assert_reply(struct fixture *fixture, uint32_t psn, uint8_t syndrome, uint32_t msn)
{
    uint8_t frame[FRAME_MAX_BYTES];
    struct psc_packet packet;

    assert_true(next_packet(fixture, 1, &packet, frame));
    assert_int_equal(packet.opcode, PSC_RC_ACK);
    assert_int_equal(packet.psn, psn);
    assert_int_equal(packet.syndrome, syndrome);
    assert_int_equal(packet.msn, msn);
    assert_false(next_packet(fixture, 1, &packet, frame));
}

/* The region holds the source's first `bytes` at `offset`, and zeros elsewhere. */
static void assert_memory(const struct fixture *fixture, int32_t offset, uint32_t bytes)
{
    for (int32_t i = 0; i < REGION_BYTES; i++) {
        bool inside = i >= offset && i < offset + (int32_t)bytes;
        assert_int_equal(fixture->memory[i], inside ? fixture->source[i - offset] : 0);
    }
}

static void a_write_without_immediate_lands_where_it_says(void **state)
{
    struct fixture *fixture = *state;
    const uint32_t bytes = 2 * MTU + 3;
    const int32_t offset = 5;

    request(fixture, PSC_RC_WRITE_FIRST, offset, bytes, 0, MTU);
    assert_reply(fixture, FIRST_PSN, PSC_SYNDROME_ACK, 0);
    request(fixture, PSC_RC_WRITE_MIDDLE, 0, 0, MTU, MTU);
    request(fixture, PSC_RC_WRITE_LAST, 0, 0, 2 * MTU, 3);
    assert_reply(fixture, 1, PSC_SYNDROME_ACK, 1);
    assert_memory(fixture, offset, bytes);
}

static void the_last_byte_and_none_at_all_may_be_written(void **state)
{
    struct fixture *fixture = *state;

    request(fixture, PSC_RC_WRITE_ONLY, REGION_BYTES - 1, 1, 0, 1);
    assert_reply(fixture, FIRST_PSN, PSC_SYNDROME_ACK, 1);
    request(fixture, PSC_RC_WRITE_ONLY, REGION_BYTES, 0, 0, 0);
    assert_reply(fixture, 0, PSC_SYNDROME_ACK, 2);
    assert_memory(fixture, REGION_BYTES - 1, 1);
}

static void a_repeated_packet_is_acknowledged_and_not_executed(void **state)
{
    struct fixture *fixture = *state;

    request(fixture, PSC_RC_WRITE_ONLY, 0, 8, 0, 8);
    assert_reply(fixture, FIRST_PSN, PSC_SYNDROME_ACK, 1);
    memset(fixture->memory, 0, REGION_BYTES);
    fixture->psn = FIRST_PSN;
    request(fixture, PSC_RC_WRITE_ONLY, 0, 8, 0, 8);
    assert_reply(fixture, FIRST_PSN, PSC_SYNDROME_ACK, 1);
    assert_memory(fixture, 0, 0);
    assert_int_equal(psc_target_counters(fixture->target, 0).executed_bytes, 8);
}

static void assert_refused(struct fixture *fixture, uint32_t psn, uint8_t syndrome, enum psc_fault fault)
{
    assert_reply(fixture, psn, syndrome, 0);
    assert_int_equal(psc_target_counters(fixture->target, 0).fault, fault);
    request(fixture, PSC_RC_WRITE_ONLY, 0, 4, 0, 4); /* the QP is lost: silence */
    uint8_t frame[FRAME_MAX_BYTES];
    struct psc_packet packet;
    assert_false(next_packet(fixture, 1, &packet, frame));
    assert_memory(fixture, 0, 0);
}

static void a_range_beyond_the_region_is_refused_before_its_first_byte(void **state)
{
    request(*state, PSC_RC_WRITE_FIRST, REGION_BYTES - 2 * (int32_t)MTU, 2 * MTU + 1, 0, MTU);
    assert_refused(*state, FIRST_PSN, PSC_SYNDROME_NAK_ACCESS, PSC_FAULT_REMOTE_ACCESS);
}

static void an_address_below_the_region_is_refused(void **state)
{
    request(*state, PSC_RC_WRITE_ONLY, -1, 4, 0, 4);
    assert_refused(*state, FIRST_PSN, PSC_SYNDROME_NAK_ACCESS, PSC_FAULT_REMOTE_ACCESS);
}

static void a_last_that_is_not_the_residual_is_refused(void **state)
{
    struct fixture *fixture = *state;

    request(fixture, PSC_RC_WRITE_FIRST, 0, 2 * MTU, 0, MTU);
    assert_reply(fixture, FIRST_PSN, PSC_SYNDROME_ACK, 0);
    memset(fixture->memory, 0, REGION_BYTES);
    request(fixture, PSC_RC_WRITE_LAST, 0, 0, MTU, MTU - 4);
    assert_refused(fixture, 0, PSC_SYNDROME_NAK_INVALID, PSC_FAULT_INVALID_REQUEST);
}

static void our_write_carries_no_immediate_and_comes_again_until_it_is_acknowledged(void **state)
{
    static const uint8_t opcodes[] = {PSC_RC_WRITE_FIRST, PSC_RC_WRITE_MIDDLE, PSC_RC_WRITE_LAST};
    struct fixture *fixture = *state;
    const struct psc_target_write write = {
        .source = fixture->source, .bytes = 2 * MTU + 1, .va = VA, .rkey = 7};
    const struct psc_header ack = {.opcode = PSC_RC_ACK, .psn = 1, .syndrome = PSC_SYNDROME_ACK, .msn = 1};
    uint8_t frame[FRAME_MAX_BYTES];
    struct psc_packet packet;

    assert_true(psc_target_post(fixture->target, 0, &write, 1));
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 3; i++) {
            assert_true(next_packet(fixture, 1, &packet, frame));
            assert_int_equal(packet.opcode, opcodes[i]);
            assert_int_equal(packet.psn, (FIRST_PSN + i) & PSC_PSN_MASK);
            assert_int_equal(packet.payload_bytes, i < 2 ? MTU : 1);
            assert_memory_equal(packet.payload, fixture->source + i * MTU, packet.payload_bytes);
        }
        assert_memory_equal(packet.payload + 1, "\0\0\0", 3); /* the pad */
        assert_false(next_packet(fixture, 1, &packet, frame));
        if (round == 0)
            psc_target_expire(fixture->target, 1 + RETRANSMIT);
    }
    uint32_t bytes = whole_frame(&fixture->flow, &ack, NULL, 0, frame);
    psc_target_receive(fixture->target, frame, bytes, 2);
    struct psc_target_counters counters = psc_target_counters(fixture->target, 0);
    assert_int_equal(counters.acknowledged_writes, 1);
    assert_int_equal(counters.sent_packets_again, 3);
    assert_int_equal(counters.unacked_psn, 2);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_write_without_immediate_lands_where_it_says),
        TEST(the_last_byte_and_none_at_all_may_be_written),
        TEST(a_repeated_packet_is_acknowledged_and_not_executed),
        TEST(a_range_beyond_the_region_is_refused_before_its_first_byte),
        TEST(an_address_below_the_region_is_refused),
        TEST(a_last_that_is_not_the_residual_is_refused),
        TEST(our_write_carries_no_immediate_and_comes_again_until_it_is_acknowledged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
