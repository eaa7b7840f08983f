"""Operations that are not enabled: SEND, READ, ATOMIC as requests are refused, wherever in a message they come; answers
to them, which are never asked for, are dropped.
"""

from __future__ import annotations

import pytest

from . import wire
from .rack import MTU, ints
from .test_responder import NAK_INVALID, refuses


@pytest.mark.parametrize("opcode", [wire.SEND_ONLY, wire.SEND_FIRST, wire.READ_REQUEST, wire.FETCH_ADD])
def test_operations_that_are_not_writes(rack, opcode):
    a, _ = rack.workers()
    packet = a.packet(opcode, a.psn)
    refuses(rack, packet, NAK_INVALID, "invalid_request", expected=wire.FIRST, got=opcode)


@pytest.mark.parametrize("opcode", [wire.SEND_MIDDLE, wire.SEND_LAST])
def test_a_send_that_goes_on_without_having_begun(rack, opcode):
    a, _ = rack.workers()
    packet = a.packet(opcode, a.psn, payload=bytes(MTU))
    refuses(rack, packet, NAK_INVALID, "invalid_request", expected=wire.FIRST, got=opcode)


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        (wire.SEND_MIDDLE, wire.FIRST),  # in sequence, but no write
        (wire.SEND_LAST, wire.FIRST),
        (wire.SEND_FIRST, wire.MIDDLE),  # not even in sequence
        (wire.SEND_ONLY, wire.MIDDLE),
        (wire.READ_REQUEST, wire.MIDDLE),
        (wire.FETCH_ADD, wire.MIDDLE),
    ],
)
def test_an_operation_that_is_no_write_inside_a_write(rack, opcode, expected):
    """Its payload must not be added to the slot: a SEND MIDDLE is as long as the WRITE MIDDLE that is due."""
    a, _ = rack.workers()
    first, second, _ = a.write(0, ints(3))
    rack.poll(first)
    payload = bytes(MTU) if opcode in (wire.SEND_MIDDLE, wire.SEND_LAST) else b""
    packet = a.packet(opcode, second.psn, payload=payload)
    refuses(rack, packet, NAK_INVALID, "invalid_request", expected=expected, got=opcode)
    assert rack.jobs[0].stats.contribution_bytes == MTU


@pytest.mark.parametrize("opcode", [0x0D, 0x0E, 0x0F, 0x10, 0x12])
def test_answers_to_what_is_never_asked_are_dropped(rack, opcode):
    a, _ = rack.workers()
    extension = bytes(8) if opcode == 0x12 else b""  # the value before an ATOMIC
    assert rack.poll(a.packet(opcode, a.appliance_psn, payload=extension)) == []
    assert rack.drops() == {"opcode": 1} and not rack.events()
