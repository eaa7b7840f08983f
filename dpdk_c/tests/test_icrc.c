/* The ICRC against the vectors of tests/vectors/icrc.txt (the program's argument) and against a CRC that goes
 * bit by bit, in every variant; the combination of two CRCs against the direct one. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"

static const char *vectors_path;

/* The definition: reflected CRC-32, one bit at a time. */
static uint32_t crc32_by_bits(uint32_t crc, const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return crc;
}

static void fill(uint8_t *data, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)next_random(&seed);
}

static void check_vector(const char *line)
{
    char frame_hex[2048], icrc_hex[16];
    uint8_t buffer[1024], expected[4], got[4];
    assert_int_equal(sscanf(line, "%2047s %15s", frame_hex, icrc_hex), 2);
    uint32_t bytes = unhex(frame_hex, buffer);
    assert_int_equal(unhex(icrc_hex, expected), 4);
    uint8_t *frame = exact_copy(buffer, bytes);
    psc_icrc_finish(~psc_icrc(frame, bytes), got);
    assert_memory_equal(got, expected, 4);

    /* Routers may change these and the ICRC stays; it changes with every other byte. */
    bool v4 = frame[0] >> 4 == 4;
    static const uint8_t v4_masked[] = {1, 8, 10, 11, 26, 27, 32, 0},
                         v6_masked[] = {1, 2, 3, 7, 46, 47, 52, 0};
    const uint8_t *masked = v4 ? v4_masked : v6_masked;
    for (uint32_t at = 1; at < bytes; at++) {
        bool may_change = memchr(masked, (int)at, 7) != NULL;
        frame[at] ^= 0x81;
        psc_icrc_finish(~psc_icrc(frame, bytes), got);
        if ((memcmp(got, expected, 4) == 0) != may_change)
            fail_msg("byte %u is %s the ICRC", at, may_change ? "wrongly in" : "missing from");
        frame[at] ^= 0x81;
    }
    free(frame);
}

static void vectors(void **state)
{
    char line[4096];
    int checked = 0;
    (void)state;
    FILE *file = fopen(vectors_path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (line[0] != '#') {
            check_vector(line);
            checked++;
        }
    fclose(file);
    assert_in_range(checked, 4, 1000);
}

static void crc_is_the_reflected_one(void **state)
{
    static const uint8_t ones[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    (void)state;
    assert_true(~psc_crc32(0xffffffffu, "123456789", 9) == 0xcbf43926u); /* its check value */
    assert_true(psc_crc32(0xffffffffu, ones, 8) == PSC_ICRC_SEED);
}

static const struct psc_crc_variant *const crc_variants[] = {&psc_crc_vpclmul, &psc_crc_pclmul,
                                                             &psc_crc_slicing};
#define CRC_VARIANTS (sizeof crc_variants / sizeof *crc_variants)

/* Each variant that this CPU runs, and slicing itself. `offset`: alignment of the data, which end where their
 * heap block ends. */
static void check_crcs(uint32_t bytes, uint32_t offset, uint32_t seed)
{
    uint8_t data[64 + 4200] = {0}, mask[PSC_CRC_MASK_BYTES] = {0}, *exact;

    fill(data, offset + bytes, bytes + 1);
    exact = exact_copy(data, offset + bytes);
    uint32_t expected = crc32_by_bits(seed, data + offset, bytes);
    /* Some of the first bytes, as of a header. */
    uint32_t mask_bytes = bytes < sizeof mask ? bytes : sizeof mask;
    fill(mask, mask_bytes, seed | 1);
    for (uint32_t i = 0; i < mask_bytes; i++)
        data[offset + i] |= mask[i];
    uint32_t expected_masked = crc32_by_bits(seed, data + offset, bytes);
    for (uint32_t i = 0; i < CRC_VARIANTS; i++) {
        if (!crc_variants[i]->runs_here())
            continue;
        if (crc_variants[i]->crc(seed, exact + offset, bytes) != expected)
            fail_msg("%s: CRC of %u bytes at alignment %u is wrong", crc_variants[i]->name, bytes, offset);
        if (bytes >= 40 && crc_variants[i]->masked(seed, mask, exact + offset, bytes) != expected_masked)
            fail_msg("%s: masked CRC of %u bytes at alignment %u is wrong", crc_variants[i]->name, bytes,
                     offset);
    }
    free(exact);
}

static void crc_of_every_length_alignment_and_seed(void **state)
{
    static const uint32_t seeds[] = {0, 1, 0x80000000u, 0xffffffffu, PSC_ICRC_SEED};
    const uint32_t n = sizeof seeds / sizeof *seeds;
    (void)state;
    for (uint32_t bytes = 0; bytes <= 600; bytes++)
        for (uint32_t offset = 0; offset < 8; offset++)
            check_crcs(bytes, offset, seeds[(bytes + offset) % n] ^ bytes << 8);
    /* As payloads, and with the headers of a FIRST and of a MIDDLE. */
    for (uint32_t offset = 0; offset < 64; offset++)
        for (uint32_t k = 0; k < n; k++) {
            check_crcs(4096, offset, seeds[k]);
            check_crcs(4096 + 56, offset, seeds[k]);
            check_crcs(4096 + 40, offset, seeds[k]);
        }
}

static void nothing_is_read_beyond_the_end(void **state)
{
    uint8_t *end = wall_after(1024);
    (void)state;
    for (uint32_t bytes = 0; bytes <= 600; bytes++)
        for (uint32_t i = 0; i < CRC_VARIANTS; i++)
            if (crc_variants[i]->runs_here()) {
                (void)crc_variants[i]->crc(1, end - bytes, bytes);
                if (bytes >= 40)
                    (void)crc_variants[i]->masked(1, (const uint8_t[PSC_CRC_MASK_BYTES]){0}, end - bytes,
                                                  bytes);
            }
}

static void crc_can_be_continued(void **state)
{
    uint8_t data[300];
    (void)state;
    fill(data, sizeof data, 7);
    uint32_t whole = psc_crc32(1, data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut++)
        assert_true(psc_crc32(psc_crc32(1, data, cut), data + cut, sizeof data - cut) == whole);
}

static void combined_equals_direct(void **state)
{
    static const size_t long_lengths[] = {1023, 1024, 2048, 4096, 65535, 8388608};
    static uint8_t data[8388608];
    const uint32_t header = 0x12345678u;
    (void)state;
    fill(data, sizeof data, 3);
    for (size_t i = 0; i < 300 + sizeof long_lengths / sizeof *long_lengths; i++) {
        size_t bytes = i < 300 ? i : long_lengths[i - 300];
        struct psc_crc32_shift shift;
        psc_crc32_shift_init(&shift, bytes);
        uint32_t payload = psc_crc32(0, data, bytes);
        if (psc_crc32_combine(&shift, header, payload) != psc_crc32(header, data, bytes))
            fail_msg("combined CRC differs at a length of %zu bytes", bytes);
    }
}

/* ---- Several packets at once. ---- */

static uint32_t left_by_bits(const struct psc_crc_message *message, uint32_t seed, size_t payload_bytes)
{
    uint8_t headers[PSC_CRC_MASK_BYTES];

    for (uint32_t i = 0; i < message->header_bytes; i++)
        headers[i] = message->headers[i] | message->mask[i];
    return crc32_by_bits(crc32_by_bits(seed, headers, message->header_bytes), message->payload,
                         payload_bytes) ^
           message->claimed;
}

/* Headers end where nobody may read on, and so does the first message's payload. */
static void check_sum(struct psc_crc_message messages[PSC_CRC_TOGETHER], size_t payload_bytes, uint32_t seed)
{
    static const uint8_t step[64];
    uint32_t expected = 0;

    for (uint32_t j = 0; j < PSC_CRC_TOGETHER; j++)
        expected =
            crc32_by_bits(expected, step, sizeof step) ^ left_by_bits(&messages[j], seed, payload_bytes);
    if (psc_crc_vpclmul.together(seed, messages, payload_bytes) != expected)
        fail_msg("what is left of %zu bytes is wrong", payload_bytes);
    for (uint32_t j = 0; j < PSC_CRC_TOGETHER; j++)
        messages[j].claimed ^= left_by_bits(&messages[j], seed, payload_bytes);
    assert_int_equal(psc_crc_vpclmul.together(seed, messages, payload_bytes), 0);
}

static void the_sum_of_messages_leaves_what_the_definition_says(void **state)
{
    static uint8_t masks[PSC_CRC_TOGETHER][PSC_CRC_MASK_BYTES];
    uint8_t *header_end = wall_after(4096), *end = wall_after(8192);
    uint32_t numbers = 5;
    (void)state;
    if (!psc_crc_vpclmul.runs_here())
        skip();
    fill(header_end - 4096, 4096, 8);
    fill(end - 8192, 8192, 9);
    fill(masks[0], sizeof masks, 10);
    for (uint32_t header_bytes = 4; header_bytes <= 64; header_bytes++)
        for (size_t payload_bytes = 0; payload_bytes <= 4096; payload_bytes += PSC_CRC_TURN_BYTES) {
            struct psc_crc_message messages[PSC_CRC_TOGETHER];
            for (uint32_t j = 0; j < PSC_CRC_TOGETHER; j++) {
                uint32_t bytes = j == 1 ? header_bytes : 4 + next_random(&numbers) % 61;
                messages[j] = (struct psc_crc_message){masks[j], header_end - bytes, bytes,
                                                       next_random(&numbers), end - payload_bytes - j * 100};
            }
            check_sum(messages, payload_bytes, next_random(&numbers));
        }
}

/* Packets of one length class, as a burst brings them: a FIRST, a MIDDLE, a LAST and another flow's. */
struct packets {
    uint8_t *frames[PSC_CRC_TOGETHER];
    uint32_t bytes[PSC_CRC_TOGETHER];
    struct psc_packet parsed[PSC_CRC_TOGETHER], *list[PSC_CRC_TOGETHER];
};

static void parse_all(struct packets *packets)
{
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++) {
        enum psc_drop why;
        assert_int_equal(
            psc_parse(packets->frames[i], packets->bytes[i], &local_v4, &packets->parsed[i], &why),
            PSC_FRAME_ROCE);
        packets->list[i] = &packets->parsed[i];
    }
}

static void make_packets(struct packets *packets, uint32_t payload_bytes)
{
    static const uint8_t opcodes[] = {PSC_RC_WRITE_FIRST, PSC_RC_WRITE_MIDDLE, PSC_RC_WRITE_LAST_IMM,
                                      PSC_RC_WRITE_MIDDLE};
    uint8_t payload[4096], frame[FRAME_MAX_BYTES];

    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++) {
        const struct psc_header header = {.opcode = opcodes[i], .psn = 77 + i, .dma_len = 4 * payload_bytes};
        fill(payload, payload_bytes, i + 1);
        packets->bytes[i] = whole_frame(&flow_v4, &header, payload, payload_bytes, frame);
        packets->frames[i] = exact_copy(frame, packets->bytes[i]);
    }
    parse_all(packets);
}

static void free_packets(struct packets *packets)
{
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        free(packets->frames[i]);
}

/* Whether they are found sound at once; each by itself is what `wrong` says by its bit. */
static bool checked(struct packets *packets, uint32_t wrong)
{
    bool at_once;

    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        packets->parsed[i].icrc_sound = false;
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        if (psc_icrc_ok(&packets->parsed[i]) == (wrong >> i & 1))
            fail_msg("packet %u by itself is judged wrongly", i);
    psc_icrc_check(packets->list);
    at_once = packets->parsed[0].icrc_sound;
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        assert_int_equal(packets->parsed[i].icrc_sound, at_once);
    return at_once;
}

/* `from_end`: bytes before the frame's end. */
static void flip(const struct packets *packets, uint32_t i, uint32_t from_end, uint32_t bit)
{
    packets->frames[i][packets->bytes[i] - 1 - from_end] ^= (uint8_t)(1u << bit);
}

static void one_wrong_bit_is_found_wherever_it_is(void **state)
{
    struct packets packets;
    (void)state;
    if (!psc_crc_choose("vpclmul"))
        skip();
    make_packets(&packets, 1024);
    assert_true(checked(&packets, 0));
    for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
        for (uint32_t at = 0; at < 1024 + 4 + 4; at++) {
            flip(&packets, i, at, at % 8);
            if (checked(&packets, 1u << i))
                fail_msg("packet %u: a wrong bit %u bytes from its end is not found", i, at);
            flip(&packets, i, at, at % 8);
        }
    assert_true(checked(&packets, 0));
    free_packets(&packets);
}

/* A spoilt memory or bus spoils the same bit of every packet: the slot's first contribution is among them. */
static void the_same_wrong_bit_in_several_is_found(void **state)
{
    struct packets packets;
    (void)state;
    if (!psc_crc_choose("vpclmul"))
        skip();
    make_packets(&packets, 1024);
    for (uint32_t wrong = 1; wrong < 1u << PSC_CRC_TOGETHER; wrong++)
        for (uint32_t at = 0; at < 1024; at += 13) {
            for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
                if (wrong >> i & 1)
                    flip(&packets, i, at, 3);
            assert_false(checked(&packets, wrong));
            for (uint32_t i = 0; i < PSC_CRC_TOGETHER; i++)
                if (wrong >> i & 1)
                    flip(&packets, i, at, 3);
        }
    free_packets(&packets);
}

/* The price, as the header says: two packets wrong in the same burst, and just so. */
static void errors_that_cancel_once_moved_are_overlooked(void **state)
{
    struct packets packets;
    (void)state;
    if (!psc_crc_choose("vpclmul"))
        skip();
    make_packets(&packets, 1024);
    flip(&packets, 0, 200, 5);
    flip(&packets, 1, 200 + 64, 5);
    assert_true(checked(&packets, 3));
    flip(&packets, 1, 200 + 64, 5);
    flip(&packets, 3, 200 + 64, 5);
    assert_false(checked(&packets, 1 | 8));
    free_packets(&packets);
}

static void packets_that_are_no_whole_turns_are_checked_by_themselves(void **state)
{
    static const uint32_t whole[] = {256, 1024, 4096}, other[] = {0, 4, 252, 260, 1000};
    struct packets packets;
    (void)state;
    bool here = psc_crc_choose("vpclmul");
    for (uint32_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        make_packets(&packets, whole[i]);
        assert_int_equal(psc_icrc_together(&packets.parsed[0]), here);
        free_packets(&packets);
    }
    for (uint32_t i = 0; i < sizeof other / sizeof *other; i++) {
        make_packets(&packets, other[i]);
        assert_false(psc_icrc_together(&packets.parsed[1]));
        free_packets(&packets);
    }
    make_packets(&packets, 1024);
    assert_true(psc_crc_choose("slicing"));
    assert_false(psc_icrc_together(&packets.parsed[0]));
    free_packets(&packets);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(crc_is_the_reflected_one),
        cmocka_unit_test(crc_of_every_length_alignment_and_seed),
        cmocka_unit_test(nothing_is_read_beyond_the_end),
        cmocka_unit_test(crc_can_be_continued),
        cmocka_unit_test(combined_equals_direct),
        cmocka_unit_test(the_sum_of_messages_leaves_what_the_definition_says),
        cmocka_unit_test(one_wrong_bit_is_found_wherever_it_is),
        cmocka_unit_test(the_same_wrong_bit_in_several_is_found),
        cmocka_unit_test(errors_that_cancel_once_moved_are_overlooked),
        cmocka_unit_test(packets_that_are_no_whole_turns_are_checked_by_themselves),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: %s tests/vectors/icrc.txt\n", argv[0]);
        return 2;
    }
    vectors_path = argv[1];
    return cmocka_run_group_tests_name("icrc", tests, NULL, NULL);
}
