"""One run of perftest against the target: the client's process, the exchange, the target's part of the traffic.

The client is Debian's, unchanged. It tests all its sizes, 2 B to 8 MiB, `iterations` messages each. For ib_write_bw the
target only executes; for ib_write_lat it is the other half of a ping-pong.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.perftest.exchange import Keys, Server
from tests.perftest.target import Counters, Endpoint, Target, mac_of

SIZES = [1 << k for k in range(1, 24)]
LOOPBACK = "127.0.0.1"
STEP_TIMEOUT_S = 240.0
EXIT_TIMEOUT_S = 30.0
OUR_START_PSN = 0xFFFF00  # ib_write_lat's traffic crosses the wrap


@dataclass(frozen=True)
class Device:
    """The client's end."""

    name: str
    interface: str
    gid_index: int


@dataclass(frozen=True)
class Run:
    """How a run ended."""

    exit_code: int
    output: str
    first_psns: list[int]
    """Of the client's requests, per QP."""
    counters: list[Counters]
    drops: dict[str, int]
    seconds: float


class Client:
    """perftest's process and the TCP connection that it has made."""

    def __init__(self, program: str, device: Device, mtu_bytes: int, qps: int, iterations: int) -> None:
        with socket.create_server((LOOPBACK, 0)) as listener:
            port = str(listener.getsockname()[1])
            command = [
                program,
                "-d",
                device.name,
                "-x",
                str(device.gid_index),
                "-m",
                str(mtu_bytes),
                "-p",
                port,
            ]
            command += ["-q", str(qps)] if qps > 1 else []
            # -F: no judgement of the CPU's clock; -u 17: 0.5 s, since an emulated target acknowledges late.
            command += ["-a", "-n", str(iterations), "-F", "-u", "17", LOOPBACK]
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            self.connection = self._accept(listener)

    def _accept(self, listener: socket.socket) -> socket.socket:
        deadline = time.monotonic() + STEP_TIMEOUT_S
        listener.settimeout(1.0)
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(TimeoutError):
                return listener.accept()[0]
        self._process.kill()
        raise AssertionError(f"perftest's client did not come:\n{self._process.communicate()[0]}")

    def end(self) -> tuple[int, str]:
        """Exit code and output."""
        output, _ = self._process.communicate(timeout=EXIT_TIMEOUT_S)
        return self._process.returncode, output

    def kill(self) -> str:
        """End it, whatever it is doing; returns its output."""
        self.connection.close()
        self._process.kill()
        return self._process.communicate()[0]


@contextmanager
def _served(target: Target, client: Client) -> Iterator[Server]:
    """The exchange with a client; what goes wrong in it is told with what the client has printed."""

    def wait(descriptor: int) -> None:
        target.serve(lambda woken: woken, STEP_TIMEOUT_S, descriptor)

    try:
        yield Server(client.connection, wait)
    except Exception as error:
        error.add_note(client.kill())
        raise


def _connect(
    target: Target, server: Server, device: Device, qps: int, size_bytes: int, warm_up: bool
) -> list[Endpoint]:
    """Swap keys and bring the QPs up. ib_write_lat swaps the first QP's keys once more, before all others."""
    mtu_bytes = server.negotiate()
    mac = mac_of(device.interface)

    def swap(mine: Keys) -> Keys:
        theirs = server.keys(mine)
        return server.keys(mine) if warm_up else theirs

    endpoints = [target.endpoint(size_bytes, OUR_START_PSN, swap, mac, mtu_bytes) for _ in range(qps)]
    for end in [*endpoints, endpoints[0]]:  # told again once the QPs work; the last is a barrier
        server.keys(end.keys)
    return endpoints


def _run(
    target: Target,
    client: Client,
    device: Device,
    qps: int,
    lat: bool,
    traffic: Callable[[Server, list[Endpoint]], None],
) -> Run:
    began = time.monotonic()
    target.disconnect()
    with _served(target, client) as server:
        endpoints = _connect(target, server, device, qps, SIZES[-1], lat)
        traffic(server, endpoints)
        server.until_closed()
        code, output = client.end()
    return Run(
        code,
        output,
        [end.peer.psn for end in endpoints],
        [end.counters() for end in endpoints],
        target.drops(),
        time.monotonic() - began,
    )


def write_bw(target: Target, device: Device, mtu_bytes: int, qps: int, iterations: int) -> Run:
    """ib_write_bw: the client writes, reports, and leaves."""

    def traffic(server: Server, endpoints: list[Endpoint]) -> None:
        first = endpoints[0].keys
        server.keys(first)  # the client is through
        server.report()
        server.close(first)

    client = Client("ib_write_bw", device, mtu_bytes, qps, iterations)
    return _run(target, client, device, qps, False, traffic)


def _take_turn(target: Target, end: Endpoint, message: NDArray[np.uint8]) -> None:
    """Write, and wait for the acknowledgement and for the client's message: it ends as ours does."""
    last, due = message.size - 1, end.counters().acknowledged_writes + 1
    end.post(message)
    target.serve(
        lambda _: bool(end.memory[last] == message[last]) and end.counters().acknowledged_writes == due,
        STEP_TIMEOUT_S,
    )


def write_lat(target: Target, device: Device, mtu_bytes: int, iterations: int) -> Run:
    """ib_write_lat: both ends write in turn, the server first, and see the other's message by its last byte."""

    def traffic(_server: Server, endpoints: list[Endpoint]) -> None:
        source = np.zeros(SIZES[-1], np.uint8)
        for size in SIZES:
            for turn in range(1, iterations + 1):
                source[size - 1] = turn & 0xFF
                _take_turn(target, endpoints[0], source[:size])

    client = Client("ib_write_lat", device, mtu_bytes, 1, iterations)
    return _run(target, client, device, 1, True, traffic)
