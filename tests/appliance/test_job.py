"""A job's life through the real process: join, probe, rounds, faults, leave, over a packet socket."""

from __future__ import annotations

import struct

import pytest

from tests.appliance.job import MAX_F32, SUM_I32, at_rest, ended, ints, join
from tests.appliance.rack import Appliance, Rack
from tests.appliance.worker import Wire, Worker


def test_the_sum_comes_back_and_everything_is_given_back(
    rack: Rack, appliance: Appliance, wire: Wire
) -> None:
    before = at_rest(appliance)
    workers = join(rack, wire, 2, "sum")
    elems = 2500  # three packets of 4096 bytes
    for rank, worker in enumerate(workers):
        worker.write(worker.pairs[0], SUM_I32, 0, ints(*range(rank, elems + rank)), 0xABC)
    for worker in workers:
        wire.pump(lambda worker=worker: worker.pairs[0].completions == [0xABC])
        assert worker.pairs[0].result[: 4 * elems] == ints(*range(1, 2 * elems, 2))
    job = appliance.status()["jobs"][0]
    assert (job["state"], job["rounds_completed"], job["contribution_bytes"]) == ("ready", 1, 2 * 4 * elems)
    for worker in workers:
        worker.control.send({"type": "leave", "received": [1, 0]})
    for worker in workers:
        kinds = [worker.control.receive()["type"] for _ in range(2)]
        assert kinds in (["left", "closed"], ["event", "left"])
    assert at_rest(appliance) == before


def test_joining_and_leaving_many_times_leaks_nothing(rack: Rack, appliance: Appliance, wire: Wire) -> None:
    before = at_rest(appliance)
    seen = set()
    for number in range(20):
        (worker,) = join(rack, wire, 1, "again")
        seen |= {pair.offer["qpn"] for pair in worker.pairs}
        worker.write(worker.pairs[1], MAX_F32, 0, struct.pack("<f", -1.0 - number), number)
        wire.pump(lambda worker=worker, number=number: worker.pairs[1].completions == [number])
        assert worker.pairs[1].result[:4] == struct.pack("<f", 1.0 + number)
        worker.leave(0, 1)
    assert len(seen) == 40
    assert at_rest(appliance) == before


def test_a_rank_that_is_waited_for_is_named(pair: list[Worker]) -> None:
    pair[0].write(pair[0].pairs[0], SUM_I32, 0, ints(1), 1)
    message = pair[0].control.receive()
    assert (message["type"], message["kind"], message["ranks"]) == ("event", "waiting", [1])
    assert message["message"] == "round 0 of the data pool waits for rank 1 (host host-1)"
    assert pair[1].control.receive()["ranks"] == [1]


def test_lengths_that_differ_end_the_epoch_for_all(pair: list[Worker], wire: Wire) -> None:
    pair[0].write(pair[0].pairs[0], SUM_I32, 0, ints(1, 2, 3), 1)
    wire.pump(lambda: pair[0].pairs[0].acknowledged == (pair[0].pairs[0].psn - 1) & 0xFFFFFF)
    pair[1].write(pair[1].pairs[0], SUM_I32, 0, ints(1, 2), 1)
    ended(pair, "length_mismatch", "rank 1 (host host-1) contributed 8 bytes to round 0", "has 12")


def test_tensors_that_differ_end_the_epoch_for_all(pair: list[Worker], wire: Wire) -> None:
    pair[0].write(pair[0].pairs[0], SUM_I32, 0, ints(1), 0xA)
    wire.pump(lambda: pair[0].pairs[0].acknowledged == (pair[0].pairs[0].psn - 1) & 0xFFFFFF)
    pair[1].write(pair[1].pairs[0], SUM_I32, 0, ints(1), 0xB)
    ended(pair, "imm_mismatch", "rank 1 (host host-1)", "0x0000000b", "0x0000000a")


def test_a_rank_that_dies_ends_the_epoch_for_the_other(pair: list[Worker]) -> None:
    pair[1].control.close()
    ended(pair[:1], "connection_lost", "rank 1 (host host-1)")


def test_a_worker_that_no_host_answers_for(rack: Rack, wire: Wire) -> None:
    worker = Worker(rack, wire, job="silent", address="10.77.0.77")
    with pytest.raises(AssertionError) as message:
        worker.connect()
    assert "10.77.0.77 of rank 0 (host host-0) does not answer ARP" in str(message.value)
