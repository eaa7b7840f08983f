"""Acknowledgements: every syndrome, at every place of the window, with and without something to acknowledge."""

from __future__ import annotations

import pytest

from ..protocol import wire
from ..protocol.wire import PSN_MASK
from .bench import Bench

PLACES = {
    "half a circle back": -(1 << 23),
    "long ago": -1000,
    "just acknowledged": -1,
    "oldest": 0,
    "middle": 1,
    "newest": 2,
    "never sent": 3,
    "far ahead": 1000,
    "almost half a circle ahead": (1 << 23) - 1,
}
"""From the oldest unacknowledged packet on; three are outstanding."""
KINDS = {
    "ack": range(0x20),
    "rnr": range(0x20, 0x40),
    "reserved": [*range(0x40, 0x60), 0x80, 0x9F, 0xBF, 0xE0, 0xE1, 0xFF],
    "nak": range(0x60, 0x80),
}


def answer(syndrome: int, place: int):
    return lambda bench: wire.quick_build(
        bench.ack(psn=(bench.qp.unacked_psn + place) & PSN_MASK, syndrome=syndrome, msn=place & PSN_MASK)
    )


@pytest.mark.parametrize("state", ["outstanding", "idle", "mid", "err"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_syndrome(family, check, kind, state):
    """At all places, and the reserved ones of the other half of the byte at one."""
    check(
        family,
        [
            (f"syndrome {syndrome:02x}, {where}", state, answer(syndrome, place))
            for syndrome in KINDS[kind]
            for where, place in PLACES.items()
        ],
    )


@pytest.mark.parametrize("state", ["outstanding", "mid", "err"])
def test_answers_to_what_was_never_asked(family, check, state):
    """Responses to READs and ATOMICs, whole and with their payload."""

    def make(opcode: int, size: int):
        return lambda bench: wire.quick_build(bench.ack(opcode=opcode, payload=bytes(size)))

    check(
        family,
        [
            (f"opcode {opcode:02x}, {size} bytes", state, make(opcode, size))
            for opcode in (0x0D, 0x0E, 0x0F, 0x10, 0x12, 0x15)
            for size in (0, 4, 8, 256)
        ],
    )


def notification(bench: Bench) -> wire.Packet:
    return bench.a.packet(wire.CNP, 0)


@pytest.mark.parametrize("state", ["idle", "mid", "outstanding", "err"])
def test_congestion_notifications(family, check, state):
    """Taken whatever its PSN; nothing of the QP changes."""
    frames = [
        ("sound", lambda b: wire.quick_build(notification(b))),
        ("another PSN", lambda b: wire.quick_build(notification(b).but(psn=b.qp.expected_psn))),
        ("AckReq", lambda b: wire.quick_build(notification(b).but(ack_req=True))),
        ("payload", lambda b: wire.quick_build(notification(b).but(payload=bytes(4)))),
        ("not from the peer", lambda b: wire.quick_build(notification(b).but(src=b.b.ip))),
        ("without its reserved bytes", lambda b: wire.quick_build(b.ack(opcode=wire.CNP))[:-16]),
    ]
    check(family, [(what, state, make) for what, make in frames])
