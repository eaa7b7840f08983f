"""The server's side of perftest's TCP exchange, as `ib_write_bw` and `ib_write_lat` speak it (protocol version 6.06).

Every step is a swap: the client writes, then reads as many bytes. Small values are fixed binary fields; what names a
QP is one text line of 108 bytes. Nothing here knows RDMA: whoever owns the wire gives `wait`, which returns when the
socket can be read and keeps the wire going until then.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

VERSION = b"6.06"
VERSION_FIELD_BYTES = 16
KEYS_BYTES = 108
DONE = b"done\0"
REPORT_FIELD_BYTES = (8, 8, 8, 8, 8)
"""Of a bandwidth report: message size, iterations, peak, average, message rate."""


@dataclass(frozen=True)
class Keys:
    """What one end says of one QP."""

    qpn: int
    psn: int
    rkey: int
    va: int
    gid: bytes
    out_reads: int = 1
    lid: int = 0
    srqn: int = 0

    def pack(self) -> bytes:
        """The line, NUL-terminated."""
        head = f"{self.lid:04x}:{self.out_reads:04x}:{self.qpn:06x}:{self.psn:06x}:{self.rkey:08x}:{self.va:016x}:"
        line = head + self.gid.hex(":") + f":{self.srqn:08x}:"
        return line.encode().ljust(KEYS_BYTES, b"\0")

    @classmethod
    def unpack(cls, line: bytes) -> Keys:
        """The opposite of pack."""
        lid, out_reads, qpn, psn, rkey, va, *gid, srqn, _ = line.decode().split(":")
        if len(line) != KEYS_BYTES or len(gid) != 16:
            raise ValueError(f"{len(line)} bytes that are no QP's keys: {line!r}")
        return cls(
            qpn=int(qpn, 16),
            psn=int(psn, 16),
            rkey=int(rkey, 16),
            va=int(va, 16),
            gid=bytes(int(part, 16) for part in gid),
            out_reads=int(out_reads, 16),
            lid=int(lid, 16),
            srqn=int(srqn, 16),
        )


class Server:
    """One client's exchange, step by step. `wait(fd)` returns once the descriptor can be read."""

    def __init__(self, connection: socket.socket, wait: Callable[[int], None]) -> None:
        self._connection = connection
        self._wait = wait

    def read(self, size_bytes: int) -> bytes:
        """Exactly so many bytes."""
        data = b""
        while len(data) < size_bytes:
            self._wait(self._connection.fileno())
            piece = self._connection.recv(size_bytes - len(data))
            if not piece:
                raise ConnectionError(f"the client is gone: {len(data)} of {size_bytes} bytes came")
            data += piece
        return data

    def negotiate(self) -> int:
        """Versions, buffer parameters, MTU: all of them the client's. Returns the path MTU in bytes."""
        theirs = self.read(VERSION_FIELD_BYTES)
        if theirs.rstrip(b"\0") != VERSION:
            raise ValueError(f"the client speaks version {theirs!r}, this is {VERSION!r}")
        self._connection.sendall(theirs)
        self._echo(4)  # cycle buffer, big-endian
        self._echo(4)  # cache line
        return 128 << int(self._echo(2).rstrip(b"\0"))  # enum ibv_mtu as text

    def keys(self, mine: Keys) -> Keys:
        """Swap one QP's keys; perftest uses the same message as a barrier."""
        theirs = Keys.unpack(self.read(KEYS_BYTES))
        self._connection.sendall(mine.pack())
        return theirs

    def report(self) -> None:
        """The client's bandwidth report, which it is given back as ours."""
        for size_bytes in REPORT_FIELD_BYTES:
            self._echo(size_bytes)

    def close(self, mine: Keys) -> None:
        """The client's last words. It closes without reading, so an answer would come back as a reset."""
        self.keys(mine)
        said = self.read(len(DONE))
        if said != DONE:
            raise ValueError(f"the client's last word is {said!r}, not {DONE!r}")

    def until_closed(self) -> None:
        """Wait until the client closes the connection."""
        self._wait(self._connection.fileno())
        rest = self._connection.recv(1)
        if rest:
            raise ValueError(f"the client had something more to say: {rest!r}")

    def _echo(self, size_bytes: int) -> bytes:
        data = self.read(size_bytes)
        self._connection.sendall(data)
        return data
