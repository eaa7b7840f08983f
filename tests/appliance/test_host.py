"""What the lane answers as a host, and what its statistics say, on a real wire."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.appliance.rack import APPLIANCE_IP, Appliance, Rack, until

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000

HEARTBEAT, POLLS = 32, 64 + 8 * 10
"""Bytes of two fields in the segment."""
LANE_OFFSET = 64
"""Bytes of the header before the lane's block; its first words are rx_packets, rx_bytes, tx_packets, tx_bytes."""


def test_arp_and_ping_are_answered(rack: Rack, appliance: Appliance) -> None:
    rack.run("ip", "neighbour", "flush", "dev", "worker0")
    rack.ping(3)
    assert rack.neighbour()["lladdr"] == appliance.status()["ports"][0]["mac"]


def test_a_large_ping_fits_one_frame(rack: Rack, appliance: Appliance) -> None:
    del appliance
    rack.ping(1, "-M", "do", "-s", "1400")


def test_another_address_is_not_answered(rack: Rack, appliance: Appliance) -> None:
    del appliance
    assert "0 received" in rack.run("ping", "-c", "1", "-W", "1", "10.77.0.9").stdout


def test_the_segment_counts_what_went_over_the_wire(rack: Rack, appliance: Appliance) -> None:
    def counters() -> tuple[int, ...]:
        return struct.unpack_from("<4Q", (appliance.folder / "stats").read_bytes(), LANE_OFFSET)

    mac = appliance.status()["ports"][0]["mac"]
    entry = (APPLIANCE_IP, "lladdr", mac, "dev", "worker0", "nud")
    rack.run("ip", "neighbour", "replace", *entry, "permanent")  # no ARP among what is counted
    before = counters()
    rack.ping(4, "-s", "100")
    until(lambda: counters()[2] >= before[2] + 4)
    frames, octets = (counters()[2] - before[2], counters()[3] - before[3])
    rack.run("ip", "neighbour", "replace", *entry, "stale")
    assert (frames, octets) == (4, 4 * (14 + 20 + 8 + 100))


def number(appliance: Appliance, offset_bytes: int) -> int:
    """One 64-bit field of the segment."""
    value: int = struct.unpack_from("<Q", (appliance.folder / "stats").read_bytes(), offset_bytes)[0]
    return value


@contextmanager
def held(thread: int) -> Iterator[None]:
    """One thread stands still, as if it hung; the process's others run."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        assert ptrace(request, thread, None, None) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(thread, WALL)
    try:
        yield
    finally:
        ptrace(PTRACE_DETACH, thread, None, None)


def test_a_control_plane_that_hangs_does_not_beat(appliance: Appliance) -> None:
    first = number(appliance, HEARTBEAT)
    until(lambda: number(appliance, HEARTBEAT) > first)
    pid = appliance.status()["pid"]
    with held(pid):
        beat, polls = number(appliance, HEARTBEAT), number(appliance, POLLS)
        time.sleep(1.5)
        until(lambda: number(appliance, POLLS) > polls)  # the lane goes on
        assert number(appliance, HEARTBEAT) == beat
    until(lambda: number(appliance, HEARTBEAT) > beat)
