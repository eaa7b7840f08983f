"""The rules themselves: verdicts written by hand, so that what the tables are judged by is judged too.

A row: the state, what is done to the sound frame, and the verdict: a drop reason with the reply's syndrome, a refusal
with its fault, or that it is executed or taken.
"""

from __future__ import annotations

import pytest

from ..protocol import wire
from ..protocol.rack import MTU
from . import fields
from .bench import LONG_BYTES, Bench, tagged

EXECUTED, TAKEN = "executed", "taken"


def changed(**changes):
    """The sound packet of the state with other fields."""
    return lambda b: wire.quick_build((b.next() if b.qp.message else b.only()).but(**changes))


def field(layer, name, value, opcode=wire.ONLY_IMM):
    def make(bench):
        (wanted,) = (
            f for f in fields.fields_of(opcode, bench.qp.family) if (f.layer, f.name) == (layer, name)
        )
        sound = bench.ack() if opcode == wire.ACK else bench.next() if bench.qp.message else bench.only()
        return fields.put(wire.quick_build(sound), wanted, value, bench.qp.family)

    return make


def cut(size):
    return lambda b: changed()(b)[:size]


def tag(*tags):
    return lambda b: tagged(changed()(b), *tags)


def first(**changes):
    return lambda b: wire.quick_build(b.first().but(**changes))


def ahead(n):
    return lambda b: changed(psn=b.qp.expected_psn + n & wire.PSN_MASK)(b)


def window(n, ahead=0, byte=0):
    return lambda b: changed(va=b.a.address(b.round + ahead, n) + byte)(b)


ROWS = [
    # The receive order: silent, counted.
    ("idle", cut(0), "runt"),
    ("idle", cut(13), "runt"),
    ("idle", cut(14), "runt"),
    ("idle", cut(60), "runt"),
    ("idle", changed(dst_mac="ff:ff:ff:ff:ff:ff"), "foreign_mac"),
    ("idle", changed(dst_mac="33:33:ff:00:00:01"), "foreign_mac"),
    ("idle", changed(dst_mac="02:00:00:00:00:02"), "foreign_mac"),
    ("idle", tag((0x8100, 0)), EXECUTED),
    ("idle", tag((0x8100, 7)), "vlan"),
    ("idle", tag((0x88A8, 0)), "vlan"),
    ("idle", tag((0x8100, 0), (0x8100, 0)), "vlan"),
    ("idle", field("ethernet", "type", 0x88CC), "ethertype"),
    ("idle", field("ip", "version", 5), "ip_header"),
    ("idle", field("ip", "dst", 1), "foreign_ip"),
    ("idle", field("udp", "dst_port", 4790), "not_roce"),
    ("idle", field("udp", "length", 23), "udp_length"),
    ("idle", field("udp", "src_port", 0), EXECUTED),
    ("idle", field("udp", "checksum", 0xBEEF), EXECUTED),
    ("idle", field("bth", "opcode", 0xFF), "opcode"),
    ("idle", field("bth", "opcode", 0x15), "opcode"),
    ("idle", field("bth", "opcode", 0x2A), "opcode"),
    ("idle", field("bth", "tver", 1), "bth"),
    ("idle", changed(opcode=wire.ACK), "bth"),
    ("idle", field("bth", "qpn", 0), "unknown_qp"),
    ("idle", field("bth", "qpn", 1), "unknown_qp"),
    ("err", changed(), "qp_state"),
    ("err", changed(p_key=0x1234), "qp_state"),
    ("err", changed(src="10.0.0.99"), "qp_state"),
    ("idle", changed(p_key=0x8001), "p_key"),
    ("idle", changed(p_key=0x7FFF), EXECUTED),
    ("idle", field("icrc", "icrc", 0), "icrc"),
    ("idle", field("bth", "mig_req", 0), EXECUTED),
    ("idle", field("bth", "se", 1), EXECUTED),
    ("idle", field("bth", "becn", 1), EXECUTED),
    ("idle", field("bth", "reserved7", 127), EXECUTED),
    # Past and future.
    ("idle", ahead(1), "gap, 60"),
    ("idle", ahead((1 << 23) - 1), "gap, 60"),
    ("nak", ahead(1), "gap"),
    ("nak", ahead(0), EXECUTED),
    ("idle", ahead(-1), "duplicate, 1f"),
    ("idle", ahead(-(1 << 23)), "duplicate, 1f"),
    # Sequence and operation.
    ("idle", changed(opcode=wire.MIDDLE), "refused, 61, invalid_request"),
    ("idle", changed(opcode=wire.LAST_IMM), "refused, 61, invalid_request"),
    ("mid", first(), "refused, 61, invalid_request"),
    ("mid", lambda b: wire.quick_build(b.only()), "refused, 61, invalid_request"),
    ("idle", changed(opcode=wire.SEND_ONLY), "refused, 61, invalid_request"),
    ("idle", changed(opcode=wire.READ_REQUEST, payload=b""), "refused, 61, invalid_request"),
    ("idle", changed(opcode=wire.FETCH_ADD, payload=b""), "refused, 61, invalid_request"),
    ("mid", changed(opcode=wire.READ_REQUEST, payload=b""), "refused, 61, invalid_request"),
    # Round, op.
    ("idle", window(1, ahead=1), "refused, 61, round_mismatch"),
    ("idle", window(2), EXECUTED),
    # Lengths.
    ("idle", changed(opcode=wire.ONLY), "refused, 61, invalid_request"),
    ("idle", changed(dma_len=24), "refused, 61, invalid_request"),
    ("idle", changed(dma_len=0, payload=b""), "refused, 61, invalid_request"),
    ("idle", changed(dma_len=18, payload=bytes(18)), "refused, 61, invalid_request"),
    ("idle", changed(dma_len=MTU + 4, payload=bytes(MTU + 4)), "refused, 61, invalid_request"),
    ("idle", changed(dma_len=MTU, payload=bytes(MTU)), EXECUTED),
    ("idle", first(), EXECUTED),
    ("idle", first(dma_len=MTU), "refused, 61, invalid_request"),
    ("idle", first(payload=bytes(MTU - 4)), "refused, 61, invalid_request"),
    ("mid", changed(), EXECUTED),
    ("mid", changed(payload=bytes(MTU - 4)), "refused, 61, invalid_request"),
    ("mid", changed(opcode=wire.LAST_IMM), "refused, 61, invalid_request"),
    ("late", changed(), EXECUTED),
    ("late", changed(opcode=wire.LAST), "refused, 61, invalid_request"),
    ("late", changed(opcode=wire.MIDDLE), "refused, 61, invalid_request"),
    ("late", changed(payload=bytes(LONG_BYTES - 2 * MTU + 4)), "refused, 61, invalid_request"),
    ("late", changed(payload=bytes(MTU)), "refused, 61, invalid_request"),
    # Access.
    ("idle", changed(rkey=0), "refused, 62, remote_access"),
    ("idle", window(4), "refused, 62, remote_access"),
    ("idle", window(1, byte=4), "refused, 62, remote_access"),
    ("idle", window(1, byte=-4), "refused, 62, remote_access"),  # round 2^32-1 of the probe
    ("idle", first(dma_len=4 * MTU), EXECUTED),
    ("idle", first(dma_len=4 * MTU + 4), "refused, 62, remote_access"),
    ("idle", first(dma_len=(1 << 32) - 4), "refused, 62, remote_access"),
    # Responses.
    ("outstanding", field("extension", "syndrome", 0x1F, wire.ACK), TAKEN),
    ("outstanding", field("extension", "syndrome", 0x00, wire.ACK), TAKEN),
    ("outstanding", field("extension", "syndrome", 0x20, wire.ACK), TAKEN),
    ("outstanding", field("extension", "syndrome", 0x60, wire.ACK), TAKEN),
    ("outstanding", field("extension", "syndrome", 0x61, wire.ACK), "nak_received"),
    ("outstanding", field("extension", "syndrome", 0x63, wire.ACK), "nak_received"),
    ("outstanding", field("extension", "syndrome", 0x64, wire.ACK), "reserved_syndrome"),
    ("outstanding", field("extension", "syndrome", 0x40, wire.ACK), "reserved_syndrome"),
    ("outstanding", field("extension", "syndrome", 0x80, wire.ACK), "reserved_syndrome"),
    ("outstanding", lambda b: wire.quick_build(b.ack(psn=b.qp.unacked_psn - 1 & wire.PSN_MASK)), "stale_ack"),
    ("outstanding", lambda b: wire.quick_build(b.ack(psn=b.qp.fresh_psn)), "stale_ack"),
    ("idle", lambda b: wire.quick_build(b.ack()), "stale_ack"),
    ("idle", lambda b: wire.quick_build(b.ack(opcode=0x10)), "opcode"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{state}-{text}" for i, (state, _, text) in enumerate(ROWS)])
def test_a_verdict_by_hand(family, row):
    state, make, expected = row
    bench = Bench(family)
    bench.enter(state)
    verdict = bench.see(make(bench))
    words = [
        verdict.drop,
        f"{verdict.reply[1]:02x}" if verdict.reply and verdict.drop else None,
        verdict.fault,
    ]
    words += [EXECUTED if verdict.executed else TAKEN if verdict.acknowledged else None]
    assert ", ".join(word for word in words if word) == expected
    bench.finish()
    bench.close()
