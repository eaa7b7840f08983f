"""What the fault tests are written with: an appliance behind the injector, what a rank does and reports, the oracle.

The oracle: every all_reduce has one outcome, the same on every rank that lives and can be reached: the exact sum, or
the same typed error within LIMIT_S of the fault. Nobody hangs, and what any rank has returned is never void elsewhere.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pascaline
from tests.softroce import injector
from tests.softroce.appliance import Appliance
from tests.softroce.bench import PLACE_VARIABLE
from tests.softroce.ranks import Outcome

IN_VM = os.environ.get(PLACE_VARIABLE) == "rxe-vm"
# The appliance's own defaults on a real machine; an emulated one answers later.
PROGRESS_S, DEADLINE_S = (4.0, 16.0) if IN_VM else (2.0, 5.0)
SLACK_S = 6.0 if IN_VM else 1.0
LIMIT_S = DEADLINE_S + SLACK_S
HEARTBEAT_S = 16.0
"""A process that has not answered for so long is dead: one interval of pings and their time-out."""
HANG_S = 240.0
"""Nothing may take so long, not even at 5 % loss."""
WORLD_SIZE = 3
CHUNK_BYTES, WINDOW = 65536, 4
CHUNK_ELEMS = CHUNK_BYTES // 4
MIDDLES = CHUNK_BYTES // 4096 - 2  # packets between FIRST and LAST of a whole chunk

Array = NDArray[Any]


class FaultyAppliance(Appliance):
    """The appliance behind the injector."""

    address = "127.0.0.1:4792"
    data_address = "10.77.0.3"
    interface = injector.INTERFACE
    progress_s, deadline_s = PROGRESS_S, DEADLINE_S
    ping_timeout_s = HEARTBEAT_S - 2.0
    # Seven tries in 1.9 s. In 0.5 s (14) a host that stops one virtual CPU, and the injector with it, was once enough
    # to end an epoch that nobody had harmed.
    retransmit_exponent = 16

    @property
    def lives(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None


class FaultyRack:
    """Context manager: the injector, and an appliance behind it that is started again when a test has killed it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.injector = injector.Injector(folder)
        self._appliance: FaultyAppliance | None = None

    @property
    def appliance(self) -> FaultyAppliance:
        """A running one."""
        if self._appliance is None or not self._appliance.lives:
            self._appliance = FaultyAppliance(self._folder)
        return self._appliance

    def __enter__(self) -> FaultyRack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._appliance is not None and self._appliance.lives:
                self._appliance.stop()
        finally:
            self.injector.close()


# ---- What a rank does ----


@dataclass(frozen=True)
class Call:
    """One all_reduce."""

    elems: int
    dtype: str = "int32"
    codec: str = "f32"


ALL_KINDS = [
    call
    for _ in range(4)
    for call in (
        Call(CHUNK_ELEMS),
        Call(1),
        Call(5 * CHUNK_ELEMS + 3),  # more than the window
        Call(2 * CHUNK_ELEMS + 1025, "float32", "fixed32"),  # its maxima take the small pool
        Call(1024, "float32"),
    )
]
ONE_CHUNK_EACH = [Call(CHUNK_ELEMS)] * 24
"""So that the n-th FIRST, LAST or result of a rank is that of the n-th call."""


def contribution(call: Call, number: int, rank: int) -> Array:
    """Exact in any order of adding, in float32 too, and another one for each call and rank."""
    limit = 2**31 if call.dtype == "int32" else 2**20
    generator = np.random.default_rng(1000 * number + rank)
    return generator.integers(-limit, limit, call.elems).astype(call.dtype)


def checksum(values: Array) -> str:
    """Of what a rank has got."""
    return f"sum {zlib.crc32(values.tobytes()):08x}"


def expected(calls: list[Call]) -> list[str]:
    """The checksums of the exact sums."""
    sums = []
    for number, call in enumerate(calls):
        total = contribution(call, number, 0)
        for rank in range(1, WORLD_SIZE):
            total = total + contribution(call, number, rank)
        sums.append(checksum(total))
    return sums


@dataclass
class Report:
    """What one rank saw; times are of CLOCK_MONOTONIC, which is the same for all processes."""

    outcomes: list[str] = field(default_factory=list)
    """Per call: "sum CHECKSUM" or "error TYPE FAULT"."""
    message: str = ""
    """Of the first error."""
    ended_s: float = 0.0
    """When the first error, or the last sum, was there."""
    epochs: int = 0
    """How often the connections were made anew."""

    @property
    def sums(self) -> int:
        """Calls that were summed before the first error."""
        return next(
            (n for n, outcome in enumerate(self.outcomes) if outcome.startswith("error")), len(self.outcomes)
        )

    def fail(self, error: pascaline.PascalineError) -> str:
        """Note an error; returns it as an outcome."""
        if not self.message:
            self.message, self.ended_s = str(error), time.monotonic()
        return f"error {type(error).__name__} {getattr(error, 'fault', '')}".strip()


def train(
    job: str,
    rank: int,
    calls: list[Call],
    join_timeout_s: float = 120.0,
    joined: Callable[[pascaline.Session], None] = lambda _: None,
) -> Report:
    """Join, submit every call at once, wait for each, leave."""
    report = Report()
    inputs = [contribution(call, number, rank) for number, call in enumerate(calls)]
    try:
        with pascaline.Session(
            job=job, chunk_bytes=CHUNK_BYTES, window=WINDOW, join_timeout_s=join_timeout_s
        ) as session:
            joined(session)
            began = session.stats()["epoch"]
            _reduce(session, report, inputs, calls)
            report.epochs = session.stats()["epoch"] - began
            if not report.message:
                report.ended_s = time.monotonic()
    except pascaline.PascalineError as error:  # of the join, or of the leave
        outcome = report.fail(error)
        if len(report.outcomes) == len(calls) and report.sums == len(calls):
            report.outcomes.append(outcome)
        else:
            report.outcomes += [outcome] * (len(calls) - len(report.outcomes))
    return report


def _reduce(session: pascaline.Session, report: Report, inputs: list[Array], calls: list[Call]) -> None:
    works: list[Any] = []
    for values, call in zip(inputs, calls, strict=True):
        try:
            works.append(session.all_reduce(values, async_op=True, codec=call.codec))
        except pascaline.PascalineError as error:
            works.append(error)
    for values, work in zip(inputs, works, strict=True):
        try:
            if isinstance(work, pascaline.PascalineError):
                raise work
            work.wait(HANG_S)
            report.outcomes.append(checksum(values))
        except pascaline.PascalineError as error:
            outcome = report.fail(error)
            hangs = not isinstance(work, pascaline.PascalineError) and not work.is_completed()
            report.outcomes.append("error Hang" if hangs else outcome)


# ---- The oracle ----


def judge(
    calls: list[Call],
    outcomes: Mapping[int, Outcome],
    fault_s: float,
    *,
    cut_off: frozenset[int] = frozenset(),
) -> dict[int, Report]:
    """Every rank of `outcomes` is alive. Returns their reports."""
    for rank, outcome in outcomes.items():
        assert not outcome.error, f"rank {rank}: {outcome.error}: {outcome.message}\n{outcome.trace}"
    reports: dict[int, Report] = {rank: outcome.value for rank, outcome in outcomes.items()}
    for rank, report in reports.items():
        print(f"rank {rank}: {report.sums} sums, then {report.outcomes[report.sums :][:1]} {report.message}")
        print(f"    {report.ended_s - fault_s:.2f} s after the fault, {report.epochs} new epochs")
    sums = expected(calls)
    for rank, report in reports.items():
        wrong = [n for n, outcome in enumerate(report.outcomes[: report.sums]) if outcome != sums[n]]
        assert not wrong, f"rank {rank}: wrong sums of calls {wrong}"
        errors = report.outcomes[report.sums :]
        assert len(set(errors)) <= 1, f"rank {rank}: not one error: {errors}"
        assert "error Hang" not in errors, f"rank {rank} hung: {report.message}"
        if errors:
            late_s = report.ended_s - fault_s
            assert late_s < LIMIT_S, (
                f"rank {rank} was told {late_s:.1f} s after the fault, {LIMIT_S} s are allowed"
            )
    reachable = [report for rank, report in reports.items() if rank not in cut_off]
    for report in reachable[1:]:
        assert report.outcomes == reachable[0].outcomes, "reachable ranks differ"
    for rank in cut_off & reports.keys():
        _judge_cut_off(rank, reports[rank], reachable)
    return reports


def _judge_cut_off(rank: int, report: Report, reachable: list[Report]) -> None:
    for other in reachable:
        assert report.sums <= other.sums, f"rank {rank} has returned a sum that is void on the others"
    own, *_ = [*report.outcomes[report.sums :], ""]
    allowed = {"", "error ApplianceUnreachable"} | {o for other in reachable for o in other.outcomes}
    assert own in allowed, f"rank {rank}, cut off, says {own}"
