"""The workers: processes that load PyTorch and the data once and train run after run, together, until there is no time
for another.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing

from . import tasks
from .runs import NONE_KEPT, Kept, Records, Run, Setting
from .train import CAPTURED_AT, train


@dataclass(frozen=True)
class Work:
    """For all workers."""

    runs: tuple[Run, ...]
    out: Path
    setting: Setting
    fashion_mnist: Path
    until: float
    """Seconds of time.monotonic(), which all processes of a machine share."""
    kept: Kept = NONE_KEPT


class Leader:
    """Rank 0 decides and writes."""

    def __init__(self, work: Work, loaded: dict[str, tasks.Task]) -> None:
        self.work, self.loaded = work, loaded
        self.records = Records(work.out, work.setting, work.kept)
        self.longest = dict.fromkeys(loaded, 0.0)
        self.left = [
            r for r in work.runs if not self.records.done(r, loaded[r.model].digest, tuple(CAPTURED_AT))
        ]
        print(f"{len(work.runs) - len(self.left)} of {len(work.runs)} runs are done", flush=True)

    def next(self) -> Run | None:
        """The next run, if one as long as the longest of its model would still end in time."""
        if not self.left or time.monotonic() + self.longest[self.left[0].model] > self.work.until:
            return None
        return self.left.pop(0)

    def write(self, run: Run, record: dict[str, Any], captured: dict[str, dict[str, Any]]) -> None:
        """Gradients first: a record says that they are there."""
        for point, arrays in captured.items():
            np.savez_compressed(self.records.gradients(run.model, point), **arrays)
        self.records.write(run, {"data": self.loaded[run.model].digest, **record})
        self.longest[run.model] = max(self.longest[run.model], record["seconds"])
        final = list(record["losses"].values())[-1]
        print(
            f"{run.model} {run.codec}, seed {run.seed}: validation loss {final}, {record['seconds']} s; "
            f"{len(self.left)} runs left",
            flush=True,
        )


def _main(rank: int, work: Work, store: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ranks = work.setting.workers
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    loaded = {name: tasks.load(name, work.fashion_mnist) for name in {run.model: 0 for run in work.runs}}
    leader = Leader(work, loaded) if rank == 0 else None
    while True:
        told: list[Run | None] = [leader.next() if leader else None]
        dist.broadcast_object_list(told, 0)
        run = told[0]
        if run is None:
            break
        task = loaded[run.model]
        record, captured = train(task, run.codec, run.seed, work.setting.steps or task.steps, run.captures)
        if leader:
            leader.write(run, record, captured)
    dist.destroy_process_group()


def work_on(work: Work) -> None:
    """Until all runs are done or the time is over. A worker's exception ends them all and is raised here."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.learning.train"])
    with tempfile.TemporaryDirectory() as folder:
        arguments = (work, f"{folder}/store")
        multiprocessing.start_processes(_main, arguments, work.setting.workers, start_method="forkserver")
