"""A worker of these tests: its control connection, and RC queue pairs spoken over a packet socket. It knows the two
contracts from their pages alone, uses none of the project's code, and does just enough RC for a lossless veth.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import socket
import struct
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.appliance.rack import APPLIANCE_IP, PATIENCE_S, WORKER_IP, Rack, until

IMM_PROBE = 0x50534350
ACK, FIRST, MIDDLE, LAST_IMM, ONLY_IMM = 0x11, 0x06, 0x07, 0x09, 0x0B
WITH_RETH = {0x06, 0x0A, 0x0B}
WITH_IMM = {0x09, 0x0B}
SO_RCVBUFFORCE = 33
"""Linux; what comes while this process does not run is kept."""
QPNS = itertools.count(0x10000)
"""One wire carries the pairs of many jobs, and a packet finds its pair by QPN alone: drawn at random, two of some
hundred would be equal one day in ten."""


def icrc(ip_packet: bytes) -> bytes:
    """ICRC of an IPv4 RoCE packet without its last four bytes."""
    masked = bytearray(ip_packet)
    masked[1] = masked[8] = masked[10] = masked[11] = masked[26] = masked[27] = masked[32] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(masked)))


def ip_checksum(header: bytes) -> int:
    total = sum(struct.unpack("!10H", header))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


@dataclass
class QueuePair:
    """One pool's QP, the worker's end; `offer` is the appliance's."""

    offer: dict[str, Any]
    qpn: int
    result_va: int
    result: bytearray
    psn: int = field(default_factory=lambda: secrets.randbits(24))
    rkey: int = field(default_factory=lambda: secrets.randbits(32))
    expected_psn: int = 0
    msn: int = 0
    acknowledged: int = -1
    completions: list[int] = field(default_factory=list)
    """Immediates of results that are whole."""
    received: int = 0
    """Rounds whose result is whole, over epochs."""
    deaf: bool = False
    """What comes is lost."""
    place: int = 0


class Wire:
    """The worker's interface."""

    def __init__(self, rack: Rack, interface: str = "worker0", peer: str = APPLIANCE_IP) -> None:
        self.peer = peer
        self.socket = rack.inside(
            lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        )
        self.socket.bind((interface, 0x0800))
        self.socket.settimeout(0.05)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 23)
        self.pairs: list[QueuePair] = []
        """Of all workers of this interface."""
        until(lambda: rack.run("ping", "-c1", "-W5", peer).returncode == 0)
        own = rack.run("cat", f"/sys/class/net/{interface}/address").stdout.strip()
        self.ethernet = bytes.fromhex((rack.neighbour(peer)["lladdr"] + own).replace(":", "")) + b"\x08\x00"

    def frame(self, transport: bytes) -> bytes:
        """The frame of one RoCE packet, which is given from its BTH to its payload."""
        udp = struct.pack("!HHHH", 0xC123, 4791, 8 + len(transport) + 4, 0)
        head = struct.pack("!BBHHHBBH", 0x45, 106, 20 + len(udp) + len(transport) + 4, 0, 0x4000, 64, 17, 0)
        head += socket.inet_aton(WORKER_IP) + socket.inet_aton(self.peer)
        head = head[:10] + struct.pack("!H", ip_checksum(head)) + head[12:]
        packet = head + udp + transport
        return self.ethernet + packet + icrc(packet)

    def send(self, transport: bytes) -> None:
        """One RoCE packet."""
        self.socket.send(self.frame(transport))

    def receive(self) -> bytes | None:
        """From the BTH to the payload of the next RoCE packet that came; its ICRC has been checked."""
        try:
            frame, address = self.socket.recvfrom(16384)
        except TimeoutError:
            return None
        if address[2] == socket.PACKET_OUTGOING or frame[23] != 17 or frame[36:38] != b"\x12\xb7":
            return None
        packet = frame[14 : 14 + struct.unpack("!H", frame[16:18])[0]]
        assert packet[-4:] == icrc(packet[:-4]), "wrong ICRC"
        return packet[28:-4]

    def pump(self, true: Any, seconds: float = PATIENCE_S) -> None:
        """Execute what arrives until something is true."""
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, "it did not happen in time"
            transport = self.receive()
            if transport is not None:
                self.execute(transport)

    def execute(self, transport: bytes) -> None:
        """One packet of the appliance."""
        opcode, _, _, qpn, word = struct.unpack("!BBHII", transport[:12])
        pair = next((pair for pair in self.pairs if pair.qpn == qpn & 0xFFFFFF), None)
        if pair is None or pair.deaf:
            return
        if opcode == ACK:
            assert transport[12] < 0x20, f"NAK {transport[12]:#x}"
            pair.acknowledged = word & 0xFFFFFF
            return
        ahead = ((word & 0xFFFFFF) - pair.expected_psn) & 0xFFFFFF
        if ahead >= 1 << 23:  # a duplicate: its acknowledgement was late or lost, and is said again
            self.acknowledge(pair)
        if ahead:
            return
        rest = transport[12:]
        if opcode in WITH_RETH:
            va, rkey, _ = struct.unpack("!QII", rest[:16])
            assert rkey == pair.rkey
            pair.place, rest = va - pair.result_va, rest[16:]
        if opcode in WITH_IMM:
            pair.completions.append(struct.unpack("!I", rest[:4])[0])
            pair.received += pair.completions[-1] != IMM_PROBE
            pair.msn, rest = pair.msn + 1, rest[4:]
        pair.result[pair.place : pair.place + len(rest)] = rest
        pair.place += len(rest)
        pair.expected_psn = (pair.expected_psn + 1) & 0xFFFFFF
        if word & 0x80000000:
            self.acknowledge(pair)

    def acknowledge(self, pair: QueuePair) -> None:
        """All that was executed."""
        psn, syndrome_msn = (pair.expected_psn - 1) & 0xFFFFFF, 0x1F000000 | pair.msn
        self.send(struct.pack("!BBHIII", ACK, 0x40, 0xFFFF, pair.offer["qpn"], psn, syndrome_msn))


class Control:
    """A worker's control connection."""

    def __init__(self, rack: Rack, rank: int = 0, **fields: Any) -> None:
        self._open(rack)
        self.join = {
            "type": "join",
            "control_version": 4,
            "wire_version": 5,
            "job": "test",
            "restart_count": 0,
            "rank": rank,
            "world_size": 1,
            "ops": ["sum_i32", "sum_f32", "max_f32"],
            "plan": "plan",
            "mtu": 4096,
            "address": WORKER_IP,
            "host": f"host-{rank}",
            **fields,
        }
        self.send(self.join)

    def _open(self, rack: Rack) -> None:
        self.stack = contextlib.ExitStack()
        self.connection = self.stack.enter_context(
            connect(
                "ws://127.0.0.1:4790",
                sock=rack.control_socket(),
                compression=None,
                open_timeout=PATIENCE_S,
                ping_timeout=PATIENCE_S,
            )
        )

    @classmethod
    def silent(cls, rack: Rack) -> Control:
        """A connection that has said nothing yet."""
        control = cls.__new__(cls)
        control._open(rack)
        return control

    def send(self, message: dict[str, Any]) -> None:
        self.connection.send(json.dumps(message))

    def receive(self, timeout: float = PATIENCE_S) -> dict[str, Any]:
        """The next message; {"closed": reason} at the end of the connection."""
        try:
            message: dict[str, Any] = json.loads(self.connection.recv(timeout))
        except ConnectionClosed as closed:
            return {"type": "closed", "reason": closed.rcvd.reason if closed.rcvd else ""}
        return message

    def receive_within(self, seconds: float) -> dict[str, Any] | None:
        """The next message, if it comes so soon."""
        try:
            return self.receive(seconds)
        except TimeoutError:
            return None

    def close(self) -> None:
        """End the connection without a leave."""
        self.stack.close()


class Worker:
    """One rank: control connection and queue pairs."""

    def __init__(self, rack: Rack, wire: Wire, rank: int = 0, **fields: Any) -> None:
        self.wire = wire
        self.control = Control(rack, rank, **fields)
        self.mtu = 0
        self.pairs: list[QueuePair] = []
        self.offer: dict[str, Any] = {}

    def hush(self) -> None:
        """Its QPs are in ERR: whatever comes is lost."""
        for pair in self.pairs:
            pair.deaf = True

    def halted(self, *parts: str) -> dict[str, Any]:
        """The epoch has ended and is to be resumed; the sentence has all parts."""
        message = self.expect("ended")
        assert message["resumable"], message
        assert message["epoch"] == self.offer["epoch"]
        for part in parts:
            assert part in message["message"]
        self.hush()
        return message

    def resume(self, **fields: Any) -> None:
        """Says what it has."""
        received = [pair.received for pair in self.pairs]
        self.control.send({"type": "resume", "epoch": self.offer["epoch"], "received": received, **fields})

    def expect(self, kind: str) -> dict[str, Any]:
        """The next message but events."""
        while (message := self.control.receive())["type"] == "event":
            pass
        assert message["type"] == kind, message
        return message

    def connect(self) -> None:
        """From Offer to Connected, in a job's first epoch or a later one."""
        self.accept(self.expect("offer"))
        self.expect("connected")

    def accept(self, offer: dict[str, Any]) -> None:
        """New queue pairs for what is offered."""
        self.offer = offer
        self.mtu = self.offer["mtu"]
        received = [pair.received for pair in self.pairs] or [0] * len(self.offer["pools"])
        self.hush()
        self.pairs = []
        for pool, rounds in zip(self.offer["pools"], received, strict=True):
            size = pool["window"] * pool["chunk_bytes"]
            va = secrets.randbits(40) << 12
            pair = QueuePair(pool, next(QPNS), va, bytearray(size), received=rounds)
            pair.expected_psn = pool["start_psn"]
            self.pairs.append(pair)
            self.wire.pairs.append(pair)
        ends = [
            {
                "pool": number,
                "qpn": pair.qpn,
                "start_psn": pair.psn,
                "result_rkey": pair.rkey,
                "result_va": hex(pair.result_va),
                "result_bytes": len(pair.result),
            }
            for number, pair in enumerate(self.pairs)
        ]
        self.control.send({"type": "connect", "pools": ends})

    def probe(self, pools: int | None = None) -> None:
        """Both probes of every pool, or of the first."""
        for pair in self.pairs[:pools]:
            self.write(pair, 0, 0, bytes(self.mtu), IMM_PROBE)
            self.wire.pump(lambda pair=pair: pair.completions[:1] == [IMM_PROBE])
            del pair.completions[0]

    def ready(self) -> None:
        self.connect()
        self.probe()
        self.expect("ready")

    def write(self, pair: QueuePair, window: int, round_number: int, data: bytes, imm: int) -> None:
        """One RDMA WRITE with immediate."""
        for transport in self.packets(pair, window, round_number, data, imm):
            self.wire.send(transport)

    def packets(self, pair: QueuePair, window: int, round_number: int, data: bytes, imm: int) -> list[bytes]:
        """The packets of a RDMA WRITE with immediate, each from its BTH to its payload."""
        va = int(pair.offer["va_base"], 16) + (window << 56 | round_number << 24)
        payloads = [data[i : i + self.mtu] for i in range(0, len(data), self.mtu)]
        packets = []
        for i, payload in enumerate(payloads):
            first, last = i == 0, i == len(payloads) - 1
            opcode = (ONLY_IMM if last else FIRST) if first else (LAST_IMM if last else MIDDLE)
            ask = 0x80000000 if last else 0
            header = struct.pack("!BBHII", opcode, 0x40, 0xFFFF, pair.offer["qpn"], ask | pair.psn)
            if opcode in WITH_RETH:
                header += struct.pack("!QII", va, pair.offer["rkey"], len(data))
            if opcode in WITH_IMM:
                header += struct.pack("!I", imm)
            packets.append(header + payload)
            pair.psn = (pair.psn + 1) & 0xFFFFFF
        return packets

    def leave(self, *received: int) -> None:
        self.control.send({"type": "leave", "received": list(received)})
        self.expect("left")
        assert self.control.receive()["type"] == "closed"
