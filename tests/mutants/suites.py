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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..sim.test_sim import SEEDS
from .plant import ROOT, Tree

LIMIT_S = 400
"""Of a suite that takes 60 s at most: a mutant that makes it hang is caught by that."""
SUPPRESSIONS = ROOT / "dpdk_c/tests/tsan.supp"


@dataclass(frozen=True)
class Catch:
    """What a suite has noticed first."""

    where: str
    """The seed or the test, as its suite names it."""
    what: str


def sim(tree: Tree, seeds: int = SEEDS) -> Catch | None:
    """The deterministic rack, seed after seed."""
    program = tree.built("plain", "sim/psc_sim")
    names = subprocess.run([program, "--names"], check=True, capture_output=True, text=True).stdout
    rules = [line.split(" ", 2)[2] for line in names.splitlines() if line.startswith("rule ")]
    command = [str(program), "--from", "1", "--count", str(seeds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        assert run.stdout is not None
        seed = 0
        for line in run.stdout:
            record = json.loads(line)
            seed = record["seed"]
            if record["rule"]:
                run.kill()
                return Catch(f"SEED={seed}", f"not kept: {rules[record['rule']]} ({record['text']})")
        status = run.wait()
    if seed < seeds:
        end = "hang" if status == -signal.SIGALRM else f"crash, exit status {status}"
        return Catch(f"SEED={seed + 1}", end)
    return None


def _pytest(folder: str, tree: Tree) -> Catch | None:
    """One folder of tests/, with the copy's core behind its door."""
    library = tree.built("plain", "libpsc_core_test.so")
    with tempfile.TemporaryDirectory() as scratch:
        environment = {"PSC_CORE_TEST_LIB": str(library), "PSC_SUMMARY": f"{scratch}/summary.json"}
        command = [sys.executable, "-m", "pytest", folder, "-x", "-v", "-p", "no:cacheprovider"]
        with Path(scratch, "out").open("w+") as out:
            status: int | None
            try:
                status = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=os.environ | environment,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    timeout=LIMIT_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                status = None
            out.seek(0)
            said = out.read()
    return judged(status, said)


def judged(status: int | None, said: str) -> Catch | None:
    """Of pytest -x -v: its exit status, None if it had to be killed, and all that it printed."""
    if status == 0:
        return None
    begun = re.findall(r"^(tests/\S+::.*?) (?:PASSED|FAILED|ERROR|Fatal|$)", said, re.MULTILINE)
    if not begun or (status is not None and status > 1):
        raise RuntimeError(f"pytest ended with {status}:\n{said[-4000:]}")
    if status == 1:
        failed = re.findall(r"^(?:FAILED|ERROR) (tests/\S+::.*?)(?: - (.*))?$", said, re.MULTILINE)
        return Catch(*failed[0])
    end = "hang" if status is None else f"crash, exit status {status}"
    return Catch(begun[-1], end)


def protocol(tree: Tree) -> Catch | None:
    """Frames in, frames out."""
    return _pytest("tests/protocol", tree)


def malformed(tree: Tree) -> Catch | None:
    """Frames that no sound peer sends."""
    return _pytest("tests/malformed", tree)


def units(tree: Tree) -> Catch | None:
    """C unit tests of what keeps its rule by itself: our ends of QPs (ctl/), the ledger and the slots (agg/)."""
    for subject in ("identity", "pool"):
        if catch := _cmocka(tree.built("plain", f"tests/test_{subject}"), {}):
            return catch
    return None


def threads(tree: Tree) -> Catch | None:
    """The door to C beside a lane that polls, on real DPDK, under ThreadSanitizer."""
    options = f"halt_on_error=1:exitcode=66:suppressions={SUPPRESSIONS}"
    return _cmocka(tree.built("threads", "tests/test_ctl"), {"TSAN_OPTIONS": options})


def _cmocka(program: Path, environment: dict[str, str]) -> Catch | None:
    done = subprocess.run(
        [program], env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
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


SUITES: dict[str, Callable[[Tree], Catch | None]] = {
    "sim": sim,
    "protocol": protocol,
    "malformed": malformed,
    "units": units,
    "threads": threads,
}
OTHERS = ("protocol", "malformed", "sim")
"""That also judge a mutant of the core when the suite that its row names has not noticed it."""
