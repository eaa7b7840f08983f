/* The builder: its bytes against frames written by hand, and every opcode through builder and parser and
 * back. */
#include "frame.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

static const struct psc_header full_header = {.ack_req = true,
                                              .psn = 0xfffffe,
                                              .va = 0x123456789abcdef0u,
                                              .rkey = 0xcafe1234u,
                                              .dma_len = 0x01020304,
                                              .imm = 0xdeadbeefu,
                                              .syndrome = PSC_SYNDROME_NAK_SEQUENCE,
                                              .msn = 0x0a0b0c};

static void check_bytes(const struct psc_flow *flow, const struct psc_header *header, const char *payload,
                        const char *expected_hex)
{
    uint8_t expected[FRAME_MAX_BYTES], got[FRAME_MAX_BYTES];
    uint32_t expected_bytes = unhex(expected_hex, expected);
    uint32_t bytes = whole_frame(flow, header, (const uint8_t *)payload, (uint32_t)strlen(payload), got);
    assert_int_equal(bytes, expected_bytes);
    assert_memory_equal(got, expected, bytes);
}

/* IP checksums and ICRCs by scapy and its contrib.roce. */
static void ipv4_ack(void **state)
{
    struct psc_header ack = {.opcode = PSC_RC_ACK, .psn = 0xfffffe, .syndrome = PSC_SYNDROME_ACK, .msn = 7};
    (void)state;
    check_bytes(&flow_v4, &ack, "",
                "020000000002 020000000001 0800"
                "456a 0030 0000 4000 40 11 2651 0a000001 0a000002 c123 12b7 001c 0000"
                "11 40 ffff 00 000123 00 fffffe 1f 000007 f70e1088");
}

/* Every sum that there is, both zeros of it too. */
static void ipv4_checksum_of_any_header(void **state)
{
    struct psc_header ack = {.opcode = PSC_RC_ACK};
    struct psc_flow flow = flow_v4;
    uint8_t frame[PSC_HEADER_MAX], header[20];
    uint32_t crc;

    (void)state;
    for (uint32_t address = 0; address <= 0xffff; address++) {
        flow.dst.b[14] = (uint8_t)(address >> 8);
        flow.dst.b[15] = (uint8_t)address;
        psc_build(&flow, &ack, 0, frame, &crc);
        memcpy(header, frame + 14, sizeof header);
        memset(header + 10, 0, 2);
        uint16_t checksum = psc_internet_checksum(header, sizeof header);
        assert_int_equal(frame[14 + 10] << 8 | frame[14 + 11], checksum);
    }
}

static void ipv4_cnp(void **state)
{
    struct psc_header cnp = full_header;
    (void)state;
    cnp.opcode = PSC_CNP; /* carries neither PSN nor AckReq, whatever the header says */
    check_bytes(&flow_v4, &cnp, "",
                "020000000002 020000000001 0800"
                "456a 003c 0000 4000 40 11 2645 0a000001 0a000002 c123 12b7 0028 0000"
                "81 40 ffff 40 000123 00 000000 00000000 00000000 00000000 00000000 1f76f32a");
}

static void tagged_ipv6_write(void **state)
{
    struct psc_flow tagged = flow_v6;
    struct psc_header write = full_header;
    (void)state;
    tagged.vlan = 100;
    write.opcode = PSC_RC_WRITE_ONLY_IMM;
    write.dma_len = 13;
    check_bytes(&tagged, &write, "hello, world!",
                "020000000002 020000000001 8100 0064 86dd"
                "66a00000 003c 11 40 20010db8000000000000000000000001 20010db8000000000000000000000002"
                "c123 12b7 003c 0000 0b 70 ffff 00 000123 80 fffffe"
                "123456789abcdef0 cafe1234 0000000d deadbeef 68656c6c6f2c20776f726c6421 000000 bc899230");
}

static void check_round_trip(const struct psc_flow *flow, const struct psc_local *local, uint8_t opcode,
                             uint32_t payload_bytes)
{
    uint8_t payload[32], buffer[FRAME_MAX_BYTES];
    struct psc_header header = full_header;
    struct psc_packet packet = {0}; /* the parser leaves what the opcode does not carry */
    enum psc_drop why;
    header.opcode = opcode;
    for (uint32_t i = 0; i < payload_bytes; i++)
        payload[i] = (uint8_t)(i + 1);
    uint32_t bytes = whole_frame(flow, &header, payload, payload_bytes, buffer);
    uint8_t *frame = exact_copy(buffer, bytes);
    enum psc_frame_kind kind = psc_parse(frame, bytes, local, &packet, &why);
    if (kind != PSC_FRAME_ROCE || !psc_icrc_ok(&packet))
        fail_msg("opcode %02x with %u bytes: kind %d, reason %d", opcode, payload_bytes, (int)kind, (int)why);

    uint32_t flags = packet.row->flags;
    bool cnp = (flags & PSC_OPF_CNP) != 0;
    assert_int_equal(packet.opcode, opcode);
    assert_true(psc_packet_is_from(&packet, &flow->src));
    assert_int_equal(packet.p_key, 0xffff);
    assert_int_equal(packet.dest_qpn, flow->dest_qpn);
    assert_int_equal(packet.psn, cnp ? 0 : header.psn);
    assert_int_equal(packet.ack_req, !cnp);
    assert_true(packet.va == (flags & PSC_OPF_RETH ? header.va : 0));
    assert_true(packet.rkey == (flags & PSC_OPF_RETH ? header.rkey : 0));
    assert_true(packet.dma_len == (flags & PSC_OPF_RETH ? header.dma_len : 0));
    assert_true(packet.imm == (flags & PSC_OPF_IMM ? header.imm : 0));
    assert_int_equal(packet.syndrome, flags & PSC_OPF_AETH ? header.syndrome : 0);
    assert_int_equal(packet.msn, flags & PSC_OPF_AETH ? header.msn : 0);
    assert_int_equal(packet.payload_bytes, payload_bytes);
    if (payload_bytes > 0)
        assert_memory_equal(packet.payload, payload, payload_bytes);
    free(frame);
}

static void every_opcode_comes_back(void **state)
{
    (void)state;
    for (uint32_t opcode = 0; opcode < 256; opcode++) {
        uint32_t flags = psc_opcode_rows[opcode].flags;
        uint32_t payload_max = flags & PSC_OPF_PAYLOAD ? 9 : 0;
        for (uint32_t payload_bytes = 0; flags != 0 && payload_bytes <= payload_max; payload_bytes++) {
            check_round_trip(&flow_v4, &local_v4, (uint8_t)opcode, payload_bytes);
            check_round_trip(&flow_v6, &local_v6, (uint8_t)opcode, payload_bytes);
            struct psc_flow tagged = flow_v4;
            tagged.vlan = 100;
            check_round_trip(&tagged, &local_v4_vlan100, (uint8_t)opcode, payload_bytes);
        }
    }
}

/* The largest header that we send, and one byte more would not be noticed elsewhere. */
static void headers_fit_their_buffer(void **state)
{
    (void)state;
    for (uint32_t opcode = 0; opcode < 256; opcode++) {
        struct psc_flow tagged = flow_v6;
        struct psc_header header = full_header;
        uint32_t crc;
        tagged.vlan = 100;
        header.opcode = (uint8_t)opcode;
        if (psc_opcode_rows[opcode].flags == 0)
            continue;
        uint8_t *out = malloc(PSC_HEADER_MAX);
        assert_non_null(out);
        uint32_t bytes = psc_build(&tagged, &header, 0, out, &crc);
        assert_int_equal(bytes, 14 + 4 + 40 + 8 + psc_opcode_rows[opcode].header_bytes);
        assert_in_range(bytes, 1, PSC_HEADER_MAX);
        free(out);
    }
}

/* What a template makes is what psc_build makes, ICRC included, whatever changes from packet to packet. */
static void check_middle(const struct psc_flow *flow, uint32_t payload_bytes, uint32_t psn, bool ack_req)
{
    const struct psc_header header = {.opcode = PSC_RC_WRITE_MIDDLE, .psn = psn, .ack_req = ack_req};
    struct psc_crc32_shift past_payload, past_psn;
    struct psc_template made;
    uint8_t payload[4096], expected[FRAME_MAX_BYTES], got[PSC_HEADER_MAX], icrc[4];
    uint32_t crc;

    for (uint32_t i = 0; i < payload_bytes; i++)
        payload[i] = (uint8_t)(i * 7 + psn);
    uint32_t expected_bytes = whole_frame(flow, &header, payload, payload_bytes, expected);
    psc_crc32_shift_init(&past_payload, payload_bytes);
    psc_crc32_shift_init(&past_psn, PSC_PSN_WORD_BYTES + payload_bytes);
    psc_template_init(&made, flow, payload_bytes, &past_payload);
    uint32_t bytes =
        psc_build_middle(&made, psn, ack_req, &past_psn, psc_crc32(0, payload, payload_bytes), got, &crc);
    psc_icrc_finish(crc, icrc);
    assert_int_equal(bytes + payload_bytes + sizeof icrc, expected_bytes);
    assert_memory_equal(got, expected, bytes);
    assert_memory_equal(icrc, expected + bytes + payload_bytes, sizeof icrc);
}

static void a_middle_from_a_template_is_what_is_built(void **state)
{
    static const uint32_t psns[] = {0, 1, 0x800000, 0xfffffe, 0xffffff, 0x1000003};

    (void)state;
    for (uint32_t mtu = 256; mtu <= 4096; mtu *= 2)
        for (size_t i = 0; i < sizeof psns / sizeof psns[0]; i++) {
            struct psc_flow tagged = flow_v6;
            tagged.vlan = 100;
            check_middle(&flow_v4, mtu, psns[i], i % 2 == 0);
            check_middle(&tagged, mtu, psns[i], i % 2 == 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ipv4_ack),
        cmocka_unit_test(ipv4_checksum_of_any_header),
        cmocka_unit_test(ipv4_cnp),
        cmocka_unit_test(tagged_ipv6_write),
        cmocka_unit_test(every_opcode_comes_back),
        cmocka_unit_test(headers_fit_their_buffer),
        cmocka_unit_test(a_middle_from_a_template_is_what_is_built),
    };
    return cmocka_run_group_tests_name("build", tests, NULL, NULL);
}
