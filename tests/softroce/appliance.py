"""The real appliance for a test or a demonstration: the installed command, its configuration, its end.

Runs `pascaline-appliance run --config` on app0, waits for its ready line, and insists on a clean stop with exit code 0.
Everything is looked at from outside: the process, the status socket, the statistics segment.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from pascaline_exporter import segment

ADDRESS = "127.0.0.1:4790"
DATA_ADDRESS = "10.77.0.1"
START_TIMEOUT_S = 400.0  # 12 s on an idle machine, 120 s were not enough on one with a load of 17
STOP_TIMEOUT_S = 90.0

CONFIG = """\
[data]
address = "{data_address}/{prefix_bits}"

[[port]]
device = "--vdev=net_af_packet0,iface={interface},framesz=8192,blocksz=131072,framecnt=512,qdisc_bypass=1"
{dispatcher}

[memory]
huge_pages = false
memory_mib = {memory_mib}

[lanes]
cores = {cores}
idle_sleep_us = 50  # lane and workers share two CPUs

[limits]
window = 4
chunk_bytes = 65536  # else the machine's L2 would say
retransmit_exponent = {retransmit_exponent}  # rxe acknowledges late under emulation,
progress_s = {progress_s}         # and a busy host may stop the whole VM for seconds
deadline_s = {deadline_s}

[control]
port = {port}
ping_interval_s = 2.0
ping_timeout_s = {ping_timeout_s}

[stats]
path = "{folder}/stats"

[status]
socket = "{folder}/status.sock"
"""


class Appliance:
    """Context manager: a running appliance. `folder` takes configuration, log, status socket and statistics."""

    address = ADDRESS
    data_address, prefix_bits = DATA_ADDRESS, 24
    interface = "app0"
    lanes = 1
    progress_s, deadline_s = 10.0, 25.0
    ping_timeout_s = 60.0
    retransmit_exponent = 17
    """Seven tries in 3.8 s."""

    def __init__(
        self, folder: Path, environment: dict[str, str] | None = None, log_path: Path | None = None
    ) -> None:
        self.stats_path, self.log_path = folder / "stats", log_path or folder / "appliance.log"
        self._socket_path = folder / "status.sock"
        config_path = folder / "appliance.toml"
        config_path.write_text(self._config(folder))
        command = [str(Path(sys.executable).with_name("pascaline-appliance")), "run", "--verbose"]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--config", str(config_path)],
                env=os.environ | (environment or {}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def _config(self, folder: Path) -> str:
        return CONFIG.format(
            folder=folder,
            data_address=self.data_address,
            prefix_bits=self.prefix_bits,
            interface=self.interface,
            cores=[1] * self.lanes,
            dispatcher="dispatcher_core = 1" if self.lanes > 1 else "",
            memory_mib=128 * self.lanes,
            port=self.address.rpartition(":")[2],
            progress_s=self.progress_s,
            deadline_s=self.deadline_s,
            ping_timeout_s=self.ping_timeout_s,
            retransmit_exponent=self.retransmit_exponent,
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while "pascaline-appliance ready" not in self.log():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the appliance did not start:\n{self.log()}")
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def log(self) -> str:
        """What it has printed."""
        return self.log_path.read_text(errors="replace")

    def status(self) -> dict[str, Any]:
        """What `pascaline-appliance status --json` shows, without the seconds that starting Python takes there."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(60)
            connection.connect(str(self._socket_path))
            with connection.makefile() as stream:
                description: dict[str, Any] = json.load(stream)
        return description

    def counters(self) -> segment.Snapshot:
        """A look at the statistics segment. After the host has stood still, its heartbeat is old for a moment."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return segment.read(self.stats_path)
            except segment.SegmentError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
            time.sleep(0.1)

    def job(self, name: str) -> segment.JobCounters:
        """The counters of one job."""
        return next(job for job in self.counters().jobs if job.name == name)

    def kill(self) -> None:
        """As if its power had failed."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM; anything but exit code 0 in time is an error."""
        died = self._process.poll()
        assert died is None, f"the appliance has died with exit code {died}:\n{self.log()}"
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(
                f"the appliance did not stop within {STOP_TIMEOUT_S:.0f} s:\n{self.log()}"
            ) from None
        assert code == 0, f"the appliance stopped with exit code {code}:\n{self.log()}"

    def __enter__(self) -> Appliance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
