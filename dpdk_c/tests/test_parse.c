/* The parser: frames and their verdicts. Each case is a known frame, a few changed bytes, and the reason for
 * which it must be dropped (or none); the frame lies in a heap buffer of exactly its size. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

/* Ethernet, without and with tags. */
#define TO_US      "020000000002 020000000001"
#define TO_ALL     "ffffffffffff 020000000001"
#define TO_OTHER   "020000000003 020000000001"
#define TO_GROUP   "01005e000001 020000000001"
#define L2         TO_US "0800"
#define L2_VID(id) TO_US "8100" id "0800"

/* Layer 3, offsets used below: IP 0, UDP 20, BTH 28, RETH 40, ImmDt 56, payload 60, pad 73, ICRC 76. */
#define WRITE                                                                                                \
    "4500005012344000401114670a0000010a000002 c12312b7003c0000 0bf0ffff0000012380fffffe"                     \
    "00007f001234567800abcd120000000d deadbeef 68656c6c6f2c20776f726c6421 000000 533d8665"
#define WRITE_BYTES 80
#define ACK                                                                                                  \
    "4500003012344000401114870a0000010a000002 c12312b7001c0000 1140ffff0000045600fffffe 1f000007 c7bb9c10"
#define CNP                                                                                                  \
    "456a003c00004000401126450a0000010a000002 c12312b700280000 8140ffff4000045600000000"                     \
    "00000000000000000000000000000000 fdf4bc7d"
#define ACK_V6                                                                                               \
    "60000000001c114020010db800000000000000000000000120010db8000000000000000000000002"                       \
    "c12312b7001c0000 1140ffff0000045600fffffe 1f000007 00000000"
#define ACK_V6_MAPPED                                                                                        \
    "60000000001c114000000000000000000000ffff0a00000100000000000000000000ffff0a000002"                       \
    "c12312b7001c0000 1140ffff0000045600fffffe 1f000007 00000000"
#define PING "45000020000040004001 26db 0a0000010a000002 0800 0000 00010002 61626364"
#define ARP  "0001 0800 06 04 0001 020000000001 0a000001 000000000000 0a000002"

struct edit {
    uint16_t at; /* offset in layer 3 */
    uint8_t value;
};

struct verdict_case {
    const char *what;
    const char *l2, *l3;
    uint32_t cut_bytes;   /* off the end */
    struct edit edits[8]; /* up to {0, 0} */
    bool fix_ip_checksum; /* after the edits, so that a later check is what drops the frame */
    enum psc_frame_kind kind;
    enum psc_drop why;
};

#define DROPPED(reason) .kind = PSC_FRAME_DROP, .why = (reason)
#define TAKEN(k)        .kind = (k), .why = PSC_DROP_NONE
#define CHECKSUM        .fix_ip_checksum = true

static const struct verdict_case v4_cases[] = {
    {"WRITE", L2, WRITE, TAKEN(PSC_FRAME_ROCE)},
    {"ACK", L2, ACK, TAKEN(PSC_FRAME_ROCE)},
    {"CNP", L2, CNP, TAKEN(PSC_FRAME_ROCE)},
    {"ARP to us", TO_US "0806", ARP, TAKEN(PSC_FRAME_NEIGHBOUR)},
    {"ARP to everyone", TO_ALL "0806", ARP, TAKEN(PSC_FRAME_NEIGHBOUR)},
    {"echo request", L2, PING, CHECKSUM, TAKEN(PSC_FRAME_PING)},

    /* 1: MAC and VLAN */
    {"no frame at all", "", "", DROPPED(PSC_DROP_RUNT)},
    {"half an Ethernet header", "020000000002 0200", "", DROPPED(PSC_DROP_RUNT)},
    {"Ethernet header alone", L2, "", DROPPED(PSC_DROP_RUNT)},
    {"another MAC", TO_OTHER "0800", WRITE, DROPPED(PSC_DROP_FOREIGN_MAC)},
    {"group MAC", TO_GROUP "0800", WRITE, DROPPED(PSC_DROP_FOREIGN_MAC)},
    {"RoCE to everyone", TO_ALL "0800", WRITE, DROPPED(PSC_DROP_FOREIGN_MAC)},
    {"half a tag", TO_US "8100 00", "", DROPPED(PSC_DROP_RUNT)},
    {"VID 0, priority 5", L2_VID("a000"), WRITE, TAKEN(PSC_FRAME_ROCE)},
    {"foreign VLAN", L2_VID("0064"), WRITE, DROPPED(PSC_DROP_VLAN)},
    {"two tags", TO_US "8100 0000 8100 0000 0800", WRITE, DROPPED(PSC_DROP_VLAN)},
    {"QinQ", TO_US "88a8 0000 8100 0000 0800", WRITE, DROPPED(PSC_DROP_VLAN)},
    {"QinQ inside a tag", TO_US "8100 0000 88a8 0000 0800", WRITE, DROPPED(PSC_DROP_VLAN)},
    {"LLDP", TO_US "88cc", WRITE, DROPPED(PSC_DROP_ETHERTYPE)},
    {"802.3 length instead of a type", TO_US "0050", WRITE, DROPPED(PSC_DROP_ETHERTYPE)},
    {"ARP one byte short", TO_US "0806", ARP, .cut_bytes = 1, DROPPED(PSC_DROP_RUNT)},

    /* 2: IPv4 */
    {"IP header one byte short", L2, WRITE, .cut_bytes = WRITE_BYTES - 19, DROPPED(PSC_DROP_RUNT)},
    {"version 5", L2, WRITE, 0, {{0, 0x55}}, CHECKSUM, DROPPED(PSC_DROP_IP_HEADER)},
    {"IHL 4", L2, WRITE, 0, {{0, 0x44}}, CHECKSUM, DROPPED(PSC_DROP_IP_HEADER)},
    {"IP options", L2, WRITE, 0, {{0, 0x46}}, CHECKSUM, DROPPED(PSC_DROP_IP_HEADER)},
    {"total length below its header", L2, WRITE, 0, {{3, 19}}, CHECKSUM, DROPPED(PSC_DROP_IP_HEADER)},
    {"total length beyond the frame", L2, WRITE, 0, {{3, 0x51}}, CHECKSUM, DROPPED(PSC_DROP_RUNT)},
    {"total length 65535", L2, WRITE, 0, {{2, 0xff}, {3, 0xff}}, CHECKSUM, DROPPED(PSC_DROP_RUNT)},
    {"frame one byte short", L2, WRITE, .cut_bytes = 1, DROPPED(PSC_DROP_RUNT)},
    {"wrong IP checksum", L2, WRITE, 0, {{10, 0x15}}, DROPPED(PSC_DROP_IP_HEADER)},
    {"more fragments", L2, WRITE, 0, {{6, 0x20}}, CHECKSUM, DROPPED(PSC_DROP_IP_FRAGMENT)},
    {"fragment offset 1", L2, WRITE, 0, {{7, 1}}, CHECKSUM, DROPPED(PSC_DROP_IP_FRAGMENT)},
    {"fragment offset 4096", L2, WRITE, 0, {{6, 0x10}}, CHECKSUM, DROPPED(PSC_DROP_IP_FRAGMENT)},
    {"DF clear", L2, WRITE, 0, {{6, 0}}, CHECKSUM, TAKEN(PSC_FRAME_ROCE)},
    {"another address", L2, WRITE, 0, {{19, 3}}, CHECKSUM, DROPPED(PSC_DROP_FOREIGN_IP)},
    {"TCP", L2, WRITE, 0, {{9, 6}}, CHECKSUM, DROPPED(PSC_DROP_NOT_ROCE)},
    {"echo reply", L2, PING, 0, {{20, 0}}, CHECKSUM, DROPPED(PSC_DROP_NOT_ROCE)},
    {"timestamp request", L2, PING, 0, {{20, 13}}, CHECKSUM, DROPPED(PSC_DROP_NOT_ROCE)},
    {"echo request with a code", L2, PING, 0, {{21, 1}}, CHECKSUM, DROPPED(PSC_DROP_NOT_ROCE)},
    {"ICMP of 7 bytes", L2, PING, 0, {{3, 27}}, CHECKSUM, DROPPED(PSC_DROP_NOT_ROCE)},

    {"mapped addresses inside IPv6", TO_US "86dd", ACK_V6_MAPPED, DROPPED(PSC_DROP_IP_HEADER)},
    {"IPv6 to an IPv4 lane", TO_US "86dd", ACK_V6, DROPPED(PSC_DROP_FOREIGN_IP)},
    {"Ethernet padding", L2, ACK "000000000000000000000000", TAKEN(PSC_FRAME_ROCE)},

    /* 3: UDP */
    {"IP header and no UDP", L2, WRITE, .cut_bytes = WRITE_BYTES - 20, .edits = {{3, 20}}, CHECKSUM,
     DROPPED(PSC_DROP_UDP_LENGTH)},
    {"IP header and no ICMP", L2, PING, .cut_bytes = 12, .edits = {{3, 20}}, CHECKSUM,
     DROPPED(PSC_DROP_NOT_ROCE)},
    {"UDP header one byte short", L2, WRITE, 0, {{3, 27}}, CHECKSUM, DROPPED(PSC_DROP_UDP_LENGTH)},
    {"another port", L2, WRITE, 0, {{23, 0xb8}}, DROPPED(PSC_DROP_NOT_ROCE)},
    {"UDP longer than IP", L2, WRITE, 0, {{25, 0x3d}}, DROPPED(PSC_DROP_UDP_LENGTH)},
    {"UDP shorter than IP", L2, WRITE, 0, {{25, 0x38}}, DROPPED(PSC_DROP_UDP_LENGTH)},
    {"UDP length 0", L2, WRITE, 0, {{25, 0}}, DROPPED(PSC_DROP_UDP_LENGTH)},
    {"UDP length 20: no ICRC", L2, ACK, 0, {{3, 40}, {25, 20}}, CHECKSUM, DROPPED(PSC_DROP_UDP_LENGTH)},
    {"UDP length 24: no AETH", L2, ACK, 0, {{3, 44}, {25, 24}}, CHECKSUM, DROPPED(PSC_DROP_BTH)},
    {"UDP checksum present: the ICRC covers more", L2, WRITE, 0, {{26, 1}}, TAKEN(PSC_FRAME_ROCE)},

    /* 4: opcode row, transport version */
    {"reserved RC opcode", L2, WRITE, 0, {{28, 0x15}}, DROPPED(PSC_DROP_OPCODE)},
    {"UC WRITE_ONLY", L2, WRITE, 0, {{28, 0x2a}}, DROPPED(PSC_DROP_OPCODE)},
    {"opcode FF in a packet too short for any",
     L2,
     ACK,
     0,
     {{3, 44}, {25, 24}, {28, 0xff}},
     CHECKSUM,
     DROPPED(PSC_DROP_OPCODE)},
    {"transport version 1", L2, WRITE, 0, {{29, 0xf1}}, DROPPED(PSC_DROP_BTH)},

    /* 5: lengths */
    {"length not a multiple of 4", L2, WRITE, 0, {{3, 0x4f}, {25, 0x3b}}, CHECKSUM, DROPPED(PSC_DROP_BTH)},
    {"ACK with pad", L2, ACK, 0, {{29, 0x70}}, DROPPED(PSC_DROP_BTH)},
    {"ACK with a word of pad",
     L2,
     ACK "00000000",
     0,
     {{3, 52}, {25, 32}, {29, 0x70}},
     CHECKSUM,
     DROPPED(PSC_DROP_BTH)},
    {"ACK with payload", L2, WRITE, 0, {{28, 0x11}, {29, 0x40}}, DROPPED(PSC_DROP_BTH)},
    {"CNP with payload", L2, WRITE, 0, {{28, 0x81}, {29, 0x40}}, DROPPED(PSC_DROP_BTH)},
    {"CNP without its reserved bytes", L2, ACK, 0, {{28, 0x81}}, DROPPED(PSC_DROP_BTH)},
    {"WRITE_ONLY_IMM one word short of its headers",
     L2,
     WRITE,
     0,
     {{3, 60}, {25, 40}, {29, 0x40}},
     CHECKSUM,
     DROPPED(PSC_DROP_BTH)},
    {"WRITE without payload", L2, WRITE, 0, {{3, 64}, {25, 44}, {29, 0x40}}, CHECKSUM, TAKEN(PSC_FRAME_ROCE)},
    {"WRITE without payload, pad 3", L2, WRITE, 0, {{3, 64}, {25, 44}}, CHECKSUM, DROPPED(PSC_DROP_BTH)},
    {"WRITE of one byte, pad 3", L2, WRITE, 0, {{3, 68}, {25, 48}}, CHECKSUM, TAKEN(PSC_FRAME_ROCE)},
    {"SEND: refused by the responder, not here", L2, WRITE, 0, {{28, 0x04}}, TAKEN(PSC_FRAME_ROCE)},
    {"COMPARE_SWAP one word short",
     L2,
     WRITE,
     0,
     {{3, 68}, {25, 48}, {28, 0x13}, {29, 0x40}},
     CHECKSUM,
     DROPPED(PSC_DROP_BTH)},
    {"COMPARE_SWAP",
     L2,
     WRITE,
     0,
     {{3, 72}, {25, 52}, {28, 0x13}, {29, 0x40}},
     CHECKSUM,
     TAKEN(PSC_FRAME_ROCE)},

    /* what is ignored, or judged when the QP is known */
    {"another P_Key", L2, WRITE, 0, {{31, 0xfe}}, TAKEN(PSC_FRAME_ROCE)},
    {"limited member", L2, WRITE, 0, {{30, 0x7f}}, TAKEN(PSC_FRAME_ROCE)},
    {"MigReq 0, SE 0", L2, WRITE, 0, {{29, 0x30}}, TAKEN(PSC_FRAME_ROCE)},
    {"FECN, BECN and reserved bits", L2, WRITE, 0, {{32, 0xff}, {36, 0xff}}, TAKEN(PSC_FRAME_ROCE)},
    {"TTL 1", L2, WRITE, 0, {{8, 1}}, CHECKSUM, TAKEN(PSC_FRAME_ROCE)},
};

static const struct verdict_case vlan_cases[] = {
    {"own VLAN", L2_VID("0064"), WRITE, TAKEN(PSC_FRAME_ROCE)},
    {"own VLAN, priority 7", L2_VID("e064"), WRITE, TAKEN(PSC_FRAME_ROCE)},
    {"VID 0", L2_VID("0000"), WRITE, TAKEN(PSC_FRAME_ROCE)},
    {"untagged", L2, WRITE, TAKEN(PSC_FRAME_ROCE)},
    {"foreign VLAN", L2_VID("0065"), WRITE, DROPPED(PSC_DROP_VLAN)},
};

/* Offsets: IP 0, UDP 40, BTH 48. */
#define L2_V6 TO_US "86dd"
static const struct verdict_case v6_cases[] = {
    {"ACK", L2_V6, ACK_V6, TAKEN(PSC_FRAME_ROCE)},
    {"IPv4 to an IPv6 lane", L2, ACK, DROPPED(PSC_DROP_FOREIGN_IP)},
    {"header one byte short", L2_V6, ACK_V6, .cut_bytes = 29, DROPPED(PSC_DROP_RUNT)},
    {"frame one byte short", L2_V6, ACK_V6, .cut_bytes = 1, DROPPED(PSC_DROP_RUNT)},
    {"version 4", L2_V6, ACK_V6, 0, {{0, 0x40}}, DROPPED(PSC_DROP_IP_HEADER)},
    {"hop-by-hop options", L2_V6, ACK_V6, 0, {{6, 0}}, DROPPED(PSC_DROP_IP_HEADER)},
    {"routing header", L2_V6, ACK_V6, 0, {{6, 43}}, DROPPED(PSC_DROP_IP_HEADER)},
    {"fragment header", L2_V6, ACK_V6, 0, {{6, 44}}, DROPPED(PSC_DROP_IP_FRAGMENT)},
    {"ICMPv6", L2_V6, ACK_V6, 0, {{6, 58}}, DROPPED(PSC_DROP_NOT_ROCE)},
    {"another address", L2_V6, ACK_V6, 0, {{39, 3}}, DROPPED(PSC_DROP_FOREIGN_IP)},
    {"UDP shorter than IP", L2_V6, ACK_V6, 0, {{45, 0x18}}, DROPPED(PSC_DROP_UDP_LENGTH)},
    {"jumbo payload", L2_V6, ACK_V6, 0, {{5, 0}}, DROPPED(PSC_DROP_UDP_LENGTH)},
    {"transport version 1", L2_V6, ACK_V6, 0, {{49, 0x41}}, DROPPED(PSC_DROP_BTH)},
};

static uint32_t make_frame(const struct verdict_case *c, uint8_t *frame)
{
    uint32_t l2_bytes = unhex(c->l2, frame);
    uint8_t *l3 = frame + l2_bytes;
    uint32_t bytes = l2_bytes + unhex(c->l3, l3);
    for (const struct edit *e = c->edits; e->at != 0 || e->value != 0; e++)
        l3[e->at] = e->value;
    if (c->fix_ip_checksum)
        put_checksum(l3, 20, l3 + 10);
    return bytes - c->cut_bytes;
}

static void check_cases(const struct verdict_case *cases, size_t n, const struct psc_local *local,
                        bool seen[])
{
    for (size_t i = 0; i < n; i++) {
        uint8_t buffer[FRAME_MAX_BYTES];
        uint32_t bytes = make_frame(&cases[i], buffer);
        uint8_t *frame = exact_copy(buffer, bytes);
        struct psc_packet packet;
        enum psc_drop why = PSC_DROP_COUNT;
        enum psc_frame_kind kind = psc_parse(frame, bytes, local, &packet, &why);
        if (kind != cases[i].kind || why != cases[i].why)
            fail_msg("%s: kind %d, reason %d instead of kind %d, reason %d", cases[i].what, (int)kind,
                     (int)why, (int)cases[i].kind, (int)cases[i].why);
        seen[why] = true;
        free(frame);
    }
}

#define CHECK_CASES(cases, local, seen) check_cases(cases, sizeof(cases) / sizeof *(cases), local, seen)

/* Every reason that the parser may give is given at least once. */
static void verdicts(void **state)
{
    static const enum psc_drop parsers[] = {
        PSC_DROP_RUNT,       PSC_DROP_FOREIGN_MAC, PSC_DROP_VLAN,       PSC_DROP_ETHERTYPE,
        PSC_DROP_IP_HEADER,  PSC_DROP_IP_FRAGMENT, PSC_DROP_FOREIGN_IP, PSC_DROP_NOT_ROCE,
        PSC_DROP_UDP_LENGTH, PSC_DROP_OPCODE,      PSC_DROP_BTH,
    };
    bool seen[PSC_DROP_COUNT] = {false};
    (void)state;
    CHECK_CASES(v4_cases, &local_v4, seen);
    CHECK_CASES(vlan_cases, &local_v4_vlan100, seen);
    CHECK_CASES(v6_cases, &local_v6, seen);
    for (size_t i = 0; i < sizeof parsers / sizeof *parsers; i++)
        if (!seen[parsers[i]])
            fail_msg("no case for drop reason %d", (int)parsers[i]);
}

static void fields_of_a_write(void **state)
{
    uint8_t frame[FRAME_MAX_BYTES];
    struct psc_packet packet;
    enum psc_drop why;
    (void)state;
    uint32_t bytes = unhex(L2 WRITE, frame);
    bytes += unhex("ffffffffffff", frame + bytes); /* Ethernet padding: in no field */
    assert_int_equal(psc_parse(frame, bytes, &local_v4, &packet, &why), PSC_FRAME_ROCE);
    assert_ptr_equal(packet.row, &psc_opcode_rows[PSC_RC_WRITE_ONLY_IMM]);
    assert_int_equal(packet.opcode, PSC_RC_WRITE_ONLY_IMM);
    assert_true(psc_packet_is_from(&packet, &flow_v4.src));
    assert_false(psc_packet_is_from(&packet, &flow_v4.dst));
    assert_false(psc_packet_is_from(&packet, &flow_v6.src));
    assert_int_equal(packet.p_key, 0xffff);
    assert_true(packet.ack_req);
    assert_false(packet.congestion_experienced);
    assert_int_equal(packet.dest_qpn, 0x123);
    assert_int_equal(packet.psn, 0xfffffe);
    assert_true(packet.va == 0x00007f0012345678u);
    assert_int_equal(packet.rkey, 0x00abcd12);
    assert_int_equal(packet.dma_len, 13);
    assert_true(packet.imm == 0xdeadbeefu);
    assert_int_equal(packet.payload_bytes, 13);
    assert_memory_equal(packet.payload, "hello, world!", 13);
    assert_ptr_equal(packet.ip_header, frame + 14);
    assert_int_equal(packet.icrc_bytes, 76);
    assert_true(psc_icrc_ok(&packet));
    frame[14 + 60] ^= 1;
    assert_false(psc_icrc_ok(&packet));
}

static void fields_of_an_ack(void **state)
{
    uint8_t frame[FRAME_MAX_BYTES];
    struct psc_packet packet;
    enum psc_drop why;
    (void)state;
    uint32_t bytes = unhex(TO_US "8100 0000 0800" ACK, frame);
    assert_int_equal(psc_parse(frame, bytes, &local_v4, &packet, &why), PSC_FRAME_ROCE);
    assert_int_equal(packet.opcode, PSC_RC_ACK);
    assert_false(packet.ack_req);
    assert_int_equal(packet.syndrome, PSC_SYNDROME_ACK);
    assert_int_equal(packet.msn, 7);
    assert_int_equal(packet.payload_bytes, 0);
    assert_true(psc_icrc_ok(&packet));
}

static void congestion_mark_is_seen(void **state)
{
    (void)state;
    for (uint8_t ecn = 0; ecn < 4; ecn++) {
        struct verdict_case v4 = {
            .l2 = L2, .l3 = WRITE, .edits = {{1, (uint8_t)(0x68 | ecn)}}, .fix_ip_checksum = true};
        struct verdict_case v6 = {
            .l2 = L2_V6, .l3 = ACK_V6, .edits = {{0, 0x66}, {1, (uint8_t)(0x80 | ecn << 4)}}};
        uint8_t frame[FRAME_MAX_BYTES];
        struct psc_packet packet;
        enum psc_drop why;
        assert_int_equal(psc_parse(frame, make_frame(&v4, frame), &local_v4, &packet, &why), PSC_FRAME_ROCE);
        assert_int_equal(packet.congestion_experienced, ecn == 3);
        assert_int_equal(psc_parse(frame, make_frame(&v6, frame), &local_v6, &packet, &why), PSC_FRAME_ROCE);
        assert_int_equal(packet.congestion_experienced, ecn == 3);
    }
}

/* A frame cut anywhere is a runt, and nothing beyond its end is read. */
static void every_truncation_is_dropped(void **state)
{
    static const char *const frames[] = {L2 WRITE, L2 ACK, L2 CNP, TO_US "8100 0000 0800" WRITE,
                                         TO_US "0806" ARP};
    (void)state;
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        uint8_t whole[FRAME_MAX_BYTES];
        uint32_t whole_bytes = unhex(frames[i], whole);
        for (uint32_t bytes = 0; bytes < whole_bytes; bytes++) {
            struct psc_packet packet;
            enum psc_drop why;
            uint8_t *frame = exact_copy(whole, bytes);
            assert_int_equal(psc_parse(frame, bytes, &local_v4, &packet, &why), PSC_FRAME_DROP);
            assert_int_equal(why, PSC_DROP_RUNT);
            free(frame);
        }
    }
}

/* Damaged headers with lengths and checksum mended, so that the damage gets deep: whatever is taken stays
 * inside the frame, and says so consistently. */
static void damaged_frames_stay_inside_their_bytes(void **state)
{
    uint32_t seed = 1, taken = 0;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct verdict_case damaged = {.l2 = L2, .l3 = WRITE, .fix_ip_checksum = true};
        uint32_t present_bytes = 44 + next_random(&seed) % (WRITE_BYTES - 43);
        uint32_t udp_bytes = present_bytes - 20;
        damaged.cut_bytes = WRITE_BYTES - present_bytes;
        damaged.edits[0] = (struct edit){3, (uint8_t)present_bytes};
        damaged.edits[1] = (struct edit){25, (uint8_t)udp_bytes};
        damaged.edits[2] = (struct edit){28, (uint8_t)(next_random(&seed) % 32)};
        damaged.edits[3] = (struct edit){29, (uint8_t)(next_random(&seed) & 0xf0)};
        damaged.edits[4] =
            (struct edit){(uint16_t)(20 + next_random(&seed) % 60), (uint8_t)next_random(&seed)};
        uint8_t buffer[FRAME_MAX_BYTES];
        uint32_t bytes = make_frame(&damaged, buffer);
        uint8_t *frame = exact_copy(buffer, bytes);
        struct psc_packet packet;
        enum psc_drop why;
        if (psc_parse(frame, bytes, &local_v4, &packet, &why) == PSC_FRAME_ROCE) {
            uint32_t pad_bytes = frame[14 + 29] >> 4 & 3;
            taken++;
            assert_ptr_equal(packet.payload + packet.payload_bytes + pad_bytes, frame + bytes - 4);
            assert_ptr_equal(packet.ip_header + packet.icrc_bytes, frame + bytes - 4);
            assert_in_range(packet.payload_bytes, 0, WRITE_BYTES - 44);
            assert_false(psc_icrc_ok(&packet)); /* reads all of it */
        }
        free(frame);
    }
    assert_in_range(taken, 1000, 20000); /* the damage is not so crude that nothing gets through */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts),
        cmocka_unit_test(fields_of_a_write),
        cmocka_unit_test(fields_of_an_ack),
        cmocka_unit_test(congestion_mark_is_seen),
        cmocka_unit_test(every_truncation_is_dropped),
        cmocka_unit_test(damaged_frames_stay_inside_their_bytes),
    };
    return cmocka_run_group_tests_name("parse", tests, NULL, NULL);
}
