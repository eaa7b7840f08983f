"""The running appliance: start in order, serve, stop in reverse. The one place that knows all parts.

Cheap things that can fail come first, so that a wrong start leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pascaline_appliance import __version__, control_server, status_server
from pascaline_appliance.config import Config
from pascaline_appliance.contract.control import CONTROL_VERSION
from pascaline_appliance.control_server import ControlServer
from pascaline_appliance.dataplane import WIRE_VERSION, DataPlane
from pascaline_appliance.errors import HugePagesError
from pascaline_appliance.registry import Registry

log = logging.getLogger(__name__)

TICK_S = 0.25
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
DELIVERY_S = 1.0
"""For complete results to reach the ranks of jobs that a stop ends."""
DETACH_S = 1.0
"""For lanes to let go of the jobs at a stop; then they are stopped all the same."""
HUGE_PAGES = Path("/sys/kernel/mm/hugepages")


def check_huge_pages(config: Config) -> None:
    """EAL only says that it could not start; the numbers and the way out are ours to say."""
    if not config.memory.huge_pages:
        return
    free_kib = 0
    for folder in HUGE_PAGES.glob("hugepages-*kB"):
        size_kib = int(folder.name.removeprefix("hugepages-").removesuffix("kB"))
        free_kib += size_kib * int((folder / "free_hugepages").read_text())
    wanted = config.memory.memory_mib
    if free_kib < wanted * 1024:
        raise HugePagesError(
            f"memory.huge_pages = true and memory.memory_mib = {wanted} want {wanted} MiB of huge pages,"
            f" {free_kib // 1024} MiB are free: reserve them with `sysctl vm.nr_hugepages={-(-wanted // 2)}`, or set"
            " memory.huge_pages = false to try things out"
        )


def notify(state: str) -> None:
    """Tell systemd, if it started us with Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
        sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


class Service:
    """All parts of a running appliance."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.dataplane = DataPlane(config)
        self.registry = Registry(config, self.dataplane)
        self.control = ControlServer(config, self.registry)
        self._started = time.monotonic()

    def describe(self) -> dict[str, Any]:
        """What `status` shows."""
        return {
            "version": __version__,
            "library_version": self.dataplane.library_version,
            "control_version": CONTROL_VERSION,
            "wire_version": WIRE_VERSION,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 1),
            "address": str(self.config.data.address),
            "control": f"{self.config.control.address}:{self.config.control.port}",
            "insecure_listen": self.config.control.insecure_listen,
            "stats": self.config.stats.path,
            "crc": self.dataplane.crc_variant,
            "arith": self.dataplane.arith_variant,
            "ports": [self.dataplane.port_status(i) for i in range(len(self.config.port))],
            "lanes": [
                {**self.dataplane.lane_status(i), "slot_bytes": self.registry.slot_bytes(i)}
                for i in range(self.dataplane.lanes)
            ],
            "data_pool": {**asdict(self.registry.sizes), "slot_bytes": self.registry.sizes.slot_bytes},
            "usage": self.dataplane.usage(),
            "jobs": self.registry.describe(),
        }

    def on_events(self) -> None:
        """The data plane's event descriptor is readable."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.dataplane.event_fd)
        for event in self.dataplane.events():
            try:
                self.registry.on_event(event)
            except Exception:
                log.exception("an event of the data plane could not be handled: %s", event)

    async def tick(self) -> None:
        """Time for the registry, and the heartbeat: from here, so that a loop that hangs does not beat."""
        while True:
            self.dataplane.heartbeat()
            await asyncio.sleep(TICK_S)
            try:
                self.registry.tick()
            except Exception:
                log.exception("a clock tick could not be handled")

    def ready_line(self) -> str:
        """The line that says that the appliance is ready."""
        ports = [self.dataplane.port_status(i) for i in range(len(self.config.port))]
        data = ", ".join(
            f"{port['address']} on {port['device']} (MAC {port['mac']}, RoCE MTU {port['roce_mtu_bytes']}, steering"
            f" {port['steering']})"
            for port in ports
        )
        lanes = f"{self.dataplane.lanes} lane{'s' if self.dataplane.lanes > 1 else ''}"
        return (
            f"pascaline-appliance ready: data {data}, control {self.config.control.address}:{self.config.control.port},"
            f" {lanes}, {self.dataplane.arith_variant}, statistics {self.config.stats.path}"
        )

    async def serve(self, sockets: list[socket.socket], status_listener: socket.socket) -> None:
        """From a started data plane to a clean stop."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, stop.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        loop.add_reader(self.dataplane.event_fd, self.on_events)
        ticker = asyncio.create_task(self.tick())
        status = await status_server.serve(status_listener, self.describe)
        await self.control.start(sockets)
        print(self.ready_line(), flush=True)
        notify("READY=1")
        await stop.wait()
        notify("STOPPING=1")
        self.registry.stop()
        await self._until(lambda: self.registry.told, DELIVERY_S)
        self.registry.abandon()
        await self.control.stop()
        await self._until(lambda: self.registry.idle, DETACH_S)
        ticker.cancel()
        status.close()
        loop.remove_reader(self.dataplane.event_fd)

    async def _until(self, true: Callable[[], bool], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not true() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)


def _warn_insecure(config: Config) -> None:
    if config.control.insecure_listen and not config.control.address.is_loopback:
        print(
            f"pascaline-appliance: control.insecure_listen = true: {config.control.address}:{config.control.port} takes"
            " any worker without encryption or authentication",
            file=sys.stderr,
            flush=True,
        )


def run(config: Config) -> None:
    """Run until SIGTERM or SIGINT; an ApplianceError says why it does not start."""
    check_huge_pages(config)
    for path in (Path(config.stats.path), Path(config.status.socket)):
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
    service = Service(config)
    with contextlib.ExitStack() as stack:
        # EAL's start takes seconds: a signal in it waits for the handlers, so that every stop is a clean one. The
        # lanes' threads inherit the mask, which leaves signals to this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        stack.callback(signal.pthread_sigmask, signal.SIG_UNBLOCK, STOP_SIGNALS)
        sockets = control_server.bind(config.control)
        for listener in sockets:
            stack.callback(listener.close)
        status_path = Path(config.status.socket)
        status_listener = status_server.bind(status_path)
        stack.callback(status_path.unlink, missing_ok=True)
        stack.callback(status_listener.close)
        service.dataplane.start()
        stack.callback(service.dataplane.stop)
        _warn_insecure(config)
        asyncio.run(service.serve(sockets, status_listener))
