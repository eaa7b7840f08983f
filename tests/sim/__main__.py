"""`python -m tests.sim`: seeds of the deterministic rack, a report, and this suite's keys of the summary."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tests import summary

from .runner import run_all
from .totals import Totals


def load(path: Path | None) -> Totals:
    """What an interrupted run of the same commit has left."""
    if path is None or not path.exists():
        return Totals()
    saved = json.loads(path.read_text())
    if saved["commit"] != summary.commit():
        print(f"{path} is of commit {saved['commit']}, this is {summary.commit()}: starting again")
        return Totals()
    return Totals.from_json(saved["totals"])


def save(path: Path | None, totals: Totals) -> None:
    """After each part, so that little is lost."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"commit": summary.commit(), "totals": totals.to_json()}))
        part.rename(path)


def main() -> int:
    """Run, report, judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--resume", type=Path, help="file that keeps the state of a long run")
    parser.add_argument("--no-summary", action="store_true", help="leave build/faults/summary.json alone")
    options = parser.parse_args()
    totals = load(options.resume)
    for records in run_all(options.first + totals.seeds, options.seeds - totals.seeds, options.jobs):
        totals.extend(records)
        save(options.resume, totals)
        if sys.stderr.isatty() or options.resume:
            print(f"{totals.seeds} seeds, {totals.violations} violations", file=sys.stderr)
    print("\n".join(totals.report()))
    if not options.no_summary:
        summary.merge(**totals.summary())
    broken = list(totals.broken_promises())
    for sentence in broken:
        print(f"the seeds are not what the suite promises: {sentence}")
    return 1 if broken or totals.violations else 0


if __name__ == "__main__":
    sys.exit(main())
