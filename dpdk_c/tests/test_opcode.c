/* The opcode table against the specification's lengths, all 256 opcodes. */
#include "support.h"

#include <stdio.h>

#define REQ  PSC_OPF_REQUEST
#define RSP  PSC_OPF_RESPONSE
#define BEG  PSC_OPF_FIRST
#define END  PSC_OPF_LAST
#define RETH PSC_OPF_RETH
#define AETH PSC_OPF_AETH
#define IMM  PSC_OPF_IMM
#define PAY  PSC_OPF_PAYLOAD
#define WR   PSC_OPF_WRITE

/* IBTA: BTH 12, RETH 16, AETH 4, ImmDt 4, IETH 4, AtomicETH 28, AtomicAckETH 8, FETH 4. */
static const struct {
    const char *name;
    uint8_t opcode;
    uint8_t header_bytes;
    uint32_t flags;
} specified[] = {
    {"SEND_FIRST", 0x00, 12, REQ | BEG | PAY},
    {"SEND_MIDDLE", 0x01, 12, REQ | PAY},
    {"SEND_LAST", 0x02, 12, REQ | END | PAY},
    {"SEND_LAST_IMM", 0x03, 16, REQ | END | PAY | IMM},
    {"SEND_ONLY", 0x04, 12, REQ | BEG | END | PAY},
    {"SEND_ONLY_IMM", 0x05, 16, REQ | BEG | END | PAY | IMM},
    {"WRITE_FIRST", 0x06, 28, REQ | WR | BEG | PAY | RETH},
    {"WRITE_MIDDLE", 0x07, 12, REQ | WR | PAY},
    {"WRITE_LAST", 0x08, 12, REQ | WR | END | PAY},
    {"WRITE_LAST_IMM", 0x09, 16, REQ | WR | END | PAY | IMM},
    {"WRITE_ONLY", 0x0a, 28, REQ | WR | BEG | END | PAY | RETH},
    {"WRITE_ONLY_IMM", 0x0b, 32, REQ | WR | BEG | END | PAY | RETH | IMM},
    {"READ_REQUEST", 0x0c, 28, REQ | BEG | END | RETH},
    {"READ_RESPONSE_FIRST", 0x0d, 16, RSP | BEG | PAY | AETH},
    {"READ_RESPONSE_MIDDLE", 0x0e, 12, RSP | PAY},
    {"READ_RESPONSE_LAST", 0x0f, 16, RSP | END | PAY | AETH},
    {"READ_RESPONSE_ONLY", 0x10, 16, RSP | BEG | END | PAY | AETH},
    {"ACKNOWLEDGE", 0x11, 16, RSP | BEG | END | AETH},
    {"ATOMIC_ACKNOWLEDGE", 0x12, 24, RSP | BEG | END | AETH},
    {"COMPARE_SWAP", 0x13, 40, REQ | BEG | END},
    {"FETCH_ADD", 0x14, 40, REQ | BEG | END},
    {"SEND_LAST_INVALIDATE", 0x16, 16, REQ | END | PAY},
    {"SEND_ONLY_INVALIDATE", 0x17, 16, REQ | BEG | END | PAY},
    {"FLUSH", 0x1c, 32, REQ | BEG | END},
    {"ATOMIC_WRITE", 0x1d, 28, REQ | BEG | END | PAY | RETH},
    {"CNP", 0x81, 28, PSC_OPF_CNP},
};

static void rows_are_as_specified(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof specified / sizeof *specified; i++) {
        const struct psc_opcode_row *row = &psc_opcode_rows[specified[i].opcode];
        if (row->header_bytes != specified[i].header_bytes || row->flags != specified[i].flags)
            fail_msg("%s: row says %u header bytes and flags %x", specified[i].name, row->header_bytes,
                     row->flags);
    }
}

static void every_other_opcode_has_no_row(void **state)
{
    (void)state;
    for (uint32_t opcode = 0; opcode < 256; opcode++) {
        bool has_row = false;
        for (size_t i = 0; i < sizeof specified / sizeof *specified; i++)
            has_row |= specified[i].opcode == opcode;
        const struct psc_opcode_row *row = &psc_opcode_rows[opcode];
        if (!has_row && (row->flags != 0 || row->header_bytes != 0))
            fail_msg("reserved opcode %02x has a row", opcode);
    }
}

static void enum_names_the_rows_that_it_says(void **state)
{
    (void)state;
    assert_int_equal(PSC_RC_WRITE_FIRST, 0x06);
    assert_int_equal(PSC_RC_WRITE_MIDDLE, 0x07);
    assert_int_equal(PSC_RC_WRITE_LAST, 0x08);
    assert_int_equal(PSC_RC_WRITE_LAST_IMM, 0x09);
    assert_int_equal(PSC_RC_WRITE_ONLY, 0x0a);
    assert_int_equal(PSC_RC_WRITE_ONLY_IMM, 0x0b);
    assert_int_equal(PSC_RC_ACK, 0x11);
    assert_int_equal(PSC_CNP, 0x81);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_as_specified),
        cmocka_unit_test(every_other_opcode_has_no_row),
        cmocka_unit_test(enum_names_the_rows_that_it_says),
    };
    return cmocka_run_group_tests_name("opcode", tests, NULL, NULL);
}
