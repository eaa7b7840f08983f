"""`make learning`: trains with every codec through the hook, writes docs/learning.* and build/learning/summary.json."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from . import data, report, tasks
from .compare import summarise
from .runs import CODECS, LEAST_SEEDS, NONE_KEPT, ROOT, Kept, Records, Setting, head, order, resolved, sources
from .workers import Work, work_on


def options(arguments: list[str] | None) -> argparse.Namespace:
    """All have defaults."""
    parser = argparse.ArgumentParser(prog="python -m tests.learning", description=__doc__)
    parser.add_argument(
        "--budget-minutes", type=float, default=150, help="no run begins that would end later"
    )
    parser.add_argument("--seeds", type=int, default=2 * LEAST_SEEDS, help="of each codec and model")
    parser.add_argument("--codecs", default=",".join(CODECS), help="those that are trained with")
    parser.add_argument("--models", default=",".join(tasks.NAMES))
    parser.add_argument(
        "--keep",
        metavar="COMMIT:CODECS",
        default="",
        help="runs of these codecs, from sources of that commit, count too: nothing that they depend on has changed",
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, help="of each run; by default each model's own number")
    parser.add_argument("--fashion-mnist", type=Path, default=data.FASHION_MNIST, help="folder of its files")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "learning", help="runs, gradients, summary"
    )
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where page, plot and data go")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """0 if at least five seeds have been compared and thc is within its bound."""
    chosen = options(arguments)
    setting = Setting(sources(), chosen.workers, chosen.steps)
    codecs, models = chosen.codecs.split(","), chosen.models.split(",")
    commit, _, names = chosen.keep.partition(":")
    kept = Kept(resolved(commit), tuple(names.split(","))) if commit else NONE_KEPT
    runs = tuple(run for run in order(chosen.seeds) if run.codec in codecs and run.model in models)
    until = time.monotonic() + 60 * chosen.budget_minutes
    try:
        work_on(Work(runs, chosen.out, setting, chosen.fashion_mnist, until, kept))
    except Exception as error:  # of a worker: its traceback is in the message
        print(error, file=sys.stderr)
        return 1
    records = Records(chosen.out, setting, kept)
    done = [record for run in runs if (record := records.read(run))]
    found = summarise(done)
    print(f"{len(done)} of {len(runs)} runs are done")
    if "thc" not in codecs or not found["summary"]["seeds"]:
        return 1
    report.write(found, chosen.docs, setting.sources)
    summary = {**found["summary"], "commit": head(), "sources": setting.sources}
    (chosen.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(report.lines(found))
    return verdict(summary, len(done), len(runs))


def verdict(summary: dict[str, Any], done: int, runs: int) -> int:
    """Say what is missed or missing."""
    if summary["seeds"] < LEAST_SEEDS:
        print(f"only {summary['seeds']} seeds, of {LEAST_SEEDS} at least: run it again, it goes on from here")
        return 1
    if done < runs:
        print(f"{runs - done} runs are left: run it again, it goes on from here")
    gap, bound = summary["thc_loss_gap_sd"], report.BOUND_SD
    print(f"thc's final loss is {gap} of f32's deviations above f32's; the bound is {bound}")
    return 0 if gap is not None and gap <= bound else 1


if __name__ == "__main__":
    sys.exit(main())
