"""Seeds of the deterministic rack keep every rule; runs repeat byte for byte; the suite can tell when one does not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .runner import binary, names, run, run_all
from .totals import Totals

SEEDS = int(os.environ.get("PSC_SIM_SEEDS", "10000"))


def test_every_rule_is_kept_in_all_seeds() -> None:
    totals = Totals()
    for records in run_all(1, SEEDS, os.cpu_count() or 1):
        totals.extend(records)
    print("\n".join(totals.report()))
    assert totals.findings == []
    assert totals.violations == 0
    assert totals.seeds == SEEDS
    assert list(totals.broken_promises()) == []


@pytest.mark.parametrize("seed", [1, 2, 3, 54, 1213])
def test_a_seed_is_one_run(seed: int) -> None:
    (once,), (again,) = run(seed, 1), run(seed, 1)
    assert once == again
    traced = subprocess.run(
        [binary(), "--trace", str(seed)], capture_output=True, text=True, check=False
    ).stdout
    assert f"hash {once['hash']}" in traced.splitlines()[-1], "printing changes the run"


def test_seeds_differ() -> None:
    records = run(1, 50)
    assert len({record["hash"] for record in records}) == 50


def test_every_kind_of_fault_happens() -> None:
    totals = Totals()
    totals.extend(run(1, 1000))
    assert [name for name in names("trouble") if not totals.times.get(name)] == []


def test_workers_of_both_kinds_resume_are_delivered_to_and_replay() -> None:
    whole = [r for r in run(1, 500) if r["resumed"] and r["redelivered"] and r["replayed"]]
    assert any(r["model_workers"] == r["workers"] for r in whole)
    assert any(r["model_workers"] == 0 for r in whole)
    assert any(0 < r["model_workers"] < r["workers"] for r in whole)


def program(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "sim"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("signal", "end"), [("SEGV", "crash"), ("ALRM", "hang")])
def test_a_run_that_dies_is_found_and_the_next_seed_follows(tmp_path: Path, signal: str, end: str) -> None:
    body = f'[ "$2" = 8 ] && kill -{signal} $$; echo "{{\\"seed\\": $2}}"'
    records = run(6, 1, program(tmp_path, body)) + run(8, 1, program(tmp_path, body))
    assert records[0] == {"seed": 6}
    assert (records[1]["seed"], records[1]["died"]) == (8, end)
    totals = Totals()
    totals.add(records[1], names("rule"), names("trouble"))
    assert totals.violations == 1 and "SEED=8" in totals.findings[0]


def test_a_violated_rule_is_counted_under_its_key() -> None:
    totals = Totals()
    rules, troubles = names("rule"), names("trouble")
    (record,) = run(1, 1)
    for number in range(1, len(rules)):
        totals.add(record | {"rule": number}, rules, troubles)
    summary = totals.summary()
    assert (summary["wrong_sums"], summary["hangs"], summary["needless_errors"]) == (7, 1, 1)
    assert totals.by_rule["a round that a rank has returned reaches every live rank"] == 1
    assert summary["sim_violations"] == len(rules) - 1


def test_seeds_that_are_too_tame_break_the_promise() -> None:
    totals = Totals()
    (record,) = run(1, 1)
    tame = {"workers": 2, "rounds_begun": 9, "wrapped": 0, "slots_reused": 0, "model_workers": 0}
    tame |= {"resumed": 0, "redelivered": 0, "replayed": 0}
    rules, troubles = names("rule"), names("trouble")
    for _ in range(300):
        totals.add(record | tame | {"troubles": [0] * len(troubles)}, rules, troubles)
    assert len(list(totals.broken_promises())) == 9


def test_totals_go_on_where_they_stopped() -> None:
    totals, halves = Totals(), Totals()
    totals.extend(run(1, 20))
    halves.extend(run(1, 10))
    halves = Totals.from_json(halves.to_json())
    halves.extend(run(11, 10))
    assert halves == totals
