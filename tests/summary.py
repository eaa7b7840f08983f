"""The figures of the fault suites: build/faults/summary.json, one flat object.

Every target of the Makefile fills its own keys, all of them or none, and leaves the others' alone; targets may run at
the same time. All figures in the file are of one commit: the first that are reached with another drop the older ones.

    python -m tests.summary TARGET COMMAND ...    runs the command, which must fill the target's keys
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


ROOT = Path(__file__).parents[1]
SUMMARY = Path(os.environ.get("PSC_SUMMARY", ROOT / "build/faults/summary.json"))
TARGETS: dict[str, frozenset[str]] = {
    "sim": frozenset(
        [
            "seeds",
            "rounds_summed",
            "rounds_void",
            "wrong_sums",
            "hangs",
            "crashes",
            "needless_errors",
            "undetectable",
        ]
    ),
    "mutants": frozenset(("mutants", "mutants_caught")),
    "malformed": frozenset(("malformed_cases", "malformed_failed")),
    "fuzz": frozenset(("fuzz_execs", "fuzz_findings")),
    "softroce-faults": frozenset(("live_faults", "live_failed")),
    "perftest": frozenset(("perftest_runs", "perftest_failed")),
}
"""Whose key is whose. A target may fill more; `commit` comes with all."""


class MissingFiguresError(Exception):
    """A target that has not filled its keys."""


def commit(tree: Path = ROOT) -> str:
    """Of the working tree; with a plus sign if tracked files differ from it; empty outside a repository."""
    git = ["git", "-C", str(tree)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True, check=False)
    return head.stdout.strip() + "+" * (changed.returncode == 1)


@contextmanager
def figures_in(path: Path) -> Iterator[dict[str, Any]]:
    """What the file holds, to be changed; written back under a lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        figures: dict[str, Any] = json.loads(text) if text else {}
        yield figures
        file.truncate(0)
        file.write(json.dumps(figures, indent=2) + "\n")


def merge(path: Path | None = None, at: str | None = None, **figures: int | str) -> None:
    """Set these keys and the commit that they were reached with (`at`; this tree's).

    Raises MissingFiguresError if a target of one of them is not given all of its keys.
    """
    for target, keys in TARGETS.items():
        if keys & figures.keys() and keys - figures.keys():
            raise MissingFiguresError(
                f"{target} fills {sorted(keys)}: without {sorted(keys - figures.keys())}"
            )
    now = commit() if at is None else at
    with figures_in(path or SUMMARY) as known:
        if known.get("commit") != now:
            known.clear()
        known.update(figures | {"commit": now})


def forget(target: str, path: Path | None = None) -> None:
    """So that what is there after a run is the run's."""
    with figures_in(path or SUMMARY) as known:
        for key in TARGETS[target]:
            known.pop(key, None)


def missing(target: str, path: Path | None = None, at: str | None = None) -> list[str]:
    """The target's keys that the file has not, for this commit."""
    with figures_in(path or SUMMARY) as known:
        of_now = known.get("commit") == (commit() if at is None else at)
        return sorted(key for key in TARGETS[target] if not of_now or key not in known)


def is_whole(session: pytest.Session) -> bool:
    """Whether a pytest session has run all tests of the files that it was given: only then a count is a figure.

    What `-k` and `-m` leave out is told to pytest_deselected and is the caller's to judge.
    """
    config = session.config
    chosen = config.option.collectonly or any("::" in arg for arg in config.args)
    return not (chosen or session.shouldfail or session.shouldstop)


def run(target: str, command: list[str]) -> int:
    """The command's exit status, or 1 if it has left out a key."""
    forget(target)
    status = subprocess.run(command, check=False).returncode
    if absent := missing(target):
        print(f"{SUMMARY} has no {', '.join(absent)}: `make {target}` must fill it", file=sys.stderr)
    return status or (1 if absent else 0)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
