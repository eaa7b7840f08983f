"""Runs a task on this machine's own kernel, where rdma_rxe loads.

A fresh network namespace where rxe's traffic passes in one (rxe of Linux 6.1 keeps its socket in the first namespace
and times out elsewhere: so it is tried, not assumed), else this one, cleaned afterwards. Needs root.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time

from . import FABRIC, REPOSITORY, BenchError, Outcome, Task

PLACE = "rxe-native"
TRIAL = [sys.executable, "-m", "tests.softroce.rc_pair"]
TRIAL_TIMEOUT_S = 30.0


def works() -> bool:
    """Whether rdma_rxe loads and a link can be added to a veth pair."""
    if os.geteuid() != 0:
        return False
    trial = (
        "modprobe -a rdma_rxe ib_uverbs veth bridge && ip link add pscw type veth peer name pscb && "
        "{ rdma link add pscrxe type rxe netdev pscw; status=$?; ip link del pscw; exit $status; }"
    )
    return subprocess.run(["sh", "-c", trial], capture_output=True, check=False).returncode == 0


def run(task: Task) -> Outcome:
    """Make the fabric, run, undo it."""
    began = time.monotonic()
    if task.share:
        task.share.mkdir(parents=True, exist_ok=True)
    isolated = _traffic_passes_in_a_namespace()
    command = _in_namespace(task.workers, task.command) if isolated else task.command
    try:
        if not isolated:
            _fabric(str(task.workers))
        boot_s = time.monotonic() - began
        environment = os.environ | task.variables(PLACE)
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, timeout=task.timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise BenchError(f"the command did not end within {task.timeout_s:.0f} s") from None
    finally:
        if not isolated:
            _fabric("down", str(task.workers))
    return Outcome(PLACE, done.returncode, boot_s, time.monotonic() - began)


def _in_namespace(workers: int, command: list[str]) -> list[str]:
    script = f"sh {shlex.quote(str(FABRIC))} {workers} && exec {shlex.join(command)}"
    return ["unshare", "--net", "sh", "-c", script]


def _traffic_passes_in_a_namespace() -> bool:
    trial = _in_namespace(2, TRIAL)
    try:
        done = subprocess.run(
            trial, cwd=REPOSITORY, capture_output=True, timeout=TRIAL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _fabric(*arguments: str) -> None:
    done = subprocess.run(["sh", str(FABRIC), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"the fabric could not be made: {done.stderr.strip()}")
