"""Where the soft-RoCE tests run, and the fixtures that they share.

On a host, every selected test of this folder runs in one visit to the bench (one VM boot) and is reported here, one by
one, as it ends there: outside.py. Inside the bench the same files are plain pytest files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import summary
from tests.softroce import outside
from tests.softroce.appliance import Appliance
from tests.softroce.bench import PLACE_VARIABLE

INSIDE = PLACE_VARIABLE in os.environ
VISIT = pytest.StashKey[outside.Visit]()
LEFT_OUT = pytest.StashKey[set[str]]()
"""Keys of the summary of which some tests have been deselected: what the others count is no figure."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A time-out is the bench's to judge: here a test only waits for its report."""
    for item in items:
        if not INSIDE and item.path.is_relative_to(outside.FOLDER):
            item.add_marker(pytest.mark.timeout(0), append=False)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Which figures this run cannot reach."""
    for item in items:
        if marker := item.get_closest_marker("figures"):
            item.config.stash.setdefault(LEFT_OUT, set()).update(marker.args)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """On a host: report what the item did in the bench. pytest asks this of every folder's items."""
    if INSIDE or not item.path.is_relative_to(outside.FOLDER):
        return None
    stash = item.config.stash
    if VISIT not in stash:
        stash[VISIT] = outside.Visit(item.session)
    stash[VISIT].report(item)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the bench: hand the report out."""
    if INSIDE:
        outside.hand_out(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Figures of the fault suites go into their file."""
    stash = session.config.stash
    if VISIT in stash and summary.is_whole(session):
        counts = stash[VISIT].figures
        if figures := {key: counts[key] for key in counts.keys() - stash.get(LEFT_OUT, set())}:
            summary.merge(**figures)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How long the bench took, and pytest's closing line there."""
    if VISIT in config.stash:
        terminalreporter.section("soft-RoCE bench")
        terminalreporter.write_line(config.stash[VISIT].close())


@pytest.fixture(scope="session")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """One appliance for all tests that leave it as they found it."""
    with Appliance(tmp_path_factory.mktemp("appliance")) as running:
        yield running


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job name of the test's own, in the letters that the control contract allows."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:90]
