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

/* Each variant that this CPU runs, and slicing itself. `offset`: alignment of the data, which end where their
 * heap block ends. */
static void check_crcs(uint32_t bytes, uint32_t offset, uint32_t seed)
{
    static const struct psc_crc_variant *const variants[] = {&psc_crc_vpclmul, &psc_crc_pclmul,
                                                             &psc_crc_slicing};
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
    for (uint32_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        if (!variants[i]->runs_here())
            continue;
        if (variants[i]->crc(seed, exact + offset, bytes) != expected)
            fail_msg("%s: CRC of %u bytes at alignment %u is wrong", variants[i]->name, bytes, offset);
        if (bytes >= 40 && variants[i]->masked(seed, mask, exact + offset, bytes) != expected_masked)
            fail_msg("%s: masked CRC of %u bytes at alignment %u is wrong", variants[i]->name, bytes, offset);
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(crc_is_the_reflected_one),
        cmocka_unit_test(crc_of_every_length_alignment_and_seed),
        cmocka_unit_test(crc_can_be_continued),
        cmocka_unit_test(combined_equals_direct),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: %s tests/vectors/icrc.txt\n", argv[0]);
        return 2;
    }
    vectors_path = argv[1];
    return cmocka_run_group_tests_name("icrc", tests, NULL, NULL);
}
