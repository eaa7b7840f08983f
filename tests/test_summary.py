"""The summary of the fault suites: keys come whole, of one commit, and a target that leaves one out has failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import summary

KEYS = (
    *("seeds", "rounds_summed", "rounds_void", "wrong_sums", "hangs", "crashes", "needless_errors"),
    *("undetectable", "mutants", "mutants_caught", "malformed_cases", "malformed_failed", "fuzz_execs"),
    *("fuzz_findings", "live_faults", "live_failed", "perftest_runs", "perftest_failed"),
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A summary of the test's own."""
    monkeypatch.setattr(summary, "SUMMARY", tmp_path / "faults/summary.json")
    return summary.SUMMARY


def read(path: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures


def test_every_key_has_one_target() -> None:
    assert sorted(key for keys in summary.TARGETS.values() for key in keys) == sorted(KEYS)


def test_targets_leave_each_others_keys_alone(path: Path) -> None:
    summary.merge(at="a", mutants=16, mutants_caught=16)
    summary.merge(at="a", fuzz_execs=5, fuzz_findings=0)
    summary.merge(at="a", mutants=17, mutants_caught=16)
    assert read(path) == {
        "mutants": 17,
        "mutants_caught": 16,
        "fuzz_execs": 5,
        "fuzz_findings": 0,
        "commit": "a",
    }


def test_figures_of_another_commit_are_dropped(path: Path) -> None:
    summary.merge(at="a", mutants=16, mutants_caught=16)
    summary.merge(at="b", fuzz_execs=5, fuzz_findings=0)
    assert read(path) == {"fuzz_execs": 5, "fuzz_findings": 0, "commit": "b"}


def test_a_target_gives_all_of_its_keys(path: Path) -> None:
    with pytest.raises(summary.MissingFiguresError, match="without \\['mutants_caught'\\]"):
        summary.merge(at="a", mutants=16)
    assert not path.exists()
    assert summary.missing("mutants", at="a") == ["mutants", "mutants_caught"]


def test_what_is_missing_is_judged_for_this_commit(path: Path) -> None:
    summary.merge(at="a", mutants=16, mutants_caught=16)
    assert summary.missing("mutants", at="a") == []
    assert summary.missing("mutants", at="b") == ["mutants", "mutants_caught"]


def test_an_old_run_does_not_stand_in_for_this_one(path: Path) -> None:
    summary.merge(mutants=16, mutants_caught=16)
    assert summary.run("mutants", [sys.executable, "-c", ""]) == 1
    assert summary.missing("mutants") == ["mutants", "mutants_caught"]


def test_a_run_that_fills_its_keys_ends_as_its_command_does(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSC_SUMMARY", str(path))
    fills = "from tests import summary; summary.merge(mutants=2, mutants_caught=1)"
    assert summary.run("mutants", [sys.executable, "-c", fills]) == 0
    assert summary.run("mutants", [sys.executable, "-c", f"{fills}; raise SystemExit(3)"]) == 3
    assert read(path)["mutants_caught"] == 1


def test_a_changed_tree_is_not_its_commit(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "file").write_text("one")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert summary.commit(tmp_path) == head.stdout.strip()
    (tmp_path / "file").write_text("two")
    assert summary.commit(tmp_path) == head.stdout.strip() + "+"
