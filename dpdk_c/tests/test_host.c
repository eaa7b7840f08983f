/* ARP and ping: what the lane answers, asks and learns, byte by byte, and what it must not answer. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TO_ALL "ffffffffffff 020000000001"
#define TO_US  "020000000002 020000000001"

#define ARP_FIXED   "0001 0800 06 04"
#define ARP_REQUEST ARP_FIXED "0001 020000000001 0a000001 000000000000 0a000002"
#define PADDING_18  "000000000000000000000000000000000000"
#define PADDING_14  "0000000000000000000000000000"

/* Answer into a buffer of the promised size; returns the answer's length. */
static uint32_t answer(const uint8_t *request, uint32_t bytes, const struct psc_local *local, uint8_t *reply)
{
    uint32_t room_bytes = bytes > PSC_HOST_FRAME_MAX ? bytes : PSC_HOST_FRAME_MAX;
    uint8_t *frame = exact_copy(request, bytes);
    uint8_t *out = malloc(room_bytes);
    assert_non_null(out);
    memset(out, 0xa5, room_bytes);
    uint32_t reply_bytes = psc_host_answer(frame, bytes, local, out);
    assert_in_range(reply_bytes, 0, room_bytes);
    memcpy(reply, out, reply_bytes);
    free(out);
    free(frame);
    return reply_bytes;
}

static uint32_t answer_hex(const char *request_hex, const struct psc_local *local, uint8_t *reply)
{
    uint8_t request[FRAME_MAX_BYTES];
    return answer(request, unhex(request_hex, request), local, reply);
}

static void check_answer(const char *request_hex, const struct psc_local *local, const char *expected_hex)
{
    uint8_t reply[FRAME_MAX_BYTES], expected[FRAME_MAX_BYTES];
    uint32_t expected_bytes = unhex(expected_hex, expected);
    assert_int_equal(answer_hex(request_hex, local, reply), expected_bytes);
    assert_memory_equal(reply, expected, expected_bytes);
}

static void arp_request_is_answered(void **state)
{
    (void)state;
    const char *reply = "020000000001 020000000002 0806" ARP_FIXED
                        "0002 020000000002 0a000002 020000000001 0a000001" PADDING_18;
    check_answer(TO_ALL "0806" ARP_REQUEST, &local_v4, reply);
    check_answer(TO_US "0806" ARP_REQUEST PADDING_18, &local_v4, reply);
}

static void tagged_arp_request_is_answered_tagged(void **state)
{
    (void)state;
    check_answer(TO_ALL "8100 a064 0806" ARP_REQUEST, &local_v4_vlan100,
                 "020000000001 020000000002 8100 a064 0806" ARP_FIXED
                 "0002 020000000002 0a000002 020000000001 0a000001" PADDING_14);
}

/* RFC 5227: whoever probes for our address must hear that it is taken. */
static void address_probe_is_answered(void **state)
{
    (void)state;
    check_answer(TO_ALL "0806" ARP_FIXED "0001 020000000001 00000000 000000000000 0a000002", &local_v4,
                 "020000000001 020000000002 0806" ARP_FIXED
                 "0002 020000000002 0a000002 020000000001 00000000" PADDING_18);
}

static void other_arp_is_not_answered(void **state)
{
    static const char *const frames[] = {
        TO_ALL "0806" ARP_FIXED
               "0001 020000000001 0a000001 000000000000 0a000003", /* somebody else's address */
        TO_US "0806" ARP_FIXED "0002 020000000001 0a000001 020000000002 0a000002", /* a reply */
        TO_ALL "0806 0006 0800 06 04 0001 020000000001 0a000001 000000000000 0a000002",
        TO_ALL "0806 0001 86dd 06 04 0001 020000000001 0a000001 000000000000 0a000002",
        TO_ALL "0806 0001 0800 08 04 0001 020000000001 0a000001 000000000000 0a000002",
        TO_ALL "0806 0001 0800 06 10 0001 020000000001 0a000001 000000000000 0a000002",
        TO_ALL "0806" ARP_FIXED
               "0001 ffffffffffff 0a000001 000000000000 0a000002", /* a sender that is a group */
        "ffffffffffff 010000000001 0806" ARP_REQUEST,
        "020000000003 020000000001 0806" ARP_REQUEST,
        TO_ALL "8100 0065 0806" ARP_REQUEST,
    };
    (void)state;
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        uint8_t reply[FRAME_MAX_BYTES];
        if (answer_hex(frames[i], &local_v4, reply) != 0)
            fail_msg("answered: %s", frames[i]);
    }
}

static void arp_is_asked(void **state)
{
    uint8_t got[64], expected[64];
    (void)state;
    uint32_t bytes = unhex("ffffffffffff 020000000002 0806" ARP_FIXED
                           "0001 020000000002 0a000002 000000000000 0a000001" PADDING_18,
                           expected);
    assert_int_equal(psc_neighbour_request(&local_v4, &flow_v4.src, got), bytes);
    assert_memory_equal(got, expected, bytes);
    bytes = unhex("ffffffffffff 020000000002 8100 0064 0806" ARP_FIXED
                  "0001 020000000002 0a000002 000000000000 0a000001" PADDING_14,
                  expected);
    assert_int_equal(psc_neighbour_request(&local_v4_vlan100, &flow_v4.src, got), bytes);
    assert_memory_equal(got, expected, bytes);
    assert_int_equal(psc_neighbour_request(&local_v4, &flow_v6.src, got), 0);
}

static bool learns(const char *frame_hex, const struct psc_local *local, struct psc_ip *ip,
                   struct psc_mac *mac)
{
    uint8_t buffer[FRAME_MAX_BYTES];
    uint32_t bytes = unhex(frame_hex, buffer);
    uint8_t *frame = exact_copy(buffer, bytes);
    bool learned = psc_neighbour_heard(frame, bytes, local, ip, mac);
    free(frame);
    return learned;
}

static void arp_sender_is_learned(void **state)
{
    static const char *const frames[] = {
        TO_ALL "0806" ARP_REQUEST,
        TO_US "0806" ARP_FIXED "0002 020000000001 0a000001 020000000002 0a000002" PADDING_18,
    };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct psc_ip ip;
        struct psc_mac mac;
        assert_true(learns(frames[i], &local_v4, &ip, &mac));
        assert_true(psc_ip_equal(&ip, &flow_v4.src));
        assert_memory_equal(mac.b, flow_v4.src_mac.b, 6);
    }
}

static void unsound_arp_is_not_learned(void **state)
{
    static const char *const frames[] = {
        TO_ALL "0806" ARP_FIXED "0001 020000000001 00000000 000000000000 0a000002", /* a probe */
        TO_ALL "0806" ARP_FIXED "0001 020000000001 0a000002 000000000000 0a000002", /* our own address */
        TO_ALL "0806" ARP_FIXED "0001 020000000001 e0000001 000000000000 0a000002", /* a multicast address */
        TO_ALL "0806" ARP_FIXED "0001 030000000001 0a000001 000000000000 0a000002", /* a group MAC */
        TO_ALL "0806" ARP_FIXED "0003 020000000001 0a000001 000000000000 0a000002", /* reverse ARP */
        TO_ALL "0806" ARP_FIXED "0001 020000000001 0a000001 000000000000 0a000003", /* not for us */
        TO_ALL "0806" ARP_FIXED "0001 020000000001 0a000001 000000000000 0a0000",   /* one byte short */
        TO_ALL "0806",
        TO_US "0800" ARP_REQUEST,
    };
    (void)state;
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct psc_ip ip;
        struct psc_mac mac;
        if (learns(frames[i], &local_v4, &ip, &mac))
            fail_msg("learned from: %s", frames[i]);
    }
}

/* A mapped address in an advertisement would pass for IPv4 of that address. Found by fuzzing. */
static void mapped_address_is_not_learned(void **state)
{
    static const char *const head = TO_US "86dd 6000000000203aff 20010db8000000000000000000000001"
                                          "20010db8000000000000000000000002";
    static const struct {
        const char *message;
        bool learned;
    } cases[] = {
        {"88008a7360000000 20010db8000000000000000000000001 0201020000000001", true},
        {"8800ae2c60000000 00000000000000000000ffff0a000001 0201020000000001", false},
    };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char frame_hex[512];
        struct psc_ip ip;
        struct psc_mac mac;
        snprintf(frame_hex, sizeof frame_hex, "%s%s", head, cases[i].message);
        assert_int_equal(learns(frame_hex, &local_v6, &ip, &mac), cases[i].learned);
    }
}

/* An echo request with `data_bytes` of data; returns the frame's length, Ethernet padding included. */
static uint32_t echo_request(uint32_t data_bytes, uint8_t *frame)
{
    memset(frame, 0, FRAME_MAX_BYTES);
    unhex(TO_US "0800 4500 0000 1234 4000 07 01 0000 0a000001 0a000002 0800 0000 0102 0304", frame);
    uint32_t total_bytes = 28 + data_bytes;
    frame[16] = (uint8_t)(total_bytes >> 8);
    frame[17] = (uint8_t)total_bytes;
    for (uint32_t i = 0; i < data_bytes; i++)
        frame[42 + i] = (uint8_t)(i * 7 + 1);
    put_checksum(frame + 34, 8 + data_bytes, frame + 36);
    put_checksum(frame + 14, 20, frame + 24);
    return 14 + total_bytes < 60 ? 60 : 14 + total_bytes;
}

static void ping_is_answered(void **state)
{
    (void)state;
    for (uint32_t data_bytes = 0; data_bytes <= 1500; data_bytes++) {
        uint8_t request[FRAME_MAX_BYTES], reply[FRAME_MAX_BYTES];
        uint32_t bytes = echo_request(data_bytes, request), icmp_bytes = 8 + data_bytes;
        memset(request + 34 + icmp_bytes, 0xee,
               bytes - 34 - icmp_bytes); /* padding is not part of the ping */
        assert_int_equal(answer(request, bytes, &local_v4, reply), bytes);
        assert_memory_equal(reply, request + 6, 6);
        assert_memory_equal(reply + 6, request, 6);
        assert_memory_equal(reply + 12, request + 12, 10); /* type, version .. flags */
        assert_int_equal(reply[22], 64);                   /* TTL */
        assert_memory_equal(reply + 26, request + 30, 4);
        assert_memory_equal(reply + 30, request + 26, 4);
        assert_true(checksum_ok(reply + 14, 20));
        assert_int_equal(reply[34], 0); /* echo reply */
        assert_memory_equal(reply + 38, request + 38, 4 + data_bytes);
        assert_true(checksum_ok(reply + 34, icmp_bytes));
        for (uint32_t at = 34 + icmp_bytes; at < bytes; at++)
            assert_int_equal(reply[at], 0);
    }
}

static void unsound_ping_is_not_answered(void **state)
{
    static const struct {
        const char *what;
        uint32_t at;
        uint8_t value;
        bool mend_ip, mend_icmp;
    } cases[] = {
        {"wrong ICMP checksum", 43, 0xff, false, false},
        {"wrong IP checksum", 25, 0xff, false, false},
        {"echo reply", 34, 0, false, true},
        {"code 1", 35, 1, false, true},
        {"another address", 33, 3, true, false},
        {"from a multicast address", 26, 224, true, false},
        {"from address 0", 26, 0, true, false},
        {"from loopback", 26, 127, true, false},
        {"fragment", 20, 0x20, true, false},
        {"options", 14, 0x46, true, false},
        {"longer than the frame", 16, 0x10, true, false},
        {"UDP", 23, 17, true, false},
        {"IP length below ICMP's header", 17, 27, true, false},
        {"from a group MAC", 6, 0x03, false, false},
        {"to everyone", 0, 0xff, false, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t request[FRAME_MAX_BYTES], reply[FRAME_MAX_BYTES];
        uint32_t bytes = echo_request(56, request);
        request[cases[i].at] = cases[i].value;
        if (cases[i].at == 0)
            memset(request, 0xff, 6);
        if (cases[i].mend_icmp)
            put_checksum(request + 34, 64, request + 36);
        if (cases[i].mend_ip)
            put_checksum(request + 14, 20, request + 24);
        if (answer(request, bytes, &local_v4, reply) != 0)
            fail_msg("answered: %s", cases[i].what);
    }
}

static void ip_without_icmp_is_not_answered(void **state)
{
    uint8_t request[FRAME_MAX_BYTES], reply[FRAME_MAX_BYTES];
    (void)state;
    echo_request(0, request);
    request[17] = 20;
    put_checksum(request + 14, 20, request + 24);
    assert_int_equal(answer(request, 34, &local_v4, reply), 0);
}

static void cut_frames_are_not_answered(void **state)
{
    uint8_t ping[FRAME_MAX_BYTES], arp[FRAME_MAX_BYTES], reply[FRAME_MAX_BYTES];
    (void)state;
    uint32_t ping_bytes = echo_request(56, ping), arp_bytes = unhex(TO_ALL "8100 0000 0806" ARP_REQUEST, arp);
    for (uint32_t bytes = 0; bytes < ping_bytes; bytes++)
        assert_int_equal(answer(ping, bytes, &local_v4, reply), 0);
    for (uint32_t bytes = 0; bytes < arp_bytes; bytes++)
        assert_int_equal(answer(arp, bytes, &local_v4, reply), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arp_request_is_answered),
        cmocka_unit_test(tagged_arp_request_is_answered_tagged),
        cmocka_unit_test(address_probe_is_answered),
        cmocka_unit_test(other_arp_is_not_answered),
        cmocka_unit_test(arp_is_asked),
        cmocka_unit_test(arp_sender_is_learned),
        cmocka_unit_test(unsound_arp_is_not_learned),
        cmocka_unit_test(mapped_address_is_not_learned),
        cmocka_unit_test(ping_is_answered),
        cmocka_unit_test(unsound_ping_is_not_answered),
        cmocka_unit_test(ip_without_icmp_is_not_answered),
        cmocka_unit_test(cut_frames_are_not_answered),
    };
    return cmocka_run_group_tests_name("host", tests, NULL, NULL);
}
