"""Every field of every header, at its limits, in every state of the QP."""

from __future__ import annotations

import pytest

from ..protocol import wire
from . import fields
from .bench import Bench, tagged

IDLE, MID, LATE, NAK, ERR, OUTSTANDING = "idle", "mid", "late", "nak", "err", "outstanding"
PACKETS = [
    (wire.ONLY_IMM, IDLE),
    (wire.ONLY_IMM, MID),
    (wire.ONLY_IMM, NAK),
    (wire.ONLY_IMM, ERR),
    (wire.FIRST, IDLE),
    (wire.FIRST, NAK),
    (wire.FIRST, ERR),
    (wire.MIDDLE, MID),
    (wire.MIDDLE, IDLE),
    (wire.LAST_IMM, LATE),
    (wire.LAST_IMM, ERR),
    (wire.ACK, OUTSTANDING),
    (wire.ACK, IDLE),
    (wire.ACK, ERR),
]
NAMES = {
    wire.ONLY_IMM: "only",
    wire.FIRST: "first",
    wire.MIDDLE: "middle",
    wire.LAST_IMM: "last",
    wire.ACK: "ack",
}


def sound(bench: Bench, opcode: int) -> bytes:
    """The frame that would be right now, or, where the state wants another one, right in its kind."""
    if opcode == wire.ONLY_IMM:
        packet = bench.only()
    elif opcode == wire.FIRST:
        packet = bench.first()
    elif opcode == wire.ACK:
        packet = bench.ack()
    elif bench.qp.message is not None:
        packet = bench.next()
    else:
        packet = bench.only(opcode=opcode, dma_len=0)
    return wire.quick_build(packet)


def changed(opcode: int, field: fields.Field, index: int, family: wire.Family):
    """Case's frame: the sound one with the field's index-th value, which may depend on what the field is now."""

    def make(bench: Bench) -> bytes:
        frame = sound(bench, opcode)
        current = fields.get(frame, field, family)
        values = fields.values(field, current, seed=opcode)
        return fields.put(frame, field, values[index % len(values)], family)

    return make


def cases(opcode: int, state: str, field: fields.Field, family: wire.Family):
    count = min(9, 1 << field.width)
    return [(f"{field} value {i}", state, changed(opcode, field, i, family)) for i in range(count)]


@pytest.mark.parametrize(("opcode", "state"), PACKETS, ids=[f"{NAMES[o]}-{s}" for o, s in PACKETS])
def test_every_field(family, check, opcode, state):
    check(
        family,
        [case for field in fields.fields_of(opcode, family) for case in cases(opcode, state, field, family)],
    )


@pytest.mark.parametrize("state", [IDLE, MID, ERR])
@pytest.mark.parametrize("field", fields.TAG, ids=str)
@pytest.mark.parametrize("vlan", [0, 100])
def test_every_field_of_a_tag(family, check, vlan, field, state):
    def changed_tag(index: int):
        def make(bench: Bench) -> bytes:
            frame = tagged(sound(bench, wire.MIDDLE if state == MID else wire.ONLY_IMM), (0x8100, vlan))
            values = fields.values(field, fields.get(frame, field, family), seed=vlan)
            return fields.put(frame, field, values[index % len(values)], family)

        return make

    check(
        family,
        [(f"{field} value {i}", state, changed_tag(i)) for i in range(min(9, 1 << field.width))],
        vlan=vlan,
    )
