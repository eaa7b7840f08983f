"""A rack of one: a network namespace with a worker's interface and the appliance's, and the appliance as a process.

Nothing is replaced: it is the real command on real DPDK (net_af_packet). One process per start, since EAL starts once.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

APPLIANCE_IP = "10.77.0.1"
WORKER_IP = "10.77.0.2"
CONTROL_PORT = 4790
CLONE_NEWNET = 0x40000000
PATIENCE_S = 120.0
"""For what must come, a start of DPDK included: reached in failure only. A shared machine stands still for seconds."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Rack:
    """The namespace: `worker0` has an address and an MTU of 9000, `appliance0` belongs to the appliance."""

    def __init__(self, name: str) -> None:
        self.name = name
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)  # a killed run's
        ip("netns", "add", name)
        ip(
            "-n",
            name,
            "link",
            "add",
            "worker0",
            "mtu",
            "9000",
            "type",
            "veth",
            "peer",
            "name",
            "appliance0",
            "mtu",
            "9000",
        )
        self.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        ip("-n", name, "address", "add", f"{WORKER_IP}/24", "dev", "worker0")
        for interface in ("lo", "worker0", "appliance0"):
            ip("-n", name, "link", "set", interface, "up")

    def close(self) -> None:
        ip("netns", "delete", self.name)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def inside(self, make: Callable[[], T]) -> T:
        """What `make` returns when it is called inside the namespace: sockets stay there."""
        result: list[T] = []

        def enter() -> None:
            with Path(f"/run/netns/{self.name}").open() as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            result.append(make())

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        return result[0]

    def ping(self, times: int, *options: str) -> None:
        """All are answered. One ping(8) each: it waits long only for its first answer."""
        for _ in range(times):
            answer = self.run("ping", "-c", "1", "-W", "30", *options, APPLIANCE_IP)
            assert "1 received" in answer.stdout, answer.stdout

    def neighbour(self, address: str = APPLIANCE_IP) -> dict[str, Any]:
        """What the worker's kernel knows about an address of the appliance."""
        known: list[dict[str, Any]] = json.loads(self.run("ip", "-j", "neighbour", "show", address).stdout)
        return known[0]

    def control_socket(self) -> socket.socket:
        """A TCP connection to the appliance's control plane."""
        return self.inside(lambda: socket.create_connection(("127.0.0.1", CONTROL_PORT), PATIENCE_S))


def toml(tables: dict[str, dict[str, Any]]) -> str:
    """Tables of plain values as TOML; the tables `port` and `port2` are an array."""
    lines = []
    for name, table in tables.items():
        lines.append("[[port]]" if name in ("port", "port2") else f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def tables(folder: Path) -> dict[str, dict[str, Any]]:
    """A configuration that starts here: ordinary pages, and a lane that sleeps because it shares its core.

    A worker of these tests is one Python process on a machine that others use: a result may stay unacknowledged for
    seven times 0.54 s before that is a fault, and there is a minute to answer one.
    """
    vdev = "--vdev=net_af_packet0,iface=appliance0,framesz=8192,blocksz=131072,framecnt=512,qdisc_bypass=1"
    return {
        "data": {"address": f"{APPLIANCE_IP}/24"},
        "port": {"device": vdev},
        "memory": {"huge_pages": False, "memory_mib": 128},
        "lanes": {"cores": [max(os.sched_getaffinity(0))], "idle_sleep_us": 100},
        "limits": {
            "window": 4,
            "chunk_bytes": 65536,  # else the machine's L2 would say
            "retransmit_exponent": 17,
            "waiting_event_s": 0.3,
            "progress_s": 10.0,
            "deadline_s": 60.0,
        },
        "stats": {"path": str(folder / "stats")},
        "status": {"socket": str(folder / "status.sock")},
    }


class Appliance:
    """A started `pascaline-appliance run`."""

    def __init__(
        self, rack: Rack, folder: Path, configuration: dict[str, dict[str, Any]], **environment: str
    ) -> None:
        self.folder = folder
        self.stderr_path = folder / "stderr"
        self.config_path = folder / "appliance.toml"
        self.config_path.write_text(toml(configuration))
        with self.stderr_path.open("w") as stderr:
            self.process = subprocess.Popen(
                [
                    *("ip", "netns", "exec", rack.name, sys.executable, "-m", "pascaline_appliance"),
                    *("run", "--verbose", "--config", str(self.config_path)),
                ],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **environment},
            )

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text()

    def ready(self) -> str:
        """The line that says so."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("pascaline-appliance ready: "), self.stderr
        return line

    def status(self) -> dict[str, Any]:
        """What it says about itself."""
        text = b""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(self.folder / "status.sock"))
            while part := connection.recv(65536):
                text += part
        description: dict[str, Any] = json.loads(text)
        return description

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Exit code of a stop by a signal."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def failure(self) -> tuple[int, str]:
        """Exit code and stderr of a start that fails."""
        code = self.process.wait(PATIENCE_S)
        return code, self.stderr


def library(folder: Path, source: str) -> Path:
    """Some lines of C, built against DPDK, to stand before a function that the machine offers: for LD_PRELOAD."""
    path = folder / "before.so"
    cflags, libraries = (
        subprocess.run(["pkg-config", what, "libdpdk"], check=True, capture_output=True, text=True).stdout
        for what in ("--cflags", "--libs")
    )
    command = ["cc", "-shared", "-fPIC", *cflags.split(), "-x", "c", "-"]
    command += ["-o", str(path), *libraries.split()]
    subprocess.run(command, input=source, check=True, text=True, timeout=PATIENCE_S)
    return path


def until(true: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Wait for something that happens in another process."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
