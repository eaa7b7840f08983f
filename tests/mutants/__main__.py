"""`python -m tests.mutants`: plants every mutant in turn, lets the suites judge it, and fails unless all are caught.

python -m tests.mutants [NAME ...]    only these, and no figures in the summary
"""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from .. import summary
from .plant import ROOT, RowError, Tree, mutated
from .suites import OTHERS, SUITES, Catch
from .table import MUTANTS, Mutant

PLACE = ROOT / "build/mutants"
REPORT = ROOT / "build/faults/mutants.json"


def order(mutant: Mutant) -> list[str]:
    """The suites for it, the one that its row names first."""
    others = OTHERS if mutant.suite in OTHERS else ()
    return [mutant.suite, *(name for name in others if name != mutant.suite)]


def judge(tree: Tree, mutant: Mutant) -> tuple[str, Catch] | None:
    """Which suite has caught it, and how."""
    with tree.planted(mutant):
        for name in order(mutant):
            catch = SUITES[name](tree, ())
            if catch is not None:
                return name, catch
    return None


def confirm(tree: Tree, catches: Iterable[tuple[str, Catch]]) -> None:
    """Runs what has caught a mutant on the sound copy: who complains there too has caught nothing.

    Raises RowError then.
    """
    wheres: dict[str, list[str]] = {}
    for name, catch in catches:
        wheres.setdefault(name, []).append(catch.where)
    for name, only in wheres.items():
        if complaint := SUITES[name](tree, sorted(set(only))):
            raise RowError(f"{name} complains without a mutant: {complaint.where}: {complaint.what}")


def row(mutant: Mutant, caught: tuple[str, Catch] | None, seconds: float) -> dict[str, Any]:
    """One entry of the report."""
    suite, catch = caught if caught else (None, None)
    return {
        "name": mutant.name,
        "rule": mutant.rule,
        "file": mutant.file,
        "expected": mutant.suite,
        "caught_by": suite,
        **(asdict(catch) if catch else {"where": None, "what": None}),
        "seconds": round(seconds, 1),
    }


def run(mutants: list[Mutant]) -> list[dict[str, Any]]:
    """The report's entries, each printed as it comes."""
    tree, rows, catches = Tree(PLACE), [], []
    for mutant in mutants:
        begin = time.monotonic()
        caught = judge(tree, mutant)
        rows.append(row(mutant, caught, time.monotonic() - begin))
        catches += [caught] if caught else []
        verdict = f"{caught[0]}: {caught[1].where}" if caught else "NOT CAUGHT"
        print(f"{mutant.name:<38} {rows[-1]['seconds']:6.1f} s  {verdict}", flush=True)
    confirm(tree, catches)
    return rows


def main() -> int:
    """0: every mutant was caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a row; default: all")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    for mutant in MUTANTS:
        mutated(mutant, (ROOT / "dpdk_c" / mutant.file).read_text())
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs would plant in one copy
        rows = run(chosen)
    caught = sum(entry["caught_by"] is not None for entry in rows)
    print(f"{caught} of {len(rows)} mutants caught")
    if not options.names:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps({"commit": summary.commit(), "mutants": rows}, indent=2) + "\n")
        summary.merge(mutants=len(rows), mutants_caught=caught)
    return 0 if rows and caught == len(rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RowError as error:
        sys.exit(str(error))
