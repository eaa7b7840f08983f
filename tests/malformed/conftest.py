"""Counts the cases of this suite and writes their number into the summary of the fault suites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .. import summary
from ..protocol.rack import OPS
from ..protocol.wire import FAMILIES, Family
from .bench import Bench

HERE = Path(__file__).parent


@dataclass
class Tally:
    """All cases of this run."""

    cases: int = 0
    failed: list[str] = field(default_factory=list)
    selected: bool = False


TALLY = Tally()
Case = tuple[str, str, Callable[[Bench], bytes]]
"""What is wrong, the state that it meets, and the frame."""


@pytest.fixture(params=FAMILIES, ids=str)
def family(request: pytest.FixtureRequest) -> Family:
    """Every table runs on IPv4 and on IPv6."""
    return request.param


@pytest.fixture
def check() -> Iterator[Callable[..., None]]:
    """check(family, cases): each case is one frame, held to the rules, and what follows it."""

    def run(family: Family, cases: Iterable[Case], vlan: int = 0, ops: Sequence[int] = OPS) -> None:
        before, bench = len(TALLY.failed), None
        for what, state, make in cases:
            TALLY.cases += 1
            bench = bench or Bench(family, vlan, ops)
            try:
                bench.enter(state)
                bench.see(make(bench))
                bench.finish()
            except AssertionError as error:
                TALLY.failed.append(f"{what}, {state}: {error}")
                bench = None  # its state is unknown; the rack's memory is left to the process
                continue
            if bench.qp.in_error and state != "err":
                bench.close()
                bench = None
        if bench is not None:
            bench.close()
        failed = TALLY.failed[before:]
        assert not failed, "\n".join([f"{len(failed)} cases", *failed[:20]])

    yield run


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Remembers that this run is a selection."""
    TALLY.selected |= any(item.path.is_relative_to(HERE) for item in items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run of the whole suite, not of a selection, is worth a figure."""
    files = {item.path for item in session.items}
    whole = summary.is_whole(session) and not TALLY.selected and set(HERE.glob("test_*.py")) <= files
    if TALLY.cases and whole:
        summary.merge(malformed_cases=TALLY.cases, malformed_failed=len(TALLY.failed))
