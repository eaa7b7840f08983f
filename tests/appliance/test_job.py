"""A job's life through the real process: join, probe, rounds, leave, over a packet socket instead of an RDMA device."""

from __future__ import annotations

import struct

from tests.appliance.rack import Appliance, Rack, until
from tests.appliance.worker import Wire, Worker

SUM_I32 = 1
"""Op window of sum_i32: the first op of the join."""


def at_rest(appliance: Appliance) -> dict[str, int]:
    """The usage once every job is gone."""
    until(lambda: not appliance.status()["jobs"])
    usage: dict[str, int] = appliance.status()["usage"]
    return usage


def test_two_ranks_get_their_sum_and_everything_is_given_back(
    rack: Rack, appliance: Appliance, wire: Wire
) -> None:
    before = at_rest(appliance)
    workers = [Worker(rack, wire, rank, world_size=2, job="sum") for rank in range(2)]
    for worker in workers:
        worker.connect()
    for worker in workers:
        worker.probe()
    for worker in workers:
        worker.expect("ready")
    elems = 2500  # three packets of 4096 bytes
    for rank, worker in enumerate(workers):
        worker.write(
            worker.pairs[0], SUM_I32, 0, struct.pack(f"<{elems}i", *range(rank, elems + rank)), 0xABC
        )
    for worker in workers:
        wire.pump(lambda worker=worker: worker.pairs[0].completions == [0xABC])
        sums = struct.unpack(f"<{elems}i", worker.pairs[0].result[: 4 * elems])
        assert sums == tuple(2 * i + 1 for i in range(elems))
    job = appliance.status()["jobs"][0]
    assert (job["state"], job["rounds_completed"], job["contribution_bytes"]) == ("ready", 1, 2 * 4 * elems)
    for worker in workers:
        worker.control.send({"type": "leave", "received": [1, 0]})
    for worker in workers:
        kinds = [worker.control.receive()["type"] for _ in range(2)]
        assert kinds in (["left", "closed"], ["event", "left"])
    assert at_rest(appliance) == before
