"""The C target (dpdk_c/memory) behind a door of Python: libpsc_target_test.so through cffi's ABI mode.

The contract's files are read verbatim; psc_roce.h and psc_target.h pass through the C preprocessor, so that nothing
here repeats a declaration.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from tests.perftest.exchange import Keys

ROOT = Path(__file__).parents[2]
DPDK_C = ROOT / "dpdk_c"
LIBRARY = Path(os.environ.get("PSC_TARGET_TEST_LIB", ROOT / "build/dpdk_c/memory/libpsc_target_test.so"))
VERBATIM = [DPDK_C / "contract/psc_wire.def.h", DPDK_C / "contract/psc_stats.def.h"]
RETRANSMIT_NS = 4096 << 16  # rxe acknowledges late under emulation: seven tries in 1.9 s
TURN_MS = 10
PSN_MASK = 0xFFFFFF


def _preprocessed() -> str:
    with tempfile.TemporaryDirectory() as empty:
        for name in ("stdbool.h", "stddef.h", "stdint.h"):
            (Path(empty) / name).touch()
        command = ["gcc", "-E", "-P", "-nostdinc", f"-I{empty}", "-DPSC_WIRE_H", "-DPSC_STATS_H"]
        for room in ("contract", "roce", "memory"):
            command.append(f"-I{DPDK_C / room}")
        for path in VERBATIM:
            command += ["-imacros", str(path)]
        header = str(DPDK_C / "memory/psc_target.h")
        return subprocess.run([*command, header], check=True, capture_output=True, text=True).stdout


def _load() -> tuple[FFI, Any]:
    ffi = FFI()
    for path in VERBATIM:
        ffi.cdef(path.read_text())
    ffi.cdef(_preprocessed())
    if not LIBRARY.exists():
        raise FileNotFoundError(f"{LIBRARY} is not built: run `make build`, or set PSC_TARGET_TEST_LIB")
    return ffi, ffi.dlopen(str(LIBRARY))


ffi, lib = _load()


def _names(enum: str) -> dict[int, str]:
    return {
        value: name.split("_", 2)[2].lower() for value, name in ffi.typeof(f"enum {enum}").elements.items()
    }


DROPS, FAULTS = _names("psc_drop"), _names("psc_fault")


def gid_of(address: str) -> bytes:
    """The 16 bytes of an IP address, as `struct psc_ip` and as a GID."""
    return IPv6Address(address if ":" in address else f"::ffff:{address}").packed


def mac_of(interface: str) -> bytes:
    """Hardware address of a kernel interface, asked of the network namespace rather than of /sys."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as port:
        port.bind((interface, 0))
        mac: bytes = port.getsockname()[4]
        return mac


@dataclass(frozen=True)
class Counters:
    """What one QP has done: the fields of `struct psc_target_counters`."""

    executed_bytes: int
    executed_messages: int
    acknowledged_writes: int
    sent_packets_again: int
    expected_psn: int
    msn: int
    unacked_psn: int
    fault: str
    expected: int
    got: int


class Endpoint:
    """One QP of ours and the memory that its peer may write; `keys` is what the peer is told."""

    def __init__(self, target: Target, index: int, memory: NDArray[np.uint8], keys: Keys, peer: Keys) -> None:
        self.memory, self.keys, self.peer = memory, keys, peer
        self._target, self._index = target, index

    def post(self, source: NDArray[np.uint8], offset_bytes: int = 0) -> None:
        """WRITE `source`, which must stay as it is until it is acknowledged, into the peer's memory."""
        write = {
            "source": ffi.from_buffer("uint8_t[]", source),
            "bytes": source.nbytes,
            "va": self.peer.va + offset_bytes,
            "rkey": self.peer.rkey,
        }
        write_struct = ffi.new("struct psc_target_write *", write)
        if not lib.psc_target_post(self._target.handle, self._index, write_struct, lib.psc_port_now_ns()):
            raise RuntimeError("too many writes are outstanding")

    def counters(self) -> Counters:
        """A look at the QP."""
        raw = lib.psc_target_counters(self._target.handle, self._index)
        fields = {name: getattr(raw, name) for name in Counters.__dataclass_fields__}
        return Counters(**fields | {"fault": FAULTS[raw.fault]})


class Target:
    """Context manager: a target at `address` on a kernel interface. Nothing moves but in `serve`."""

    def __init__(self, interface: str, address: str) -> None:
        self.address, self.family = address, 6 if ":" in address else 4
        mac = mac_of(interface)
        local = ffi.new("struct psc_local *", {"mac": {"b": mac}, "ip": {"b": gid_of(address)}})
        self.handle = lib.psc_target_new(local, RETRANSMIT_NS)
        self._port: int = lib.psc_port_open(interface.encode())
        if self._port < 0:
            raise OSError(-self._port, os.strerror(-self._port), interface)
        self._buffers: list[Any] = []  # cffi's views of the QPs' memory keep it alive
        self._drops_before = self._drops()

    def endpoint(
        self, size_bytes: int, psn: int, peer: Callable[[Keys], Keys], peer_mac: bytes, mtu_bytes: int
    ) -> Endpoint:
        """A further QP over `size_bytes` of new memory. `peer` is told our keys and tells the other end's."""
        index = len(self._buffers)
        memory = np.zeros(size_bytes, np.uint8)
        keys = Keys(
            qpn=0x100 + secrets.randbelow(0xFFFE00),
            psn=psn,
            rkey=1 + secrets.randbelow(0xFFFFFFFF),
            va=secrets.randbits(46) << 12 | secrets.randbelow(1 << 12),
            gid=gid_of(self.address),
        )
        theirs = peer(keys)
        buffer = ffi.from_buffer("uint8_t[]", memory, require_writable=True)
        spec = {
            "qpn": keys.qpn,
            "start_psn": keys.psn,
            "region": {"memory": buffer, "bytes": size_bytes, "va_base": keys.va, "rkey": keys.rkey},
            "mtu_bytes": mtu_bytes,
            "udp_port": 0xC000 + secrets.randbelow(0x4000),
            "peer_mac": {"b": peer_mac},
            "peer": {"b": theirs.gid},
            "peer_qpn": theirs.qpn,
            "peer_start_psn": theirs.psn,
        }
        if lib.psc_target_connect(self.handle, ffi.new("struct psc_target_qp_spec *", spec)) != index:
            raise RuntimeError("a target has no more QPs")
        self._buffers.append(buffer)
        return Endpoint(self, index, memory, keys, theirs)

    def disconnect(self) -> None:
        """Forget all QPs, and begin to count drops anew."""
        lib.psc_target_disconnect(self.handle)
        self._buffers.clear()
        self._drops_before = self._drops()

    def serve(self, until: Callable[[bool], bool], timeout_s: float, wake_fd: int = -1) -> None:
        """Keep the wire going until `until(wake_fd is readable)`, asked after every turn, is true."""
        deadline = time.monotonic() + timeout_s
        while True:
            woken = lib.psc_port_turn(self._port, self.handle, wake_fd, TURN_MS)
            if woken < 0:
                raise OSError(-woken, os.strerror(-woken))
            if until(bool(woken)):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout_s:.0f} s; frames not executed: {self.drops()}")

    def drops(self) -> dict[str, int]:
        """Frames that were not executed since the last disconnect, by reason."""
        counts = {name: count - self._drops_before[name] for name, count in self._drops().items()}
        return {name: count for name, count in counts.items() if count}

    def _drops(self) -> dict[str, int]:
        raw = lib.psc_target_drops(self.handle)
        return {name: int(raw[value]) for value, name in DROPS.items() if name != "count"}

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._port)
        lib.psc_target_free(self.handle)
