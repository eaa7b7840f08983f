"""What the tests of a job share: ranks that are ready, and how an epoch's end looks to them."""

from __future__ import annotations

import struct
import time

from tests.appliance.rack import Appliance, Rack, until
from tests.appliance.worker import Wire, Worker

SUM_I32, MAX_F32 = 1, 3
"""Op windows, as the workers' join lists the ops."""


def at_rest(appliance: Appliance) -> dict[str, int]:
    """The usage once every job is gone and the gauge of mbufs is that of an idle lane."""
    until(lambda: not appliance.status()["jobs"])
    time.sleep(0.1)
    usage: dict[str, int] = appliance.status()["usage"]
    return usage


def join(rack: Rack, wire: Wire, world_size: int, job: str = "pair") -> list[Worker]:
    workers = [Worker(rack, wire, rank, world_size=world_size, job=job) for rank in range(world_size)]
    for worker in workers:
        worker.connect()
    for worker in workers:
        worker.probe()
    for worker in workers:
        worker.expect("ready")
    return workers


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def ended(workers: list[Worker], fault: str, *parts: str) -> None:
    """The job has ended for these workers by this fault, in a sentence with all parts. Halted before, they resume."""
    messages = [worker.expect("ended") for worker in workers]
    for worker, message in zip(workers, messages, strict=True):
        if message["resumable"]:
            worker.hush()
            worker.resume()
    for worker, message in zip(workers, messages, strict=True):
        last = worker.expect("ended") if message["resumable"] else message
        assert (last["fault"], last["resumable"]) == (fault, False), last
        for part in parts:
            assert part in last["message"]
        assert worker.control.receive()["type"] == "closed"
