"""Where every header field of a RoCE frame lies, and how a frame is changed in one field.

A changed frame is otherwise sound: IPv4's checksum and the ICRC are made anew, unless they are what was changed. So the
field is what is judged, not its side effect on a checksum.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ..protocol import wire
from ..protocol.wire import V4, Family

BTH_BYTES = 12


@dataclass(frozen=True)
class Field:
    """`width` bits from bit `at` of a layer on; bit 0 is the most significant of the layer's first byte."""

    layer: str
    name: str
    at: int
    width: int

    def __str__(self) -> str:
        return f"{self.layer}.{self.name}"


def _fields(layer: str, **widths: int) -> list[Field]:
    """Consecutive fields by their widths in bits."""
    fields, at = [], 0
    for name, width in widths.items():
        fields.append(Field(layer, name, at, width))
        at += width
    return fields


ETHERNET = _fields("ethernet", dst=48, src=48, type=16)
TAG = _fields("tag", pcp=3, dei=1, vid=12, type=16)
IPV4 = _fields(
    "ip", version=4, ihl=4, dscp=6, ecn=2, total_length=16, id=16, reserved=1, df=1, mf=1, offset=13,
    ttl=8, protocol=8, checksum=16, src=32, dst=32,
)  # fmt: skip
IPV6 = _fields(
    "ip",
    version=4,
    dscp=6,
    ecn=2,
    flow_label=20,
    payload_length=16,
    next_header=8,
    hop_limit=8,
    src=128,
    dst=128,
)
UDP = _fields("udp", src_port=16, dst_port=16, length=16, checksum=16)
BTH = _fields(
    "bth", opcode=8, se=1, mig_req=1, pad=2, tver=4, p_key=16, fecn=1, becn=1, reserved6=6, qpn=24,
    ack_req=1, reserved7=7, psn=24,
)  # fmt: skip
RETH = _fields("extension", va=64, rkey=32, dma_len=32)
IMM = _fields("extension", imm=32)
RETH_IMM = _fields("extension", va=64, rkey=32, dma_len=32, imm=32)
AETH = _fields("extension", syndrome=8, msn=24)
ICRC = Field("icrc", "icrc", 0, 32)
EXTENSIONS = {wire.FIRST: RETH, wire.MIDDLE: [], wire.LAST_IMM: IMM, wire.ONLY_IMM: RETH_IMM, wire.ACK: AETH}


def fields_of(opcode: int, family: Family) -> list[Field]:
    """Every field of a packet with this opcode."""
    ip = IPV4 if family is V4 else IPV6
    return [*ETHERNET, *ip, *UDP, *BTH, *EXTENSIONS[opcode], ICRC]


def ip_at(frame: bytes) -> int:
    """Where the IP header begins."""
    return wire.ETHERNET_BYTES + 4 * (frame[12:14] == b"\x81\x00")


def _start(frame: bytes, layer: str, family: Family) -> int:
    udp = ip_at(frame) + family.ip_bytes
    return {
        "ethernet": 0,
        "tag": wire.ETHERNET_BYTES,
        "ip": ip_at(frame),
        "udp": udp,
        "bth": udp + 8,
        "extension": udp + 8 + BTH_BYTES,
        "icrc": len(frame) - 4,
    }[layer]


def _place(frame: bytes, field: Field, family: Family) -> tuple[int, int, int]:
    """First byte, number of bytes, and bits to the right of the field in them."""
    first_bit = _start(frame, field.layer, family) * 8 + field.at
    first, last = first_bit // 8, (first_bit + field.width - 1) // 8
    return first, last - first + 1, (last + 1) * 8 - first_bit - field.width


def get(frame: bytes, field: Field, family: Family) -> int:
    """The field's value."""
    first, size, shift = _place(frame, field, family)
    return int.from_bytes(frame[first : first + size], "big") >> shift & (1 << field.width) - 1


def put(frame: bytes, field: Field, value: int, family: Family) -> bytes:
    """The frame with the field set and everything that covers it made anew."""
    first, size, shift = _place(frame, field, family)
    mask = (1 << field.width) - 1 << shift
    old = int.from_bytes(frame[first : first + size], "big")
    new = (old & ~mask | value << shift & mask).to_bytes(size, "big")
    return mend(frame[:first] + new + frame[first + size :], family, field.name)


def mend(frame: bytes, family: Family, keep: str = "") -> bytes:
    """IPv4's checksum and the ICRC as they belong there; `keep` names the one that is meant to be wrong."""
    at = ip_at(frame)
    if family is V4 and keep != "checksum":
        frame = frame[: at + 10] + checksum(frame[at : at + 10] + frame[at + 12 : at + 20]) + frame[at + 12 :]
    return frame if keep == "icrc" else frame[:-4] + wire.icrc(frame[at:-4])


def with_udp_payload(frame: bytes, body: bytes, family: Family) -> bytes:
    """The frame's headers up to UDP around another body, with lengths, checksum and an ICRC that fit."""
    at = ip_at(frame)
    udp = at + family.ip_bytes
    bytes_ = 8 + len(body) + 4
    ip = bytearray(frame[at:udp])
    if family is V4:
        ip[2:4] = (len(ip) + bytes_).to_bytes(2, "big")
    else:
        ip[4:6] = bytes_.to_bytes(2, "big")
    header = frame[udp : udp + 4] + bytes_.to_bytes(2, "big") + frame[udp + 6 : udp + 8]
    return mend(frame[:at] + bytes(ip) + header + body + bytes(4), family)


def checksum(data: bytes) -> bytes:
    """RFC 1071."""
    total = sum(data[0::2]) * 256 + sum(data[1::2])
    return (0xFFFF - total % 0xFFFF).to_bytes(2, "big")


def values(field: Field, current: int, seed: int) -> list[int]:
    """What a field is tried with: 0, 1, its limits, its neighbours, chance, and what it is."""
    top = (1 << field.width) - 1
    rnd = random.Random(f"{field} {current} {seed}")
    wanted = [
        0,
        1,
        top,
        top - 1,
        current + 1,
        current - 1,
        rnd.getrandbits(field.width),
        rnd.getrandbits(field.width),
    ]
    return list(dict.fromkeys([current, *(value & top for value in wanted)]))
