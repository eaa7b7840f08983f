"""Runs a task on this machine's own kernel, where rdma_rxe loads.

A fresh network namespace where rxe's traffic passes in one (rxe of Linux 6.1 keeps its socket in the first namespace and
times out elsewhere: so it is tried, not assumed), else this one, cleaned afterwards. Needs root.
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
    fabric = f"sh {shlex.quote(str(FABRIC))}"
    inside = f"{fabric} {task.workers} && "
    own = ["unshare", "--net", "sh", "-c"]
    environment = os.environ | task.variables(PLACE)
    try:
        trial = subprocess.run(
            [*own, inside + shlex.join(TRIAL)],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            timeout=TRIAL_TIMEOUT_S,
            check=False,
        )
        isolated = trial.returncode == 0
    except subprocess.TimeoutExpired:
        isolated = False
    if not isolated:
        made = subprocess.run(["sh", "-c", f"{fabric} {task.workers}"], capture_output=True, text=True, check=False)
        if made.returncode:
            subprocess.run(["sh", "-c", f"{fabric} down {task.workers}"], check=False)
            raise BenchError(f"the fabric could not be made: {made.stderr.strip()}")
    boot_s = time.monotonic() - began
    command = [*own, inside + "exec " + shlex.join(task.command)] if isolated else task.command
    try:
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, timeout=task.timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise BenchError(f"the command did not end within {task.timeout_s:.0f} s") from None
    finally:
        if not isolated:
            subprocess.run(["sh", "-c", f"{fabric} down {task.workers}"], check=False)
    return Outcome(PLACE, done.returncode, boot_s, time.monotonic() - began)
