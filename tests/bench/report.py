"""What the benchmarks' reports share: the machine, the spread of a figure, and build/bench/summary.json.

The summary is flat: every key a figure, and `commits` says of which commit each is. Runs may take turns.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

from tests.summary import ROOT, commit

FOLDER = ROOT / "build/bench"


def machine() -> str:
    """The CPU as it calls itself."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(": ")[2]
            return f"{cpu}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"
    return platform.processor()


def spread(values: list[float]) -> dict[str, float]:
    """Median, and what half of the repetitions lie between."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": round(middle, 4), "quartile_1": round(low, 4), "quartile_3": round(high, 4)}


def write(name: str, report: dict[str, Any]) -> Path:
    """build/bench/NAME.json, whole or not at all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report, indent=2) + "\n")
    part.rename(path)
    return path


def summarize(figures: dict[str, float], at: str | None = None) -> None:
    """Sets these keys of the summary, and the commit that they are of (this tree's)."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "summary.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        known: dict[str, Any] = json.loads(text) if text else {}
        commits = known.pop("commits", {})
        now = commit() if at is None else at
        known |= figures
        known["commits"] = commits | dict.fromkeys(figures, now)
        file.truncate(0)
        file.write(json.dumps(known, indent=2) + "\n")
