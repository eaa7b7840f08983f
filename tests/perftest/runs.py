"""One run of perftest against the target: the client's process, the exchange, the target's part of the traffic.

The client is Debian's, unchanged. It tests all its sizes, 2 B to 8 MiB, or one. For ib_write_bw the target only
executes, with -b it writes as much itself; for ib_write_lat it is the other half of a ping-pong.
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

SIZES = tuple(1 << k for k in range(1, 24))
BW, BOTH_WAYS, LAT = ["ib_write_bw"], ["ib_write_bw", "-b"], ["ib_write_lat"]
LOOPBACK = "127.0.0.1"
STEP_TIMEOUT_S = 240.0
EXIT_TIMEOUT_S = 120.0
OUR_START_PSN = 0xFFFF00  # ib_write_lat's traffic crosses the wrap


@dataclass(frozen=True)
class Device:
    """The client's end."""

    name: str
    interface: str
    gid_index: int


@dataclass(frozen=True)
class Shape:
    """What a run does."""

    mtu_bytes: int
    qps: int = 1
    sizes: tuple[int, ...] = SIZES
    """All of perftest's, or one."""
    iterations: int = 5
    """Messages of each size; perftest's least."""

    @property
    def messages(self) -> int:
        """Of one QP, each way."""
        return self.iterations * len(self.sizes)

    @property
    def bytes(self) -> int:
        """Of one QP, each way."""
        return self.iterations * sum(self.sizes)

    @property
    def packets(self) -> int:
        """Of one QP, each way."""
        return self.iterations * sum(-(-size // self.mtu_bytes) for size in self.sizes)

    @property
    def options(self) -> list[str]:
        """The client's."""
        sizes = ["-a"] if self.sizes == SIZES else ["-s", str(self.sizes[0])]
        qps = ["-q", str(self.qps)] if self.qps > 1 else []
        return ["-m", str(self.mtu_bytes), *qps, *sizes, "-n", str(self.iterations)]


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

    def __init__(self, program: list[str], device: Device, shape: Shape) -> None:
        with socket.create_server((LOOPBACK, 0)) as listener:
            port = str(listener.getsockname()[1])
            command = [*program, "-d", device.name, "-x", str(device.gid_index), "-p", port, *shape.options]
            # -F: no judgement of the CPU's clock; -u 17: 0.5 s, since an emulated target acknowledges late.
            self._process = subprocess.Popen(
                [*command, "-F", "-u", "17", LOOPBACK],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
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
    target: Target, server: Server, device: Device, shape: Shape, first_twice: bool
) -> list[Endpoint]:
    """Swap keys and bring the QPs up. ib_write_lat swaps the first QP's keys once more, before all others."""
    mtu_bytes = server.negotiate()
    mac = mac_of(device.interface)

    def swap(mine: Keys) -> Keys:
        theirs = server.keys(mine)
        return server.keys(mine) if first_twice else theirs

    size = shape.sizes[-1]
    endpoints = [target.endpoint(size, OUR_START_PSN, swap, mac, mtu_bytes) for _ in range(shape.qps)]
    for end in [*endpoints, endpoints[0]]:  # told again once the QPs work; the last is a barrier
        server.keys(end.keys)
    return endpoints


def _run(
    target: Target,
    device: Device,
    shape: Shape,
    program: list[str],
    traffic: Callable[[Server, list[Endpoint]], None],
) -> Run:
    began = time.monotonic()
    client = Client(program, device, shape)
    target.disconnect()
    with _served(target, client) as server:
        endpoints = _connect(target, server, device, shape, program == LAT)
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


def write_bw(target: Target, device: Device, shape: Shape) -> Run:
    """ib_write_bw: the client writes, reports, and leaves."""

    def traffic(server: Server, endpoints: list[Endpoint]) -> None:
        first = endpoints[0].keys
        server.keys(first)  # the client is through
        server.report()
        server.close(first)

    return _run(target, device, shape, BW, traffic)


def _write_back(target: Target, endpoints: list[Endpoint], message: NDArray[np.uint8], times: int) -> None:
    """As many writes on every QP as the client's, at the same time; until they are acknowledged."""
    due = endpoints[0].counters().acknowledged_writes + times
    for end in endpoints:
        for _ in range(times):
            end.post(message)
    target.serve(
        lambda _: all(end.counters().acknowledged_writes == due for end in endpoints), STEP_TIMEOUT_S
    )


def write_bw_both_ways(target: Target, device: Device, shape: Shape) -> Run:
    """ib_write_bw -b: both ends write. A barrier before each size, and where there are several one behind it."""

    def traffic(server: Server, endpoints: list[Endpoint]) -> None:
        first = endpoints[0].keys
        source = np.zeros(shape.sizes[-1], np.uint8)
        for size in shape.sizes:
            server.keys(first)
            _write_back(target, endpoints, source[:size], shape.iterations)
            if len(shape.sizes) > 1:
                server.keys(first)
            server.report()
        server.close(first)

    return _run(target, device, shape, BOTH_WAYS, traffic)


def _take_turn(target: Target, end: Endpoint, message: NDArray[np.uint8]) -> None:
    """Write, and wait for the acknowledgement and for the client's message: it ends as ours does."""
    last, due = message.size - 1, end.counters().acknowledged_writes + 1
    end.post(message)
    target.serve(
        lambda _: bool(end.memory[last] == message[last]) and end.counters().acknowledged_writes == due,
        STEP_TIMEOUT_S,
    )


def write_lat(target: Target, device: Device, shape: Shape) -> Run:
    """ib_write_lat: both ends write in turn, the server first, and see the other's message by its last byte."""

    def traffic(_server: Server, endpoints: list[Endpoint]) -> None:
        source = np.zeros(shape.sizes[-1], np.uint8)
        for size in shape.sizes:
            for turn in range(1, shape.iterations + 1):
                source[size - 1] = turn & 0xFF
                _take_turn(target, endpoints[0], source[:size])

    return _run(target, device, shape, LAT, traffic)
