"""All 256 opcodes, in packets that are too short, just long enough or too long for them, with every pad."""

from __future__ import annotations

import pytest

from ..protocol import wire
from ..protocol.wire import Family
from . import fields
from .bench import Bench

BTH_TO_ICRC = [0, 3, 4, 16, 20, 52]
"""Bytes after the BTH: below, at and above the headers of the table, and one length that is no whole word."""
STATES = {"idle": BTH_TO_ICRC, "mid": [0, 16, 20]}


def short(opcode: int, length: int, pad: int, family: Family):
    """A frame of a BTH with this opcode and pad, `length` bytes and an ICRC; everything else in it is sound."""

    def make(bench: Bench) -> bytes:
        body = (wire.quick_build(bench.only())[wire.ETHERNET_BYTES + family.ip_bytes + 8 + 12 :] + bytes(64))[
            :length
        ]
        header = wire.quick_build(bench.only(payload=b""))
        udp = wire.ETHERNET_BYTES + family.ip_bytes
        bth = header[udp + 8 : udp + 20]
        bth = bytes([opcode, 0x40 | pad << 4]) + bth[2:]
        return fields.with_udp_payload(header, bth + body, family)

    return make


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "opcodes", [range(n, n + 32) for n in range(0, 256, 32)], ids=lambda r: f"{r.start:02x}"
)
def test_every_opcode(family, check, state, opcodes):
    check(
        family,
        [
            (f"opcode {opcode:02x}, {length} bytes, pad {pad}", state, short(opcode, length, pad, family))
            for opcode in opcodes
            for length in STATES[state]
            for pad in range(4)
        ],
    )
