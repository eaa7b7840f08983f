"""What the benchmarks' reports share: the machine, the spread of a figure, and build/bench/summary.json.

The summary is flat: every key a figure, and `commits` says of which commit each is. Runs may take turns.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.summary import ROOT, commit, figures_in

FOLDER = ROOT / "build/bench"


def machine() -> str:
    """The CPU as it calls itself."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(": ")[2]
            return f"{cpu}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"
    return platform.processor()


def compiler() -> str:
    """That built the data plane, as it calls itself."""
    commands = ROOT / "build/dpdk_c/compile_commands.json"
    if not commands.exists():
        return "unknown"
    program = json.loads(commands.read_text())[0]["command"].split()[0]
    run = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()[0]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, and what half of the repetitions lie between; a single value is all three."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {"median": round(middle, 4), "quartile_1": round(low, 4), "quartile_3": round(high, 4)}


def write(name: str, report: dict[str, Any]) -> Path:
    """build/bench/NAME.json, whole or not at all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report, indent=2) + "\n")
    part.rename(path)
    return path


def record(name: str, result: dict[str, Any]) -> Path:
    """`write`, with what it was measured on: no NIC."""
    about = {
        "machine": machine(),
        "compiler": compiler(),
        "commit": commit(),
        "load_average": os.getloadavg()[0],
        "not_measured_on_a_nic": True,
    }
    return write(name, about | result)


def summarize(figures: dict[str, float], at: str | None = None) -> None:
    """Sets these keys of the summary, and the commit that they are of (this tree's)."""
    now = commit() if at is None else at
    with figures_in(FOLDER / "summary.json") as known:
        commits = known.pop("commits", {})
        known |= figures
        known["commits"] = commits | dict.fromkeys(figures, now)
