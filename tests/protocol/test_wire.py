"""The tests' own quick frames are scapy's."""

from __future__ import annotations

import random

import pytest

from . import wire
from .wire import FAMILIES, Packet


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_quick_frames_are_scapy_s_byte_for_byte(family):
    rnd = random.Random(1)
    for opcode in (wire.FIRST, wire.MIDDLE, wire.LAST_IMM, wire.ONLY_IMM, wire.ACK):
        packet = Packet(
            opcode=opcode,
            qpn=rnd.getrandbits(24),
            psn=rnd.getrandbits(24),
            src=family.host(11),
            dst=family.appliance,
            src_mac="02:00:00:00:01:0b",
            dst_mac=wire.APPLIANCE_MAC,
            ack_req=bool(rnd.getrandbits(1)),
            payload=b"" if opcode == wire.ACK else rnd.randbytes(1 + rnd.randrange(256)),
        )
        if opcode in wire.HAS_RETH:
            packet = packet.but(va=rnd.getrandbits(64), rkey=rnd.getrandbits(32), dma_len=rnd.getrandbits(20))
        if opcode in wire.HAS_IMM:
            packet = packet.but(imm=rnd.getrandbits(32))
        if opcode == wire.ACK:
            packet = packet.but(syndrome=0x60, msn=rnd.getrandbits(24))
        frame = wire.build(packet)
        assert wire.quick_build(packet) == frame
        assert wire.quick_read(frame) == wire.read(frame) == packet
