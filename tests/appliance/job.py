"""What the tests of a job share: ranks that are ready, and how an epoch's end looks to them."""

from __future__ import annotations

import struct
from typing import Any

from tests.appliance.rack import Appliance, Rack, until
from tests.appliance.worker import Control, Wire, Worker

SUM_I32, MAX_F32 = 1, 3
"""Op windows, as the workers' join lists the ops."""


def at_rest(appliance: Appliance) -> dict[str, int]:
    """The usage once every job is gone and the lane idles: the same in looks that turns of the lane lie between."""
    until(lambda: not appliance.status()["jobs"])
    looks: list[tuple[int, dict[str, int]]] = []

    def settled() -> bool:
        status = appliance.status()
        polls = status["lanes"][0]["polls"]
        if not looks or polls > looks[-1][0] + 1:
            looks.append((polls, status["usage"]))
        return len(looks) > 2 and looks[-1][1] == looks[-2][1] == looks[-3][1]

    until(settled)
    return looks[-1][1]


def refused(control: Control, reason: str, *parts: str) -> None:
    """The refusal has the reason and all parts, and is the last message."""
    message = control.receive()
    assert message["type"] == "refused", message
    assert message["reason"] == reason
    for part in parts:
        assert part in message["message"]
    assert control.receive()["type"] == "closed"


def join(rack: Rack, wire: Wire, world_size: int, job: str = "pair", **fields: Any) -> list[Worker]:
    workers = [
        Worker(rack, wire, rank, world_size=world_size, job=job, **fields) for rank in range(world_size)
    ]
    for worker in workers:
        worker.connect()
    for worker in workers:
        worker.probe()
    for worker in workers:
        worker.expect("ready")
    return workers


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def contribute(workers: list[Worker], round_number: int, imm: int = 0xA) -> None:
    for rank, worker in enumerate(workers):
        worker.write(worker.pairs[0], SUM_I32, round_number, ints(1 + rank, 10 * round_number), imm)


def has(wire: Wire, worker: Worker, *immediates: int) -> None:
    wire.pump(lambda: worker.pairs[0].completions == list(immediates))


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
