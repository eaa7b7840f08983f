"""The host's side of a test run: one visit to the bench for all selected items, their reports carried over one by one.

The pytest in the bench writes each report as one JSON line to the share (as pytest-xdist sends them); the host reads
the lines as they come. A place that cannot be made, or a guest that dies, fails every item that has no report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.softroce import injector
from tests.softroce.bench import REPOSITORY

REPORTS_VARIABLE = "PASCALINE_BENCH_REPORTS"
FOLDER = Path(__file__).parent
SHARE = REPOSITORY / "build" / "softroce"
MEMORY_MB = 1024  # pytest, the appliance, four ranks
# On a host with a load of 18 the slowest item took 67 s, but for DDP, which has a limit of its own, 325 s; the default
# suite without its faults took 781 s.
ITEM_TIMEOUT_S = 600
TOTAL_TIMEOUT_S = 5400.0
TAIL_LINES = 40


def hand_out(report: pytest.TestReport) -> None:
    """In the bench: append a report to the share."""
    path = os.environ.get(REPORTS_VARIABLE)
    if path:
        with Path(path).open("a") as stream:
            stream.write(json.dumps(report._to_json()) + "\n")


class Visit:
    """One run of the bench for all of a session's items in this folder."""

    figures: Counter[str]
    """Of items marked `figures(runs, failed)`: how many there were, and how many of them failed, under those keys."""

    def __init__(self, session: pytest.Session) -> None:
        SHARE.mkdir(parents=True, exist_ok=True)
        self._log = SHARE / "bench.log"
        self._reports_path = SHARE / "reports.jsonl"
        self._reports_path.write_text("")
        self._offset = 0
        self.figures = Counter()
        self._reports: dict[str, list[pytest.TestReport]] = defaultdict(list)
        ours = [item.nodeid for item in session.items if item.path.is_relative_to(FOLDER)]
        (SHARE / "items").write_text("\n".join(ours))
        injector.build()
        with self._log.open("wb") as log:
            self._bench = subprocess.Popen(
                self._command(), cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT
            )

    def _command(self) -> list[str]:
        bench = [sys.executable, "-m", "tests.softroce.bench", "--share", str(SHARE)]
        bench += ["--memory-mb", str(MEMORY_MB), "--timeout-s", str(TOTAL_TIMEOUT_S), "run", "--"]
        # Every plugin that is not loaded saves a second of emulation.
        variables = ["env", f"{REPORTS_VARIABLE}={self._reports_path}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"]
        options = ["-p", "pytest_timeout", f"--timeout={ITEM_TIMEOUT_S}", "-p", "no:cacheprovider"]
        options += ["--color=no", "--durations=10", "-m", ""]  # what is selected has been decided here
        return [*bench, *variables, sys.executable, "-m", "pytest", *options, f"@{SHARE / 'items'}"]

    def report(self, item: pytest.Item) -> None:
        """Wait for the item's end in the bench and report it here."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        while not self._ended(item.nodeid):
            alive = self._bench.poll() is None
            self._read_reports()
            if not alive and not self._ended(item.nodeid):
                self._reports[item.nodeid].append(self._lost(item))
                break
            time.sleep(0.05)
        for report in self._reports[item.nodeid]:
            item.ihook.pytest_runtest_logreport(report=report)
        if marker := item.get_closest_marker("figures"):
            runs, failed = marker.args
            self.figures[runs] += 1
            self.figures[failed] += any(report.failed for report in self._reports[item.nodeid])
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def close(self) -> str:
        """End the visit; returns the guest pytest's closing line and the bench's own."""
        if self._bench.poll() is None:
            try:
                self._bench.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._bench.terminate()
                self._bench.wait()
        return "\n".join(self._tail().splitlines()[-2:])

    def _ended(self, nodeid: str) -> bool:
        return any(report.when == "teardown" for report in self._reports[nodeid])

    def _read_reports(self) -> None:
        with self._reports_path.open("rb") as stream:
            stream.seek(self._offset)
            text = stream.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            report = pytest.TestReport._from_json(json.loads(line))
            self._reports[report.nodeid].append(report)

    def _lost(self, item: pytest.Item) -> pytest.TestReport:
        code = self._bench.returncode
        message = f"the bench ended (exit {code}) without a result of this test\n{self._tail()}"
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", message, "call")

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
