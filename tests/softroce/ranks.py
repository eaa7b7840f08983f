"""Worker processes of a test: one per rank, forked from the test's process, each on its own rxe device.

Forked, because `import torch` costs 20 s and more under emulation and is done once in the parent. So the parent must
open no RDMA device and start no thread while ranks run. Leftovers are killed, whatever happens.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Outcome:
    """How one rank ended: a value, or the exception's type name, message and traceback."""

    value: Any = None
    error: str = ""
    message: str = ""
    trace: str = ""


class Ranks:
    """`body(rank)` in `world_size` processes; a context manager.

    A process sees RANK, WORLD_SIZE, PASCALINE_APPLIANCE and PASCALINE_DEVICE as under a launcher. What a body returns
    must pickle. `start_delays_s` lets chosen ranks begin late.
    """

    def __init__(
        self,
        world_size: int,
        body: Callable[[int], Any],
        appliance: str,
        start_delays_s: dict[int, float] | None = None,
        only: list[int] | None = None,
    ) -> None:
        import pascaline.link.verbs  # noqa: F401  once here rather than in every fork: a second each under emulation

        self._pipes: dict[int, Connection] = {}
        self._processes: dict[int, multiprocessing.process.BaseProcess] = {}
        for rank in only if only is not None else range(world_size):
            ours, theirs = _FORK.Pipe(duplex=False)
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "PASCALINE_APPLIANCE": appliance,
                "PASCALINE_DEVICE": f"rxe{rank}",
            }
            delay_s = (start_delays_s or {}).get(rank, 0.0)
            process = _FORK.Process(
                target=_main, args=(rank, body, environment, delay_s, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes[rank], self._processes[rank] = ours, process

    def outcomes(self, timeout_s: float = 180.0) -> list[Outcome]:
        """Wait for all ranks; a rank without a result by then is an error of its own kind."""
        deadline = time.monotonic() + timeout_s
        return [self.outcome(rank, max(0.0, deadline - time.monotonic())) for rank in self._pipes]

    def outcome(self, rank: int, timeout_s: float) -> Outcome:
        """Wait for one rank."""
        pipe = self._pipes[rank]
        if not pipe.poll(timeout_s):
            return Outcome(error="NoResult", message=f"rank {rank} had no result after {timeout_s:.0f} s")
        try:
            outcome: Outcome = pipe.recv()
        except EOFError:
            self._processes[rank].join(60)
            code = self._processes[rank].exitcode
            return Outcome(error="Died", message=f"rank {rank} died with exit code {code}")
        return outcome

    def results(self, timeout_s: float = 180.0) -> list[Any]:
        """The values of all ranks; the test fails with every rank's traceback if one has none."""
        found = self.outcomes(timeout_s)
        bad = [f"rank {rank}: {o.error}: {o.message}\n{o.trace}" for rank, o in enumerate(found) if o.error]
        assert not bad, "\n".join(bad)
        return [outcome.value for outcome in found]

    def pid(self, rank: int) -> int:
        """Process id of a rank that is still there."""
        pid = self._processes[rank].pid
        assert pid is not None
        return pid

    def kill(self, rank: int) -> None:
        """kill -9, until nothing is left of the process: its queue pairs go with it, and that takes a while."""
        self._processes[rank].kill()
        self._processes[rank].join()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()


def _main(
    rank: int, body: Callable[[int], Any], environment: dict[str, str], delay_s: float, pipe: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    time.sleep(delay_s)
    try:
        outcome = Outcome(value=body(rank))
    except BaseException as error:  # a KeyboardInterrupt is an outcome too
        outcome = Outcome(error=type(error).__name__, message=str(error), trace=traceback.format_exc())
    pipe.send(outcome)
    pipe.close()
