"""A statistics segment as the appliance would write it, and the exporter as a process of its own that serves it."""

from __future__ import annotations

import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cffi
import pytest

CONTRACT = Path(__file__).parents[2] / "dpdk_c" / "contract" / "psc_stats.def.h"

AHEAD_S = 4.0
"""Of our heartbeats: the exporter takes up to 5 s for clocks that differ, and so this process may stand still for 8."""
PATIENCE_S = 120.0
"""For what must come: reached in failure only."""

ffi: Any = cffi.FFI()
ffi.cdef(CONTRACT.read_text())
constants: Any = ffi.dlopen(None)


class SegmentWriter:
    """The appliance's part: a file of the contract's layout, published by rename with its magic written last."""

    def __init__(self, path: Path, lanes: int = 2, job_rows: int = 4) -> None:
        header_bytes, lane_bytes, job_bytes = (
            ffi.sizeof(f"struct {name}") for name in ("psc_stats_header", "psc_lane_stats", "psc_job_stats")
        )
        job_offset_bytes = header_bytes + lanes * lane_bytes
        size_bytes = job_offset_bytes + job_rows * job_bytes
        unpublished = path.with_name(path.name + ".new")
        unpublished.write_bytes(bytes(size_bytes))
        with unpublished.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size_bytes)
        self._base = ffi.from_buffer(self._memory, require_writable=True)
        self.header = ffi.cast("struct psc_stats_header *", self._base)
        self.header.version = constants.PSC_STATS_VERSION
        self.header.pid = os.getpid()
        self.header.lanes = lanes
        self.header.job_rows = job_rows
        self.header.start_time_us = 1_700_000_000_500_000
        self.header.lane_offset_bytes = header_bytes
        self.header.lane_stride_bytes = lane_bytes
        self.header.job_offset_bytes = job_offset_bytes
        self.header.job_stride_bytes = job_bytes
        self.header.segment_bytes = size_bytes
        self._dies, self._lock = threading.Event(), threading.Lock()
        self.beat()
        threading.Thread(target=self._live, daemon=True).start()
        self.header.magic = constants.PSC_STATS_MAGIC
        unpublished.rename(path)

    def beat(self, age_s: float = -AHEAD_S) -> None:
        """Renew the heartbeat."""
        self.header.heartbeat_us = int((time.time() - age_s) * 1e6)

    def last_beat(self, age_s: float) -> None:
        """The heartbeat as it is when none follows."""
        with self._lock:
            self._dies.set()
            self.beat(age_s)

    def _live(self) -> None:
        while not self._dies.wait(1.0):
            with self._lock:
                if not self._dies.is_set():
                    self.beat()

    def lane(self, lane: int) -> Any:
        offset_bytes = self.header.lane_offset_bytes + lane * self.header.lane_stride_bytes
        return ffi.cast("struct psc_lane_stats *", self._base + offset_bytes)

    def job(self, row: int) -> Any:
        offset_bytes = self.header.job_offset_bytes + row * self.header.job_stride_bytes
        return ffi.cast("struct psc_job_stats *", self._base + offset_bytes)


class Exporter:
    """One `pascaline-exporter` process."""

    def __init__(self, stats: Path, log: Path) -> None:
        self.log = log
        command = [
            sys.executable,
            "-m",
            "pascaline_exporter.cli",
            "--listen",
            "127.0.0.1:0",
            "--stats",
            str(stats),
        ]
        with log.open("w") as stderr:
            self.process = subprocess.Popen(command, stderr=stderr)
        self.address = self._wait_for_address()

    def _wait_for_address(self, timeout_s: float = PATIENCE_S) -> str:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(r"http://(\S+)/metrics", self.log.read_text()):
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"the exporter did not start:\n{self.log.read_text()}")

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=PATIENCE_S) as response:
            return response.read().decode()

    def value(self, series: str) -> float | None:
        """Value of one series, written as in the text format; None: not there."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.scrape(), re.MULTILINE)
        return float(found[1]) if found else None

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_S)


@pytest.fixture
def stats_path(tmp_path: Path) -> Path:
    return tmp_path / "stats"


@pytest.fixture
def exporter(stats_path: Path, tmp_path: Path) -> Iterator[Exporter]:
    running = Exporter(stats_path, tmp_path / "exporter.log")
    yield running
    if running.process.poll() is None:
        running.stop()
