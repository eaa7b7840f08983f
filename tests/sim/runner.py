"""Runs seeds in `psc_sim` processes and yields what each run was. A run that kills its process is a crash, and one that
its alarm kills is a hang; the next process goes on behind it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
Record = dict[str, Any]
RUNS_PER_CALL = 500


def binary() -> Path:
    """PSC_SIM, or where meson builds it."""
    path = Path(os.environ.get("PSC_SIM", ROOT / "build/dpdk_c/sim/psc_sim"))
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built: run `make build`, or set PSC_SIM")
    return path


def names(kind: str) -> list[str]:
    """Of `rule` or `trouble`, by number."""
    lines = subprocess.run(
        [binary(), "--names"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return [line.split(" ", 2)[2] for line in lines if line.startswith(kind + " ")]


def run(first: int, count: int, program: Path | None = None) -> list[Record]:
    """Runs seeds first .. first+count-1, whatever becomes of each."""
    records: list[Record] = []
    while len(records) < count:
        seed = first + len(records)
        command = [str(program or binary()), "--from", str(seed), "--count", str(count - len(records))]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        lines = [line for line in done.stdout.split("\n")[:-1] if line.startswith("{")]
        records += [json.loads(line) for line in lines]
        if len(records) < count:
            if done.returncode == 2:
                raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
            records.append(died(first + len(records), done.returncode, done.stderr))
    return records


def died(seed: int, status: int, stderr: str) -> Record:
    """The record of a run that did not live to write its own."""
    end = "hang" if status == -signal.SIGALRM else "crash"
    return {"seed": seed, "died": end, "text": f"exit status {status}: {stderr.strip()[-2000:]}"}


def run_all(first: int, count: int, jobs: int) -> Iterator[list[Record]]:
    """The same, in parts and with `jobs` processes; parts come in order."""
    starts = range(first, first + count, RUNS_PER_CALL)
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda start: run(start, min(RUNS_PER_CALL, first + count - start)), starts)
