"""Where benches leave their figures: build/bench/<name>.json, all of one run, and build/bench/summary.json, one flat
object that every bench adds its keys to, each beside the commit that it was reached with.
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

from tests.summary import _figures

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("PSC_BENCH_FOLDER", ROOT / "build/bench"))


def machine() -> str:
    """The CPU as it calls itself."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return (
                f"{line.partition(': ')[2]}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"
            )
    return platform.processor()


def commit() -> str:
    """HEAD, and whether files differ from it."""
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout.strip()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, and what half of the repetitions lie between; a single value is all three."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {"median": round(middle, 4), "quartile_1": round(low, 4), "quartile_3": round(high, 4)}


def compiler() -> str:
    """That built the data plane, as meson has found it."""
    file = ROOT / "build/dpdk_c/meson-info/intro-compilers.json"
    known = json.loads(file.read_text())["host"]["c"] if file.exists() else {}
    return f"{known.get('id', 'unknown')} {known.get('version', '')}".strip()


def record(name: str, result: dict[str, Any]) -> Path:
    """The whole result, with what it was measured on: no NIC."""
    path = FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "machine": machine(),
        "compiler": compiler(),
        "commit": commit(),
        "load_average": os.getloadavg()[0],
        "not_measured_on_a_nic": True,
    }
    path.write_text(json.dumps(about | result, indent=2) + "\n")
    return path


def summarize(**keys: float) -> None:
    """Adds keys to the summary."""
    now = commit()
    with _figures(FOLDER / "summary.json") as known:
        for key, value in keys.items():
            known[key] = value
            known[f"{key}_commit"] = now
