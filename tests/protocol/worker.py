"""One rank's end of one pool, as a NIC and its process would have it: PSNs, addresses, a result buffer.

What a worker is sent and breaks the protocol is an AssertionError.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import wire
from .library import lib
from .wire import APPLIANCE_MAC, PSN_MASK, Packet, family_of

if TYPE_CHECKING:
    from .rack import Job

Array = NDArray[Any]
SUM_I32, SUM_F32, MAX_F32 = 1, 2, 3  # op windows of every job here
PROBE_IMM = lib.PSC_IMM_PROBE


def distance(a: int, b: int) -> int:
    """Signed 24-bit distance of PSNs."""
    return ((a - b + 0x800000) & PSN_MASK) - 0x800000


@dataclass
class Worker:
    """One rank's end of one pool: its QP and its result buffer."""

    job: Job
    pool: int
    rank: int
    qpn: int  # the worker's own
    appliance_qpn: int
    ip: str
    mac: str
    psn: int  # next request
    expected_psn: int  # of the appliance's requests
    appliance_psn: int  # where the appliance's requests began
    va_base: int
    rkey: int
    result_va: int
    result_rkey: int
    udp_port: int
    buffer: bytearray = field(default_factory=bytearray)
    completions: list[int] = field(default_factory=list)  # immediates
    naks: list[int] = field(default_factory=list)  # syndromes received
    acked_psn: int | None = None
    msn: int = 0
    gap: bool = False
    _message: tuple[int, int] | None = None  # result in progress: place in the buffer, bytes still to come

    @property
    def received(self) -> int:
        """Rounds whose result this worker has."""
        return sum(imm != PROBE_IMM for imm in self.completions)

    def renew(self, number: int, rnd: random.Random) -> None:
        """Both ends of its QP for another epoch; what it has received, it keeps."""
        self.qpn = 0x1100 + number
        self.appliance_qpn = rnd.getrandbits(10) << 14 | (number & 1023) << 4 | 3
        self.psn = rnd.getrandbits(24)
        self.appliance_psn = self.expected_psn = rnd.getrandbits(24)
        self.va_base, self.rkey = rnd.getrandbits(62), rnd.getrandbits(32)
        self.acked_psn, self.msn, self.gap, self._message = None, 0, False, None

    def packet(self, opcode: int, psn: int, **fields: Any) -> Packet:
        """A packet from this worker to its QP at the appliance."""
        return Packet(
            opcode=opcode,
            qpn=self.appliance_qpn,
            psn=psn & PSN_MASK,
            src=self.ip,
            dst=family_of(self.ip).appliance,
            src_mac=self.mac,
            dst_mac=APPLIANCE_MAC,
            **fields,
        )

    def address(self, round: int, window: int = SUM_I32, byte: int = 0) -> int:
        """Remote address of a contribution."""
        return (self.va_base + (window << 56) + (round << 24) + byte) & (1 << 64) - 1

    def write(
        self, round: int, values: Array | bytes, *, op: int = SUM_I32, imm: int | None = None
    ) -> list[Packet]:
        """The packets of one contribution; the worker's PSN moves on."""
        data = values if isinstance(values, bytes) else values.tobytes()
        imm = (0xABC00000 + round) & 0xFFFFFFFF if imm is None else imm
        mtu = self.job.mtu
        parts = [data[i : i + mtu] for i in range(0, len(data), mtu)] or [b""]
        reth = {"va": self.address(round, op), "rkey": self.rkey, "dma_len": len(data)}
        packets = []
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            if i == 0:
                opcode, fields = (wire.ONLY_IMM, reth | {"imm": imm}) if last else (wire.FIRST, reth)
            else:
                opcode, fields = (wire.LAST_IMM, {"imm": imm}) if last else (wire.MIDDLE, {})
            packets.append(self.packet(opcode, self.psn + i, payload=part, ack_req=last, **fields))
        self.psn = (self.psn + len(parts)) & PSN_MASK
        return packets

    def probe(self) -> Packet:
        """The worker's probe: one full MTU to op window 0."""
        (packet,) = self.write(0, bytes(self.job.mtu), op=0, imm=PROBE_IMM)
        return packet

    def ack(self, psn: int, syndrome: int = 0x1F) -> Packet:
        """An acknowledgement of the appliance's packets up to `psn`, or with another syndrome a NAK."""
        return self.packet(wire.ACK, psn, syndrome=syndrome, msn=self.msn)

    def receive(self, packet: Packet) -> list[Packet]:
        """What this worker's NIC answers to one packet. Everything that breaks the protocol is an AssertionError."""
        assert (packet.dst, packet.dst_mac, packet.udp_port) == (self.ip, self.mac, self.udp_port)
        if packet.opcode == wire.ACK:
            if packet.syndrome > 0x1F:
                self.naks.append(packet.syndrome)
            self.acked_psn = packet.psn
            return []
        if packet.opcode == wire.CNP:
            return []
        ahead = distance(packet.psn, self.expected_psn)
        if ahead < 0:
            return [self.ack(self.expected_psn - 1)]
        if ahead > 0:
            reply = [] if self.gap else [self.ack(self.expected_psn, 0x60)]
            self.gap = True
            return reply
        self.gap = False
        self._execute(packet)
        self.expected_psn = (self.expected_psn + 1) & PSN_MASK
        return [self.ack(packet.psn)] if packet.ack_req else []

    def _execute(self, packet: Packet) -> None:
        if packet.opcode in (wire.FIRST, wire.ONLY_IMM):
            assert self._message is None and packet.rkey == self.result_rkey
            place = packet.va - self.result_va
            assert place >= 0 and place + packet.dma_len <= len(self.buffer), "outside the result buffer"
            self._message = (place, packet.dma_len)
        assert self._message is not None and packet.opcode in (
            wire.FIRST,
            wire.MIDDLE,
            wire.LAST_IMM,
            wire.ONLY_IMM,
        )
        place, residual = self._message
        last = packet.opcode in wire.MESSAGE_END
        assert len(packet.payload) == (residual if last else self.job.mtu) and (
            last or residual > self.job.mtu
        )
        self.buffer[place : place + len(packet.payload)] = packet.payload
        self._message = None if last else (place + len(packet.payload), residual - len(packet.payload))
        if last:
            self.msn = (self.msn + 1) & PSN_MASK
            self.completions.append(packet.imm)

    def result(self, round: int, like: Array) -> Array:
        """The result of a round in this worker's buffer."""
        place = round % self.job.window * self.job.chunk_bytes
        return np.frombuffer(bytes(self.buffer[place : place + like.nbytes]), like.dtype)
