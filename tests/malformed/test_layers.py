"""Below the transport: fragments, options, extension headers, VLANs, jumbo frames."""

from __future__ import annotations

import pytest

from ..protocol import wire
from ..protocol.wire import V4, V6
from . import fields
from .bench import Bench, tagged

STATES = ["idle", "mid", "err"]
OWN = 100


def good(bench: Bench) -> bytes:
    """What would be executed next."""
    return wire.quick_build(bench.next() if bench.qp.message else bench.only())


GROUPS = {
    "everyone": "ff:ff:ff:ff:ff:ff",
    "our solicited-node group": "33:33:ff:00:00:01",
    "another host's": "33:33:ff:00:00:02",
    "all nodes": "33:33:00:00:00:01",
    "an IPv4 group": "01:00:5e:00:00:01",
    "a bridge": "01:80:c2:00:00:00",
    "nobody": "00:00:00:00:00:00",
    "our own, but a group": "03:00:00:00:00:01",
}
ADDRESSES = ["ff02::1:ff00:1", "ff02::1", "::", "::1", "fd00:77::2", "fe80::1"]


@pytest.mark.parametrize("state", STATES)
def test_destinations_that_are_not_ours(family, check, state):
    """RoCE comes to our MAC and our address: not to the groups at which neighbours ask for us."""

    def to(mac: str):
        return lambda b: bytes.fromhex(mac.replace(":", "")) + good(b)[6:]

    def at(mac: str, address: str):
        def make(bench: Bench) -> bytes:
            frame = to(mac)(bench)
            frame = frame[:38] + wire.address_bytes(address) + frame[54:]
            return fields.mend(frame, V6)

        return make

    cases = [(f"to {what}", state, to(mac)) for what, mac in GROUPS.items()]
    if family is V6:
        cases += [
            (f"to {address} at {mac}", state, at(mac, address))
            for mac in ("02:00:00:00:00:01", GROUPS["our solicited-node group"])
            for address in ADDRESSES
        ]
    check(family, cases)


@pytest.mark.parametrize("state", STATES)
def test_ipv4_options(check, state):
    """One to ten words between header and UDP; lengths and checksums are right."""

    def make(words: int, option: int):
        def with_options(bench: Bench) -> bytes:
            frame = good(bench)
            at = wire.ETHERNET_BYTES
            total = len(frame) - at + 4 * words
            ip = bytes([0x45 + words, frame[at + 1]]) + total.to_bytes(2, "big") + frame[at + 4 : at + 20]
            ip = ip[:10] + bytes(2) + ip[12:] + bytes([option]) * 4 * words
            ip = ip[:10] + fields.checksum(ip) + ip[12:]
            body = frame[at + 20 : -4]
            return frame[:at] + ip + body + wire.icrc(ip + body)

        return with_options

    check(
        V4,
        [
            (f"{words} words of option {option}", state, make(words, option))
            for words in range(1, 11)
            for option in (0, 1, 7, 68, 131, 148)
        ],
    )


@pytest.mark.parametrize("state", STATES)
def test_fragments(family, check, state):
    """First, middle and last fragments, also of a whole packet's length (a datagram that says it is one)."""

    def v4(more: int, offset: int):
        return lambda b: fields.mend(
            good(b)[:20] + (more << 13 | offset).to_bytes(2, "big") + good(b)[22:], V4
        )

    def v6(more: int, offset: int):
        header = bytes([17, 0]) + (offset << 3 | more).to_bytes(2, "big") + bytes(4)
        return lambda b: _before_udp(good(b), 44, header)

    make = v4 if family is V4 else v6
    offsets = [0, 1, 2, 37, 1024, 4096, 8191]
    check(
        family,
        [
            (f"more {more}, offset {offset}", state, make(more, offset))
            for more in (0, 1)
            for offset in offsets
        ],
    )


def _before_udp(frame: bytes, next_header: int, header: bytes) -> bytes:
    """An IPv6 header between IP and UDP, with an ICRC over all of it."""
    at = wire.ETHERNET_BYTES
    length = int.from_bytes(frame[at + 4 : at + 6], "big") + len(header)
    ip = frame[at : at + 4] + length.to_bytes(2, "big") + bytes([next_header]) + frame[at + 7 : at + 40]
    return fields.mend(frame[:at] + ip + header + frame[at + 40 :], V6)


@pytest.mark.parametrize("state", STATES)
def test_ipv6_extension_headers(check, state):
    """Every protocol number in front of UDP, and chains of two headers."""

    def make(next_header: int, words: int, then: int = 17):
        header = bytes([then, words - 1]) + bytes([1, 4]) + bytes(8 * words - 4)
        return lambda b: _before_udp(good(b), next_header, header)

    cases = [(f"next header {n}", state, make(n, 1)) for n in range(256) if n != 17]
    cases += [
        (f"{words} words of {n}", state, make(n, words)) for n in (0, 43, 51, 60) for words in (2, 3, 8)
    ]
    cases += [
        (f"{n} then {then}", state, make(n, 1, then)) for n in (0, 43, 51, 60) for then in (0, 43, 44, 60, 59)
    ]
    check(V6, cases)


TAGS = {
    "own": [(0x8100, OWN)],
    "own, priority 7, DEI": [(0x8100, 0xF000 | OWN)],
    "VID 0": [(0x8100, 0)],
    "VID 0, priority 5": [(0x8100, 0xA000)],
    "foreign": [(0x8100, OWN + 1)],
    "VID 1": [(0x8100, 1)],
    "VID 4094": [(0x8100, 4094)],
    "VID 4095": [(0x8100, 4095)],
    "QinQ": [(0x88A8, OWN), (0x8100, OWN)],
    "QinQ alone": [(0x88A8, OWN)],
    "QinQ inside": [(0x8100, OWN), (0x88A8, OWN)],
    "twice": [(0x8100, OWN), (0x8100, OWN)],
    "VID 0 twice": [(0x8100, 0), (0x8100, 0)],
    "old QinQ": [(0x9100, OWN), (0x8100, OWN)],
    "three tags": [(0x8100, 0), (0x8100, OWN), (0x8100, OWN)],
    "none": [],
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("vlan", [0, OWN])
def test_tags(family, check, vlan, state):
    """On a lane without a VLAN and on one with; also cut inside the tag."""
    cases = [
        (f"tags: {what}", state, lambda b, tags=tags: tagged(good(b), *tags)) for what, tags in TAGS.items()
    ]
    cases += [
        (f"cut to {size} bytes", state, lambda b, size=size: tagged(good(b), (0x8100, vlan))[:size])
        for size in range(12, 40)
    ]
    check(family, cases, vlan=vlan)


@pytest.mark.parametrize("state", STATES)
def test_jumbo_frames(family, check, state):
    """More payload than the path MTU, up to the largest datagram; and a sound packet in a frame of that size."""
    sizes = [1024, 1500, 4096, 4100, 8192, 8900, 9000, 9216, 16384, 32768, 65535 - 8 - 40 - 12 - 20 - 4]
    bodies = [
        (f"payload of {n} bytes", state, lambda b, n=n: wire.quick_build(_now(b).but(payload=bytes(n))))
        for n in sizes
    ]
    announced = [
        (
            f"and announced: {n}",
            state,
            lambda b, n=n: wire.quick_build(_now(b).but(payload=bytes(n), dma_len=n)),
        )
        for n in sizes
    ]
    padded = [
        (f"{n} bytes of Ethernet padding", state, lambda b, n=n: good(b) + bytes(n))
        for n in (1, 2, 3, 4, 46, *sizes)
    ]
    check(family, [*bodies, *announced, *padded])


def _now(bench: Bench) -> wire.Packet:
    return bench.next() if bench.qp.message else bench.only()
