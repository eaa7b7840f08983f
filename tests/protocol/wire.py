"""Frames made and read by scapy (contrib.roce), so that the builder and parser under test are not their own judges.

`quick_build` and `quick_read` do the same without scapy for runs of many thousand packets; a test holds them to scapy.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from dataclasses import dataclass, replace
from functools import cache

from scapy.compat import raw
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM, ACK, CNP = 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x11, 0x81
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY, READ_REQUEST, FETCH_ADD = 0x00, 0x01, 0x02, 0x04, 0x0C, 0x14
HAS_RETH = {FIRST, ONLY, ONLY_IMM, READ_REQUEST}
HAS_IMM = {LAST_IMM, ONLY_IMM}
HAS_AETH = {ACK, 0x0D, 0x0F, 0x10, 0x12}
MESSAGE_END = {LAST, LAST_IMM, ONLY, ONLY_IMM}
PSN_MASK = 0xFFFFFF
ROCE_PORT = 4791

APPLIANCE_MAC = "02:00:00:00:00:01"
DSCP = 26
ECT0 = 2
ETHERNET_BYTES = 14


@dataclass(frozen=True)
class Family:
    """What differs between a rack of IPv4 and one of IPv6."""

    version: int
    prefix: str
    """Network of the rack up to the host's number."""
    prefix_bits: int
    ip_bytes: int
    """Of the IP header."""

    def host(self, number: int, prefix: str | None = None) -> str:
        """Address of a host, of another network if a prefix is given."""
        return f"{prefix or self.prefix}{number if self.version == 4 else f'{number:x}'}"

    @property
    def appliance(self) -> str:
        return self.host(1)

    @property
    def gateway(self) -> str:
        return self.host(254)

    @property
    def elsewhere(self) -> str:
        """Prefix of a network behind the gateway."""
        return "10.7.0." if self.version == 4 else "fd00:7::"

    def __str__(self) -> str:
        return f"ipv{self.version}"


V4 = Family(4, "10.0.0.", 24, 20)
V6 = Family(6, "fd00:77::", 64, 40)
FAMILIES = (V4, V6)


def family_of(address: str) -> Family:
    """Family of an address."""
    return V6 if ":" in address else V4


@dataclass(frozen=True)
class Packet:
    """One RoCE packet; a field that its opcode does not carry is zero."""

    opcode: int
    qpn: int
    psn: int
    src: str
    dst: str
    src_mac: str
    dst_mac: str
    udp_port: int = 0xC000
    ack_req: bool = False
    va: int = 0
    rkey: int = 0
    dma_len: int = 0
    imm: int = 0
    syndrome: int = 0
    msn: int = 0
    payload: bytes = b""
    p_key: int = 0xFFFF
    tos: int = DSCP << 2 | ECT0

    def but(self, **changes: object) -> Packet:
        """This packet with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def _extensions(packet: Packet) -> bytes:
    extensions = b""
    if packet.opcode in HAS_RETH:
        extensions += struct.pack("!QII", packet.va, packet.rkey, packet.dma_len)
    if packet.opcode in HAS_IMM:
        extensions += struct.pack("!I", packet.imm)
    if packet.opcode in HAS_AETH:
        extensions += struct.pack("!I", packet.syndrome << 24 | packet.msn)
    if packet.opcode == FETCH_ADD:
        extensions += bytes(28)
    return extensions + bytes(16 if packet.opcode == CNP else 0)


def _ip_layer(packet: Packet) -> IP | IPv6:
    if family_of(packet.dst) is V6:
        return IPv6(src=packet.src, dst=packet.dst, tc=packet.tos, hlim=64)
    return IP(src=packet.src, dst=packet.dst, tos=packet.tos, flags="DF", ttl=64)


def build(packet: Packet) -> bytes:
    """The Ethernet frame of a packet, by scapy."""
    return raw(
        Ether(src=packet.src_mac, dst=packet.dst_mac)
        / _ip_layer(packet)
        / UDP(sport=packet.udp_port, dport=ROCE_PORT, chksum=0)
        / BTH(
            opcode=packet.opcode,
            migreq=1,
            padcount=-len(packet.payload) % 4,
            pkey=packet.p_key,
            dqpn=packet.qpn,
            ackreq=packet.ack_req,
            psn=packet.psn,
        )
        / Raw(_extensions(packet) + packet.payload + bytes(-len(packet.payload) % 4))
    )


def read(frame: bytes) -> Packet:
    """A frame that the appliance sent, by scapy, with everything checked that all of its frames have in common."""
    ether = Ether(frame)
    ip, udp, bth = ether.payload, ether[UDP], ether[BTH]
    if isinstance(ip, IPv6):
        assert (ip.version, ip.nh, ip.fl, ip.hlim) == (6, 17, 0, 64)
        assert ip.plen == len(frame) - 54 == udp.len
    else:
        assert (ip.version, ip.ihl, str(ip.flags), ip.frag, ip.ttl) == (4, 5, "DF", 0, 64)
        assert ip.len == len(frame) - 14 and udp.len == ip.len - 20
        assert IP(raw(ip.copy())).chksum == ip.chksum and raw(IP(raw(ip)[:20]))[10:12] == raw(ip)[10:12]
    assert udp.chksum == 0 and udp.sport >= 0xC000 and udp.dport == ROCE_PORT
    assert (bth.migreq, bth.version, bth.pkey, bth.fecn) == (1, 0, 0xFFFF, 0)
    assert bth.becn == (bth.opcode == CNP)
    assert bth.compute_icrc(b"") == frame[-4:], "ICRC"
    return _fields(frame, ether.src, ether.dst)


def _fields(frame: bytes, src_mac: str, dst_mac: str) -> Packet:
    """Fields behind the Ethernet header, at fixed places since IP has neither options nor extensions."""
    v6 = frame[14] >> 4 == 6
    udp = 14 + (V6 if v6 else V4).ip_bytes
    bth = udp + 8
    opcode, flags, p_key = struct.unpack_from("!BBH", frame, bth)
    packet = Packet(
        opcode=opcode,
        qpn=int.from_bytes(frame[bth + 5 : bth + 8], "big"),
        psn=int.from_bytes(frame[bth + 9 : bth + 12], "big"),
        src=_text(frame[udp - 32 : udp - 16] if v6 else frame[udp - 8 : udp - 4]),
        dst=_text(frame[udp - 16 : udp] if v6 else frame[udp - 4 : udp]),
        src_mac=src_mac,
        dst_mac=dst_mac,
        udp_port=int.from_bytes(frame[udp : udp + 2], "big"),
        ack_req=bool(frame[bth + 8] >> 7),
        p_key=p_key,
        tos=int.from_bytes(frame[14:16], "big") >> 4 & 0xFF if v6 else frame[15],
    )
    at, fields = bth + 12, {}
    if opcode in HAS_RETH:
        fields["va"], fields["rkey"], fields["dma_len"] = struct.unpack_from("!QII", frame, at)
        at += 16
    if opcode in HAS_IMM:
        (fields["imm"],) = struct.unpack_from("!I", frame, at)
        at += 4
    if opcode in HAS_AETH:
        (aeth,) = struct.unpack_from("!I", frame, at)
        fields["syndrome"], fields["msn"] = aeth >> 24, aeth & PSN_MASK
        at += 4
    if opcode == CNP:
        at += 16
    pad = flags >> 4 & 3
    return packet.but(**fields, payload=frame[at : len(frame) - 4 - pad])


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


@cache
def address_bytes(text: str) -> bytes:
    """4 or 16 bytes."""
    return ipaddress.ip_address(text).packed


@cache
def _text(address: bytes) -> str:
    return str(ipaddress.ip_address(address))


def _ones_sum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _ip_header(packet: Packet, udp_bytes: int) -> bytes:
    src, dst = address_bytes(packet.src), address_bytes(packet.dst)
    if len(dst) == 16:
        return struct.pack("!IHBB16s16s", 6 << 28 | packet.tos << 20, udp_bytes, 17, 64, src, dst)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, packet.tos, 20 + udp_bytes, 1, 0x4000, 64, 17, 0, src, dst)
    return ip[:10] + struct.pack("!H", _ones_sum(ip)) + ip[12:]


def icrc(datagram: bytes) -> bytes:
    """The four bytes that follow a datagram from its IP header to the last pad byte, by zlib."""
    masked = bytearray(b"\xff" * 8 + datagram)
    if datagram[0] >> 4 == 6:
        masked[8:12] = b"\x6f\xff\xff\xff"  # traffic class and flow label
        changing = (7, 46, 47, 52)  # hop limit; UDP checksum; BTH byte 4
    else:
        changing = (1, 8, 10, 11, 26, 27, 32)  # TOS, TTL, header checksum; UDP checksum; BTH byte 4
    for place in changing:
        masked[8 + place] = 0xFF
    return struct.pack("<I", zlib.crc32(masked))


def quick_build(packet: Packet) -> bytes:
    """The same bytes as build()."""
    pad = -len(packet.payload) % 4
    body = _extensions(packet) + packet.payload + bytes(pad)
    udp_bytes = 8 + 12 + len(body) + 4
    ip = _ip_header(packet, udp_bytes)
    udp = struct.pack("!HHHH", packet.udp_port, ROCE_PORT, udp_bytes, 0)
    bth = struct.pack(
        "!BBHII",
        packet.opcode, 0x40 | pad << 4, packet.p_key, packet.qpn, packet.ack_req << 31 | packet.psn,
    )  # fmt: skip
    ethernet = _mac(packet.dst_mac) + _mac(packet.src_mac) + (b"\x86\xdd" if len(ip) == 40 else b"\x08\x00")
    datagram = ip + udp + bth + body
    return ethernet + datagram + icrc(datagram)


def quick_read(frame: bytes) -> Packet:
    """The same packet as read(), with the ICRC checked."""
    assert icrc(frame[14:-4]) == frame[-4:], "ICRC"
    return _fields(frame, frame[6:12].hex(":"), frame[0:6].hex(":"))
