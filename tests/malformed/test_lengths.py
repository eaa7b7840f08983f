"""Lengths: what the RETH announces, what the packets carry, and when the LAST comes."""

from __future__ import annotations

import pytest

from ..protocol import ops, wire
from ..protocol.rack import MTU
from . import fields
from .bench import SLOT_PACKETS, Bench, payload

SLOT = SLOT_PACKETS * MTU
LIMITS = [
    0,
    1,
    2,
    3,
    4,
    5,
    MTU - 4,
    MTU - 1,
    MTU,
    MTU + 1,
    MTU + 3,
    MTU + 4,
    2 * MTU - 4,
    2 * MTU,
    2 * MTU + 4,
]
LIMITS += [SLOT - 4, SLOT - 1, SLOT, SLOT + 1, SLOT + 4, 2 * SLOT, 1 << 16, 1 << 24, (1 << 31) - 4, 1 << 31]
LIMITS += [(1 << 31) + 4, (1 << 32) - MTU, (1 << 32) - 4, (1 << 32) - 1]
PAYLOADS = [0, 1, 4, MTU - 4, MTU - 1, MTU, MTU + 1, MTU + 4, SLOT]


def announced(opcode: int, length: int, carried: int):
    def make(bench: Bench) -> bytes:
        packet = bench.only() if opcode == wire.ONLY_IMM else bench.first()
        return wire.quick_build(packet.but(dma_len=length, payload=payload(bench.round, 0, carried)))

    return make


@pytest.mark.parametrize("state", ["idle", "nak", "mid"])
@pytest.mark.parametrize("opcode", [wire.FIRST, wire.ONLY_IMM], ids=["first", "only"])
def test_lengths_of_the_reth(family, check, opcode, state):
    """Each with the payload that it calls for, and with others."""
    due = {length: min(length, MTU) for length in LIMITS}
    check(
        family,
        [
            (f"length {length}, payload {carried}", state, announced(opcode, length, carried))
            for length in LIMITS
            for carried in dict.fromkeys([due[length], *PAYLOADS])
        ],
    )


def announced_to(op: int, opcode: int, length: int):
    """A contribution for another op, with the payload that its length calls for."""

    def make(bench: Bench) -> bytes:
        packet = bench.only() if opcode == wire.ONLY_IMM else bench.first()
        data = payload(bench.round, 0, min(length, MTU))
        return wire.quick_build(packet.but(va=bench.a.address(bench.round, op), dma_len=length, payload=data))

    return make


@pytest.mark.parametrize("op", ops.ALL_OPS[3:], ids=ops.NAMES.get)
def test_lengths_by_an_op_s_unit_and_the_room_of_its_result(family, check, op):
    """Around a unit, a packet, and the longest contribution: by bytes, by words and by units."""
    unit, longest = ops.UNIT[op], SLOT // ops.EXPANSION[op]
    centres = {unit, 2 * unit, MTU, MTU + unit, longest}
    off = (0, -unit, unit, -4, 4, -1, 1, 2, unit // 2)
    lengths = sorted({centre + delta for centre in centres for delta in off if centre + delta >= 0})
    check(
        family,
        [
            (f"{length} bytes as opcode {opcode:#x}", state, announced_to(op, opcode, length))
            for length in lengths
            for opcode in (wire.FIRST, wire.ONLY_IMM)
            for state in ("idle", "nak")
        ],
        ops=ops.ALL_OPS,
    )


LONGER = [MTU + 4, 2 * MTU, 2 * MTU + 4, 2 * MTU + 12, 3 * MTU - 4, 3 * MTU, 4 * MTU]


def continued(length: int, middles: int, opcode: int, carried: int):
    """A message of `length` bytes, `middles` sound MIDDLEs, and then this packet."""

    def make(bench: Bench) -> bytes:
        bench.see(wire.quick_build(bench.first(length)))
        for _ in range(middles):
            bench.see(wire.quick_build(bench.next()))
        assert bench.qp.message is not None
        at = len(bench.qp.message.data)
        packet = bench.next(opcode=opcode, payload=payload(bench.round, at, carried), imm=bench.imm)
        return wire.quick_build(packet)

    return make


@pytest.mark.parametrize(
    "opcode", [wire.MIDDLE, wire.LAST, wire.LAST_IMM], ids=["middle", "last", "last_imm"]
)
def test_an_early_a_late_and_a_wrong_last(family, check, opcode):
    """At every place of messages of two to four packets: nothing, a word, the tail, an MTU, and their neighbours."""
    check(
        family,
        [
            (
                f"{carried} bytes after {1 + middles} packets of {length} bytes",
                "idle",
                continued(length, middles, opcode, carried),
            )
            for length in LONGER
            for middles in range((length + MTU - 1) // MTU - 1)
            for carried in dict.fromkeys(
                [0, 4, length % MTU, length % MTU + 4, MTU - 4, MTU, MTU + 4, length - MTU]
            )
        ],
    )


def lengths(total: int, udp: int, frame: int):
    """IP's and UDP's lengths and the frame's, each off by so many bytes, independently."""

    def make(bench: Bench) -> bytes:
        family = bench.qp.family
        sound = bytearray(wire.quick_build(bench.only()))
        at = wire.ETHERNET_BYTES
        ip_length = at + (2 if family is wire.V4 else 4)
        udp_length = at + family.ip_bytes + 4
        for place, delta in ((ip_length, total), (udp_length, udp)):
            value = int.from_bytes(sound[place : place + 2], "big") + delta
            sound[place : place + 2] = (value & 0xFFFF).to_bytes(2, "big")
        size = len(sound)
        return _resized(bytes(sound), family, size + frame, size + total)

    return make


def _resized(sound: bytes, family: wire.Family, size: int, icrc_end: int) -> bytes:
    """Cut or padded to `size`; the ICRC where IP says that the datagram ends, if that is in the frame."""
    grown = (sound[:-4] + bytes(64))[: max(size, 0)]
    if len(grown) >= icrc_end >= wire.ETHERNET_BYTES + family.ip_bytes + 24:
        datagram = fields.mend(grown[:icrc_end], family)
        return datagram + grown[icrc_end:]
    return grown


@pytest.mark.parametrize("state", ["idle", "mid", "err"])
def test_lengths_of_ip_udp_and_frame(family, check, state):
    """Lengths come from UDP and IP, never from the frame; what is behind the datagram is Ethernet's padding."""
    deltas = [0, 1, -1, 2, 3, 4, -4, 5, -5, 8, -8, 16, -16, -28]
    cases = [(f"all by {d}", state, lengths(d, d, d)) for d in deltas]
    cases += [(f"IP by {d}", state, lengths(d, 0, 0)) for d in deltas]
    cases += [(f"UDP by {d}", state, lengths(0, d, 0)) for d in deltas]
    cases += [(f"frame by {d}", state, lengths(0, 0, d)) for d in deltas]
    cases += [(f"IP and UDP by {d}", state, lengths(d, d, 0)) for d in deltas]
    cases += [(f"frame and IP by {d}", state, lengths(d, 0, d)) for d in deltas]
    check(family, cases)


@pytest.mark.parametrize("opcode", ["only", "first", "next", "ack"])
def test_a_frame_that_is_cut_anywhere(family, check, opcode):
    """At every byte of its headers, and then at some of its payload."""
    state = {"next": "mid", "ack": "outstanding"}.get(opcode, "idle")

    def cut(size: int):
        return lambda bench: wire.quick_build(getattr(bench, opcode)())[:size]

    sizes = [*range(14 + family.ip_bytes + 8 + 12 + 24), 150, 200, 250, 300, 320]
    check(family, [(f"cut to {size} bytes", state, cut(size)) for size in sizes])
