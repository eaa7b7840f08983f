"""What an RC endpoint must make of a frame, written from the rules and from nothing of the core.

`judge` walks the receive order (README.md), then the responder's or the requester's rules, and names the first one that
the frame breaks. It reads bytes by itself, so that a length, an offset or an order that the core has wrong is not wrong
here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..protocol import streams, wire
from ..protocol.library import lib
from ..protocol.ops import EXPANSION, STREAMS, UNIT
from ..protocol.wire import APPLIANCE_MAC, PSN_MASK
from ..protocol.worker import distance

ACK, NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS = 0x1F, 0x60, 0x61, 0x62
IPV4, IPV6, VLAN, QINQ = 0x0800, 0x86DD, 0x8100, 0x88A8
UDP, ICMPV6 = 17, 58
EXTENSION_HEADERS = {0: "ip_header", 43: "ip_header", 44: "ip_fragment", 51: "ip_header", 60: "ip_header"}
MAPPED = bytes(10) + b"\xff\xff"


class Row(NamedTuple):
    """One opcode: bytes from the BTH to the payload, what kind of packet, and where it stands in its message."""

    header_bytes: int
    kind: str
    begins: bool = True
    ends: bool = True
    payload: bool = True
    imm: bool = False


OPCODES = {
    0x00: Row(12, "send", ends=False),
    0x01: Row(12, "send", begins=False, ends=False),
    0x02: Row(12, "send", begins=False),
    0x03: Row(16, "send", begins=False, imm=True),
    0x04: Row(12, "send"),
    0x05: Row(16, "send", imm=True),
    0x06: Row(28, "write", ends=False),
    0x07: Row(12, "write", begins=False, ends=False),
    0x08: Row(12, "write", begins=False),
    0x09: Row(16, "write", begins=False, imm=True),
    0x0A: Row(28, "write"),
    0x0B: Row(32, "write", imm=True),
    0x0C: Row(28, "read", payload=False),
    0x0D: Row(16, "response"),
    0x0E: Row(12, "response"),
    0x0F: Row(16, "response"),
    0x10: Row(16, "response"),
    0x11: Row(16, "acknowledge", payload=False),
    0x12: Row(24, "response", payload=False),
    0x13: Row(40, "atomic", payload=False),
    0x14: Row(40, "atomic", payload=False),
    0x16: Row(16, "send", begins=False),
    0x17: Row(16, "send"),
    0x1C: Row(32, "flush", payload=False),
    0x1D: Row(28, "atomic write"),
    0x81: Row(28, "cnp", payload=False),
}


@dataclass(frozen=True)
class Message:
    """A WRITE in progress: what its FIRST announced and what has come."""

    length: int
    op: int
    data: bytes = b""
    imm: int = 0

    @property
    def residual(self) -> int:
        return self.length - len(self.data)


@dataclass(frozen=True)
class Qp:
    """All that the rules know about one queue pair of the appliance and the round that its rank is in."""

    family: wire.Family
    qpn: int
    peer: str
    va_base: int
    rkey: int
    expected_psn: int
    next_round: int
    mtu: int
    slot_bytes: int
    ops: tuple[int, ...] = (
        lib.PSC_OP_SUM_I32,
        lib.PSC_OP_SUM_F32,
        lib.PSC_OP_MAX_F32,
    )  # of op windows 1, 2, ...
    vlan: int = 0
    in_error: bool = False
    nak_sent: bool = False
    message: Message | None = None
    first: Message | None = None  # another rank's whole contribution to next_round
    window_open: bool = True  # next_round is within the window
    unacked_psn: int = 0  # of our requests: oldest that is not acknowledged
    fresh_psn: int = 0  # first that was never sent


@dataclass(frozen=True)
class Verdict:
    """What must be seen after one frame."""

    drop: str | None = None  # the one counter that grows; None: executed or taken
    reply: tuple[int, int] | None = None  # PSN and syndrome of the one ACK or NAK that leaves
    fault: str | None = None  # of the one FAULT event: the QP is in ERR, and so is its job
    executed: Message | None = None  # what the message consists of now
    cnp: bool = False  # a congestion notification leaves
    acknowledged: bool = False  # an ACK or NAK that counts


class Packet(NamedTuple):
    """A frame that has come through the receive order."""

    row: Row
    opcode: int
    ack_req: bool
    psn: int
    extension: bytes
    payload: bytes
    congested: bool


def u16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big")


def _sum_ok(header: bytes) -> bool:
    return sum(u16(header, at) for at in range(0, len(header), 2)) % 0xFFFF == 0


class _Walk:
    """The receive order as a generator: (reason, whether the frame breaks this rule), lazily and in order."""

    def __init__(self, frame: bytes, qp: Qp) -> None:
        self.frame, self.qp = frame, qp
        self.l3 = b""
        self.packet: Packet | None = None

    def link(self) -> Iterator[tuple[str, bool]]:
        """1: our MAC; at most one VLAN tag, with VID 0 or the configured one."""
        frame, vlan = self.frame, self.qp.vlan
        yield "runt", len(frame) < 14
        yield "foreign_mac", frame[:6] != bytes.fromhex(APPLIANCE_MAC.replace(":", ""))
        ethertype, at = u16(frame, 12), 14
        if ethertype == VLAN:
            yield "runt", len(frame) < 18
            yield "vlan", u16(frame, 14) & 0xFFF not in (0, vlan)
            ethertype, at = u16(frame, 16), 18
        yield "vlan", ethertype in (VLAN, QINQ)
        yield "ethertype", ethertype not in (IPV4, IPV6)
        self.l3 = frame[at:]
        yield from self.ipv4() if ethertype == IPV4 else self.ipv6()

    def ipv4(self) -> Iterator[tuple[str, bool]]:
        """2: version 4, no options, no fragment, total length within the bytes that are there."""
        ip = self.l3
        yield "runt", len(ip) < 20
        total = u16(ip, 2)
        yield "ip_header", ip[0] != 0x45 or total < 20
        yield "runt", total > len(ip)
        yield "ip_header", not _sum_ok(ip[:20])
        yield "ip_fragment", u16(ip, 6) & 0x3FFF != 0
        yield "foreign_ip", ip[16:20] != wire.address_bytes(self.qp.family.appliance)
        yield "not_roce", ip[9] != UDP
        yield from self.udp(total, 20, ip[12:16], ip[1] & 3)

    def ipv6(self) -> Iterator[tuple[str, bool]]:
        """2: version 6, UDP follows directly: every extension header is refused."""
        ip = self.l3
        yield "runt", len(ip) < 40
        total = 40 + u16(ip, 4)
        yield "ip_header", ip[0] >> 4 != 6 or ip[8:20] == MAPPED or ip[24:36] == MAPPED
        yield "runt", total > len(ip)
        reason = EXTENSION_HEADERS.get(ip[6])
        yield reason or "", reason is not None
        yield "foreign_ip", ip[24:40] != wire.address_bytes(self.qp.family.appliance)
        yield "not_roce", ip[6] != UDP
        yield from self.udp(total, 40, ip[8:24], ip[1] >> 4 & 3)

    def udp(self, total: int, ip_bytes: int, src: bytes, ecn: int) -> Iterator[tuple[str, bool]]:
        """3: UDP's length is what IP says and holds at least a BTH and an ICRC."""
        udp = self.l3[ip_bytes:total]
        yield "udp_length", len(udp) < 8
        yield "not_roce", u16(udp, 2) != wire.ROCE_PORT
        yield "udp_length", u16(udp, 4) != len(udp) or len(udp) < 24
        yield from self.transport(udp[8:], total, src, ecn)

    def transport(self, bth: bytes, total: int, src: bytes, ecn: int) -> Iterator[tuple[str, bool]]:
        """4, 5: a known opcode; then lengths. 6-9: the QP, its state, its peer, the partition, the ICRC."""
        row = OPCODES.get(bth[0])
        yield "opcode", row is None
        assert row is not None
        yield "bth", bth[1] & 0x0F != 0
        pad = bth[1] >> 4 & 3
        payload_bytes = len(bth) - row.header_bytes - pad - 4
        yield "bth", payload_bytes < 0 or len(bth) % 4 != 0
        yield "bth", payload_bytes > 0 and not row.payload
        yield "bth", pad > 0 and payload_bytes == 0
        yield "unknown_qp", int.from_bytes(bth[5:8], "big") != self.qp.qpn
        yield "qp_state", self.qp.in_error
        yield "foreign_peer", src != wire.address_bytes(self.qp.peer)
        yield "p_key", u16(bth, 2) & 0x7FFF != 0x7FFF
        yield "icrc", wire.icrc(self.l3[: total - 4]) != self.l3[total - 4 : total]
        self.packet = Packet(
            row=row,
            opcode=bth[0],
            ack_req=bth[8] >> 7 == 1,
            psn=int.from_bytes(bth[9:12], "big"),
            extension=bth[12 : row.header_bytes],
            payload=bth[row.header_bytes : row.header_bytes + payload_bytes],
            congested=ecn == 3,
        )


def judge(frame: bytes, qp: Qp) -> Verdict:
    """The first rule that the frame breaks, or what it does."""
    walk = _Walk(frame, qp)
    for reason, broken in walk.link():
        if broken:
            return Verdict(drop=reason)
    packet = walk.packet
    assert packet is not None
    if packet.row.kind == "cnp":
        return Verdict()
    if packet.row.kind == "acknowledge":
        return _response(packet, qp)
    if packet.row.kind == "response":  # to a READ or an ATOMIC, which are never sent
        return Verdict(drop="opcode")
    verdict = _request(packet, qp)
    return replace(verdict, cnp=packet.congested and verdict.fault is None)


def _response(packet: Packet, qp: Qp) -> Verdict:
    """ACK, RNR and NAK count within [oldest unacknowledged, newest sent]; reserved syndromes never."""
    syndrome = packet.extension[0]
    kind = syndrome >> 5
    if kind not in (0, 1) and syndrome not in (0x60, 0x61, 0x62, 0x63):
        return Verdict(drop="reserved_syndrome")
    if distance(packet.psn, qp.unacked_psn) < 0 or distance(packet.psn, qp.fresh_psn) >= 0:
        return Verdict(drop="stale_ack")
    if syndrome in (0x61, 0x62, 0x63):
        return Verdict(fault="nak_received")
    return Verdict(acknowledged=True)


def _request(packet: Packet, qp: Qp) -> Verdict:
    """Past: acknowledged again. Future: one NAK per gap. In order: executed, or refused and the end."""
    ahead = distance(packet.psn, qp.expected_psn)
    if ahead < 0:
        return Verdict(drop="duplicate", reply=((qp.expected_psn - 1) & PSN_MASK, ACK))
    if ahead > 0:
        return Verdict(drop="gap", reply=None if qp.nak_sent else (qp.expected_psn, NAK_SEQUENCE))
    for fault, broken in _in_order(packet, qp):
        if broken:
            syndrome = NAK_ACCESS if fault == "remote_access" else NAK_INVALID
            return Verdict(drop="refused", reply=(packet.psn, syndrome), fault=fault)
    return Verdict(executed=_executed(packet, qp), reply=(packet.psn, ACK) if packet.ack_req else None)


def _in_order(packet: Packet, qp: Qp) -> Iterator[tuple[str, bool]]:
    """The responder's order: sequence, operation, what all ranks must agree on, lengths, access, immediate."""
    row = packet.row
    yield "invalid_request", row.begins == (qp.message is not None)
    yield "invalid_request", row.kind != "write"
    if row.begins:
        yield from _begins(packet, qp)
    else:
        yield from _continues(packet, qp)
    if row.ends:
        agreed = None if qp.first is None else qp.first.imm
        yield "imm_mismatch", agreed is not None and _imm(packet) != agreed
    yield from _stream(_executed(packet, qp), qp)


def _stream(message: Message, qp: Qp) -> Iterator[tuple[str, bool]]:
    """Of an op with sub-blocks: what has come of it is the beginning of a stream, or all of one."""
    if message.op not in STREAMS:
        return
    agreed = None if qp.first is None else int.from_bytes(qp.first.data[:4], "little")
    fault = streams.fault_of(message.data, message.length, streams.elements_max(qp.slot_bytes), agreed)
    if fault is not None:
        yield fault.name, True


def _begins(packet: Packet, qp: Qp) -> Iterator[tuple[str, bool]]:
    """FIRST and ONLY."""
    va, rkey, length = reth(packet.extension)
    window, round, byte = split(va - qp.va_base)
    op = _op(window, qp)
    if window == 0:  # the probe, which comes before round 0
        yield "round_mismatch", qp.next_round > 0
    elif op is not None:
        yield "round_mismatch", round != qp.next_round or not qp.window_open
        yield "op_mismatch", qp.first is not None and op != qp.first.op
        yield "length_mismatch", qp.first is not None and length != qp.first.length and op not in STREAMS
    yield "invalid_request", packet.row.ends and not packet.row.imm
    yield "invalid_request", length == 0 or length % UNIT.get(op or 0, 4) != 0
    if packet.row.ends:
        yield "invalid_request", length > qp.mtu or len(packet.payload) != length
    else:
        yield "invalid_request", length <= qp.mtu or len(packet.payload) != qp.mtu
    yield "remote_access", rkey != qp.rkey
    yield "remote_access", op is None or byte != 0 or (window == 0 and round != 0)
    yield "remote_access", length > (qp.mtu if window == 0 else qp.slot_bytes // EXPANSION.get(op or 0, 1))
    if window == 0:
        yield "invalid_request", length != qp.mtu or _imm(packet) != lib.PSC_IMM_PROBE


def _continues(packet: Packet, qp: Qp) -> Iterator[tuple[str, bool]]:
    """MIDDLE carries one MTU and is not due when a LAST is; LAST carries exactly the residual."""
    assert qp.message is not None
    residual = qp.message.residual
    yield "invalid_request", packet.row.ends and not packet.row.imm
    yield "invalid_request", packet.row.ends != (residual <= qp.mtu)
    yield "invalid_request", len(packet.payload) != min(residual, qp.mtu)


def _executed(packet: Packet, qp: Qp) -> Message:
    if packet.row.begins:
        va, _, length = reth(packet.extension)
        message = Message(length, _op(split(va - qp.va_base)[0], qp) or 0)
    else:
        assert qp.message is not None
        message = qp.message
    imm = _imm(packet) if packet.row.ends else 0
    return replace(message, data=message.data + packet.payload, imm=imm)


def _op(window: int, qp: Qp) -> int | None:
    """Op of a window: the probe's adds nothing, unknown ones have none."""
    return lib.PSC_OP_PROBE if window == 0 else dict(enumerate(qp.ops, 1)).get(window)


def _imm(packet: Packet) -> int:
    return int.from_bytes(packet.extension[-4:], "big")


def reth(extension: bytes) -> tuple[int, int, int]:
    """Address, rkey, length."""
    return (
        int.from_bytes(extension[0:8], "big"),
        int.from_bytes(extension[8:12], "big"),
        int.from_bytes(extension[12:16], "big"),
    )


def split(offset: int) -> tuple[int, int, int]:
    """Op window, round and byte of an offset modulo 2^64: an address below the base has a huge window."""
    offset &= (1 << 64) - 1
    return offset >> 56, offset >> 24 & 0xFFFFFFFF, offset & 0xFFFFFF
