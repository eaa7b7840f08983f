"""The injector for a test: compiles injector.c, makes a second appliance's wire with it in the middle, gives it orders.

Runs in the bench, where fabric.sh has made the rack. The wire is there inside `with Injector(...)`; the other
appliance's is plain throughout.
"""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.softroce.bench import FABRIC, REPOSITORY

SOURCE = Path(__file__).with_name("injector.c")
PROGRAM = REPOSITORY / "build" / "softroce" / "injector"
COMPILE = [
    "gcc",
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wshadow",
    "-Werror",
]
INTERFACE = "app2"
UP, DOWN = 0, 1  # to the appliance, to the workers
FIRST, MIDDLE, LAST_IMM, ACK = 6, 7, 9, 17  # BTH opcodes
START_TIMEOUT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Rates:
    """Chances per RoCE frame of one direction."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """To be overtaken by one to eight others."""


@dataclasses.dataclass(frozen=True)
class Trap:
    """Behind the `count`-th frame of `opcode` in `direction`, nothing of the rank passes in direction `freezes`.

    Retransmissions do not count, told by their PSN: so the opcode must be one that a single queue pair sends.
    """

    direction: int
    opcode: int
    count: int
    freezes: int


@dataclasses.dataclass(frozen=True)
class Counts:
    """What the injector has done so far."""

    passed: int
    lost: int
    duplicated: int
    reordered: int
    swallowed: int
    """By a black hole."""
    held: int
    """Now."""
    hit: int
    """Whether the trap has closed."""
    overruns: int
    """Frames that the injector lost for want of room: a defect of the bench."""


def build() -> Path:
    """The program, made anew when its source is younger. On the host when a VM is used: compiling is slow there."""
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < SOURCE.stat().st_mtime:
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*COMPILE, str(SOURCE), "-o", str(PROGRAM)], check=True)
    return PROGRAM


class Injector:
    """Context manager: a wire with the injector in it, whose end is INTERFACE."""

    def __init__(self, folder: Path) -> None:
        path = folder / "injector.sock"
        program = build()
        _fabric("wire")
        try:
            self._process = subprocess.Popen([str(program), "wire0", "wire1", str(path)])
        except BaseException:
            _fabric("unwire")
            raise
        self._orders = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._connect(path)
        except BaseException:
            self.close()
            raise
        path.unlink()

    def _connect(self, path: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self._orders.connect(str(path))
                return
            except (FileNotFoundError, ConnectionRefusedError):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def begin(self, seed: int) -> None:
        """A wire that does no harm, and the same chances for the same seed."""
        self.thaw(keep=False)
        for direction in (UP, DOWN):
            self.rates(direction, Rates())
            self.swallow(direction, set())
        self._order(f"seed {seed}")

    def rates(self, direction: int, rates: Rates) -> None:
        """From now on."""
        parts = (rates.loss, rates.duplicate, rates.reorder)
        self._order(f"rates {direction} " + " ".join(str(round(part * 1e6)) for part in parts))

    def swallow(self, direction: int, ranks: set[int]) -> None:
        """A black hole for exactly these ranks."""
        self._order(f"hole {direction} {sum(1 << rank for rank in ranks)}")

    def trap(self, rank: int, trap: Trap) -> None:
        """Set it; there is one at a time."""
        self._order(f"trap {trap.direction} {rank} {trap.opcode} {trap.count} {trap.freezes}")

    def wait_until_trapped(self, timeout_s: float) -> None:
        """Until the trap has closed."""
        deadline = time.monotonic() + timeout_s
        while not self.counts().hit:
            assert time.monotonic() < deadline, f"no such packet in {timeout_s:.0f} s: {self.counts()}"
            time.sleep(0.01)

    def thaw(self, keep: bool) -> None:
        """Forget the trap; what it holds goes on its way, or is lost."""
        self._order(f"thaw {int(keep)}")

    def counts(self) -> Counts:
        """What it has done."""
        return self._order("look")

    def _order(self, order: str) -> Counts:
        self._orders.send(order.encode())
        reply = self._orders.recv(512).decode()
        assert reply and not reply.startswith("error"), f"the injector does not obey {order!r}: {reply!r}"
        return Counts(
            **{name: int(value) for name, _, value in (item.partition("=") for item in reply.split())}
        )

    def close(self) -> None:
        """The wire is gone."""
        self._orders.close()
        self._process.terminate()
        self._process.wait()
        _fabric("unwire")

    def __enter__(self) -> Injector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _fabric(action: str) -> None:
    subprocess.run(["sh", str(FABRIC), action], check=True)
