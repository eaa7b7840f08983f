"""The table fits the sources, and the machinery catches a mutant where there is one and nothing where there is none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from . import suites
from .__main__ import confirm, order
from .plant import ROOT, RowError, Tree, mutated
from .table import MUTANTS, Mutant

FEW_SEEDS = 20


def source(mutant: Mutant) -> str:
    return (ROOT / "dpdk_c" / mutant.file).read_text()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_row_fits_its_file(mutant: Mutant) -> None:
    assert mutated(mutant, source(mutant)) != source(mutant)
    assert order(mutant)[0] == mutant.suite


def test_rows_are_one_fault_each() -> None:
    assert len(MUTANTS) >= 12
    assert Counter(mutant.name for mutant in MUTANTS).most_common(1)[0][1] == 1
    assert len({(mutant.file, mutant.text, mutant.becomes) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("times", [0, 2])
def test_a_row_whose_text_is_not_there_once_is_an_error(times: int) -> None:
    mutant = MUTANTS[0]
    with pytest.raises(RowError, match=f"is {times} times in {mutant.file}, not once"):
        mutated(mutant, mutant.text * times)


def test_a_mutant_is_caught_and_a_sound_copy_is_not(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    (early,) = (mutant for mutant in MUTANTS if mutant.name == "publish before all are whole")
    with tree.planted(early):
        catch = suites.sim(tree, seeds=FEW_SEEDS)
        copy = tree.source / "dpdk_c" / early.file
        assert copy.read_text() == mutated(early, source(early))
    assert catch is not None
    assert catch.where == "SEED=1" and catch.what.startswith("not kept: ")
    assert suites.sim(tree, seeds=FEW_SEEDS) is None
    assert copy.read_text() == source(early)
    confirm(tree, [("sim", catch)])


def test_what_complains_without_a_mutant_has_caught_nothing(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    (early,) = (mutant for mutant in MUTANTS if mutant.name == "publish before all are whole")
    with tree.planted(early), pytest.raises(RowError, match="sim complains without a mutant: SEED=2"):
        confirm(tree, [("sim", suites.Catch("SEED=2", ""))])


def test_a_mutant_that_does_not_compile_is_an_error(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    broken = Mutant("broken", "it compiles", "agg/psc_pool.c", '#include "psc_pool.h"\n', "not C\n", "sim")
    with tree.planted(broken), pytest.raises(RowError, match=r"psc_pool\.c"):
        suites.sim(tree, seeds=FEW_SEEDS)


def test_a_copy_follows_its_sources(tmp_path: Path) -> None:
    source = Tree(tmp_path).source
    (source / "dpdk_c/agg/psc_pool.c").write_text("left by a run that was interrupted")
    (source / "dpdk_c/agg/gone.c").write_text("")
    Tree(tmp_path)
    assert (source / "dpdk_c/agg/psc_pool.c").read_bytes() == (ROOT / "dpdk_c/agg/psc_pool.c").read_bytes()
    assert not (source / "dpdk_c/agg/gone.c").exists()


GOOD = "tests/protocol/test_sums.py::test_a PASSED  [ 10%]\n"
LAST = "tests/protocol/test_sums.py::test_b[ipv4] "


NAME = LAST.strip()


@pytest.mark.parametrize(
    ("status", "said", "catch"),
    [
        (0, GOOD, None),
        (1, f"{GOOD}{LAST}FAILED [ 20%]\nFAILED {NAME} - assert 1\n", suites.Catch(NAME, "assert 1")),
        (-11, f"{GOOD}{LAST}Fatal Python error\n", suites.Catch(NAME, "crash, exit status -11")),
        (1, f"{GOOD}{LAST}\n+++++ Timeout +++++\nstacks\n", suites.Catch(NAME, "hang")),
    ],
    ids=["passed", "failed", "crashed", "hung"],
)
def test_what_pytest_says_is_understood(status: int, said: str, catch: suites.Catch | None) -> None:
    assert suites.judged(status, said) == catch


@pytest.mark.parametrize("status", [2, 3, 4, 5])
def test_a_suite_that_could_not_run_has_caught_nothing(status: int) -> None:
    with pytest.raises(RuntimeError):
        suites.judged(status, GOOD)
