"""The suites that must notice a mutant, at their default budgets and otherwise unchanged. Each answers with its first
complaint, or None. A suite that cannot judge raises: that is no catch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..sim.test_sim import SEEDS
from .plant import ROOT, Tree

SEED = "SEED="
TEST_LIMIT_S = 200
"""Of a test of pytest's, which takes a few seconds: a mutant that makes it hang is caught by that, as one that makes a
seed hang is by psc_sim's own alarm."""
LIMIT_S = 3600
"""Of a suite. A busy machine is no catch: this one raises."""
SUPPRESSIONS = ROOT / "dpdk_c/tests/tsan.supp"
UNITS = (
    ("identity",),
    ("icrc", str(ROOT / "tests/vectors/icrc.txt")),
    ("checked",),
    ("pool",),
    ("pool_many",),
    ("ahead",),
    ("expand",),
    ("arith",),
    ("arith_many",),
)
"""Subjects of dpdk_c/tests, and what their executables are told, as its meson.build says."""


@dataclass(frozen=True)
class Catch:
    """What a suite has noticed first."""

    where: str
    """The seed or the test, as its suite names it."""
    what: str


def sim(tree: Tree, only: Sequence[str] = (), seeds: int = SEEDS) -> Catch | None:
    """The deterministic rack, seed after seed."""
    program = tree.built("plain", "sim/psc_sim")
    names = subprocess.run([program, "--names"], check=True, capture_output=True, text=True).stdout
    rules = [line.split(" ", 2)[2] for line in names.splitlines() if line.startswith("rule ")]
    if not only:
        return _seeds(program, rules, 1, seeds)
    catches = (_seeds(program, rules, int(where.removeprefix(SEED)), 1) for where in only)
    return next((catch for catch in catches if catch), None)


def _seeds(program: Path, rules: list[str], first: int, count: int) -> Catch | None:
    command = [str(program), "--from", str(first), "--count", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        assert run.stdout is not None
        seed = first - 1
        for line in run.stdout:
            record = json.loads(line)
            seed = record["seed"]
            if record["rule"]:
                run.kill()
                return Catch(f"{SEED}{seed}", f"not kept: {rules[record['rule']]} ({record['text']})")
        status = run.wait()
    if seed == first + count - 1:
        return None
    end = "hang" if status == -signal.SIGALRM else f"crash, exit status {status}"
    return Catch(f"{SEED}{seed + 1}", end)


def _pytest(tree: Tree, tests: Sequence[str]) -> Catch | None:
    """Some of tests/, with the copy's core behind its door."""
    library = tree.built("plain", "libpsc_core_test.so")
    with tempfile.TemporaryDirectory() as scratch:
        environment = {"PSC_CORE_TEST_LIB": str(library), "PSC_SUMMARY": f"{scratch}/summary.json"}
        command = [sys.executable, "-m", "pytest", *tests, "-x", "-v", "-p", "no:cacheprovider"]
        command += [f"--timeout={TEST_LIMIT_S}", "--timeout-method=thread"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    return judged(done.returncode, done.stdout + done.stderr)


def judged(status: int, said: str) -> Catch | None:
    """Of pytest -x -v: its exit status, and all that it printed."""
    if status == 0:
        return None
    begun = re.findall(r"^(tests/\S+::.*?) (?:PASSED|FAILED|ERROR|Fatal|\+|$)", said, re.MULTILINE)
    if not begun or status > 1:
        raise RuntimeError(f"pytest ended with {status}:\n{said[-4000:]}")
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/\S+::.*?)(?: - (.*))?$", said, re.MULTILINE)
    if failed:
        return Catch(*failed[0])
    hung = re.search(r"^\++ Timeout \++$", said, re.MULTILINE)
    return Catch(begun[-1], "hang" if hung else f"crash, exit status {status}")


def protocol(tree: Tree, only: Sequence[str] = ()) -> Catch | None:
    """Frames in, frames out."""
    return _pytest(tree, only or ["tests/protocol"])


def malformed(tree: Tree, only: Sequence[str] = ()) -> Catch | None:
    """Frames that no sound peer sends."""
    return _pytest(tree, only or ["tests/malformed"])


def units(tree: Tree, only: Sequence[str] = ()) -> Catch | None:
    """C unit tests of what keeps its rule by itself: our ends of QPs (ctl/), ICRCs (roce/), what is added while they
    are checked and every variant of the ops (arith/), ledger, slots, streams (agg/).
    """
    for subject, *arguments in UNITS:
        if catch := _cmocka(tree.built("plain", f"tests/test_{subject}"), {}, arguments):
            return catch
    return None


def threads(tree: Tree, only: Sequence[str] = ()) -> Catch | None:
    """The door to C beside a lane that polls, on real DPDK, under ThreadSanitizer."""
    options = f"halt_on_error=1:exitcode=66:suppressions={SUPPRESSIONS}"
    return _cmocka(tree.built("threads", "tests/test_ctl"), {"TSAN_OPTIONS": options})


def _cmocka(program: Path, environment: dict[str, str], arguments: Sequence[str] = ()) -> Catch | None:
    done = subprocess.run(
        [program, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode == 0:
        return None
    said = done.stdout + done.stderr
    race = re.search(r"^SUMMARY: (ThreadSanitizer: .*)$", said, re.MULTILINE)
    error = re.search(r"^\[  ERROR   \] --- (.*)$", said, re.MULTILINE)
    failed = re.findall(r"^\[  FAILED  \] (\w+)", said, re.MULTILINE)
    begun = re.findall(r"^\[ RUN +\] (\w+)", said, re.MULTILINE)
    test = failed[0] if failed and not race else (begun or ["start"])[-1]
    said_what = race or error
    return Catch(f"{program.name}::{test}", said_what[1] if said_what else f"exit status {done.returncode}")


SUITES: dict[str, Callable[[Tree, Sequence[str]], Catch | None]] = {
    "sim": sim,
    "protocol": protocol,
    "malformed": malformed,
    "units": units,
    "threads": threads,
}
"""By their names in the table. They take the copy and what alone to run: seeds or tests as a Catch names them; none of
them means the default budget. What is run by the executable always runs whole."""
OTHERS = ("protocol", "malformed", "sim")
"""That also judge a mutant of the core when the suite that its row names has not noticed it."""
