"""The figures of the fault suites: build/faults/summary.json, one flat object.

Every target fills its own keys and leaves the others' alone; targets may run at the same time.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUMMARY = ROOT / "build" / "faults" / "summary.json"


def merge(**figures: int | str) -> None:
    """Set these keys, and the commit that they were reached with."""
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    with SUMMARY.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        merged = (json.loads(text) if text else {}) | figures | {"commit": commit.stdout.strip()}
        file.truncate(0)
        file.write(json.dumps(merged, indent=2) + "\n")
