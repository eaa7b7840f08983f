"""The soft-RoCE bench: a place with RDMA devices, a switch and a port for the appliance, natively or in a small VM.

`python -m tests.softroce.bench run -- CMD` runs CMD in it. Nothing here knows what CMD does; CMD never needs to know
which place it runs in, but may read it from PASCALINE_BENCH ("rxe-native" or "rxe-vm").
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
FABRIC = Path(__file__).with_name("fabric.sh")
PLACE_VARIABLE = "PASCALINE_BENCH"


class BenchError(Exception):
    """The place could not be made; the sentence says why."""


@dataclass(frozen=True)
class Task:
    """A command and what it needs around it."""

    command: list[str]
    share: Path | None = None
    """Folder that the command may write to and that is there afterwards; everything else in the VM is forgotten."""
    workers: int = 4
    memory_mb: int = 512
    timeout_s: float = 900.0
    interactive: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def variables(self, place: str) -> dict[str, str]:
        """Environment of the command beyond the place's own; the emulated CPU has no use for threads."""
        single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "TERM") if name in os.environ}
        here = {
            PLACE_VARIABLE: place,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "LANG": "C.UTF-8",
        }
        return kept | single | here | self.environment


@dataclass(frozen=True)
class Outcome:
    """How a task ended. Without an exit status of the command there is a BenchError instead."""

    place: str
    status: int
    boot_s: float
    total_s: float

    def __str__(self) -> str:
        return f"bench: {self.place}, ready after {self.boot_s:.1f} s, {self.total_s:.1f} s in all, exit {self.status}"


def run(task: Task) -> Outcome:
    """Run the task natively where rdma_rxe works, else in the VM."""
    from . import native, vm

    return native.run(task) if native.works() else vm.run(task)
