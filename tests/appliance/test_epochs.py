"""Epochs through the real process: what a fault of a path, a dead rank or a disagreement leads to, and what every live
rank has by then. A worker that does not read the wire acknowledges nothing, which is how a path fails here.
"""

from __future__ import annotations

import pytest

from tests.appliance.job import MAX_F32, SUM_I32, contribute, ended, has, ints
from tests.appliance.worker import Wire, Worker


def acknowledged(wire: Wire, worker: Worker) -> None:
    """Everything that the worker has written has arrived."""
    wire.pump(lambda: worker.pairs[0].acknowledged == (worker.pairs[0].psn - 1) & 0xFFFFFF)


def slot(worker: Worker, round_number: int, values: int = 2) -> bytes:
    pool = worker.pairs[0].offer
    begin = round_number % pool["window"] * pool["chunk_bytes"]
    return bytes(worker.pairs[0].result[begin : begin + 4 * values])


def resume(workers: list[Worker], *parts: str) -> None:
    """From a resumable end to a new epoch that is ready."""
    for worker in workers:
        worker.halted(*parts)
    for worker in workers:
        worker.resume()
    again(workers)


def again(workers: list[Worker]) -> None:
    for worker in workers:
        worker.connect()
    for worker in workers:
        worker.probe()
    for worker in workers:
        assert worker.expect("ready")["epoch"] == worker.offer["epoch"]


def test_a_result_that_nobody_acknowledges_is_delivered_in_a_new_epoch(
    pair: list[Worker], wire: Wire
) -> None:
    old = {p["qpn"]: p for worker in pair for p in worker.offer["pools"]}
    epoch = pair[0].offer["epoch"]
    contribute(pair, 0)
    resume(pair, "does not acknowledge the results of the data pool")
    for worker in pair:
        assert worker.offer["epoch"] > epoch
        assert worker.offer["complete"] == [1, 0]
        assert not old.keys() & {p["qpn"] for p in worker.offer["pools"]}
        assert not {p["rkey"] for p in old.values()} & {p["rkey"] for p in worker.offer["pools"]}
        has(wire, worker, 0xA)
        assert slot(worker, 0) == ints(3, 0)
    contribute(pair, 1, 0xB)
    for worker in pair:
        has(wire, worker, 0xA, 0xB)
        assert slot(worker, 1) == ints(3, 20)


def test_only_who_lacks_a_result_gets_it_again(pair: list[Worker], wire: Wire) -> None:
    for pair_of_1 in pair[1].pairs:
        pair_of_1.deaf = True
    contribute(pair, 0)
    has(wire, pair[0], 0xA)
    resume(pair)
    assert [worker.offer["complete"] for worker in pair] == [[1, 0]] * 2
    has(wire, pair[1], 0xA)
    assert slot(pair[1], 0) == ints(3, 0)
    assert pair[0].pairs[0].completions == []


def test_a_broken_worker_s_round_is_void_and_written_again(pair: list[Worker], wire: Wire) -> None:
    pair[0].write(pair[0].pairs[0], SUM_I32, 0, ints(1), 0xA)
    acknowledged(wire, pair[0])
    pair[1].control.send({"type": "broken", "message": "write 7 of pool 0: transport retry counter exceeded"})
    resume(pair, "a queue pair of rank 1 (host host-1) has failed: write 7 of pool 0")
    assert pair[0].offer["complete"] == [0, 0]
    for worker in reversed(pair):
        worker.write(worker.pairs[0], SUM_I32, 0, ints(10), 0xA)
    for worker in pair:
        has(wire, worker, 0xA)
        assert slot(worker, 0, 1) == ints(20)  # the void contribution of 1 is in no sum
    for worker in pair:
        worker.control.send({"type": "leave", "received": [1, 0]})
        worker.expect("left") if worker is pair[1] else None
    pair[0].expect("left")


def test_many_epochs_of_one_job(pair: list[Worker], wire: Wire) -> None:
    """Every slot is used again, and every third round meets an end: void or complete, as it happens."""
    for number in range(12):
        contribute(pair, number, number)
        if number % 3 == 2:
            pair[number % 2].control.send({"type": "broken", "message": "gone"})
            resume(pair)
            if pair[0].offer["complete"][0] == number:
                contribute(pair, number, number)
        for worker in pair:
            wire.pump(lambda worker=worker, n=number: worker.pairs[0].received == n + 1)
            assert slot(worker, number) == ints(3, 20 * number)


def test_a_resume_of_another_epoch_is_refused_with_both(pair: list[Worker]) -> None:
    pair[1].control.send({"type": "broken", "message": "gone"})
    epoch = pair[0].halted()["epoch"]
    pair[1].halted()
    pair[0].resume(epoch=epoch + 7)
    assert f"resumes epoch {epoch + 7}, it is epoch {epoch} that" in pair[0].expect("refused")["message"]
    pair[1].resume()
    ended(pair[1:], "connection_lost", "rank 0 (host host-0)")


@pytest.mark.parametrize("received", [[1, 0], [0], [2**32 - 5, 0]])
def test_a_resume_with_impossible_numbers_is_refused(pair: list[Worker], received: list[int]) -> None:
    pair[1].control.send({"type": "broken", "message": "gone"})
    pair[0].halted()
    pair[0].resume(received=received)
    assert (
        f"has the results of {received} rounds, [0, 0] are complete" in pair[0].expect("refused")["message"]
    )
    ended(pair[1:], "connection_lost", "rank 0 (host host-0)")


def test_who_dies_while_others_resume_keeps_no_result_from_them(three: list[Worker], wire: Wire) -> None:
    three[1].hush()
    three[2].hush()
    contribute(three, 0)
    has(wire, three[0], 0xA)
    for worker in three:
        worker.halted()
    three[0].resume()
    three[2].control.close()
    three[1].resume()
    three[1].connect()  # just to be delivered to
    three[1].probe(pools=1)
    has(wire, three[1], 0xA)
    assert slot(three[1], 0) == ints(6, 0)
    for worker in three[:2]:
        message = worker.expect("ended")
        assert (message["fault"], message["rank"], message["complete"]) == ("connection_lost", 2, [1, 0])


def test_who_dies_while_others_connect_again(three: list[Worker], wire: Wire) -> None:
    three[1].hush()
    contribute(three, 0)
    has(wire, three[0], 0xA)
    has(wire, three[2], 0xA)
    for worker in three:
        worker.halted()
    for worker in three:
        worker.resume()
    three[2].control.close()
    three[1].connect()
    three[1].probe(pools=1)
    has(wire, three[1], 0xA)
    assert slot(three[1], 0) == ints(6, 0)
    assert three[1].expect("ended")["fault"] == "connection_lost"


def test_a_disagreement_is_told_after_what_is_complete_is_delivered(pair: list[Worker], wire: Wire) -> None:
    pair[1].hush()
    contribute(pair, 0)
    has(wire, pair[0], 0xA)
    pair[0].write(pair[0].pairs[0], SUM_I32, 1, ints(1, 2, 3), 1)
    acknowledged(wire, pair[0])
    pair[1].write(pair[1].pairs[0], SUM_I32, 1, ints(1, 2), 1)
    for worker in pair:
        assert worker.halted()["fault"] == "length_mismatch"
    for worker in pair:
        worker.resume()
    pair[1].connect()
    pair[1].probe(pools=1)
    has(wire, pair[1], 0xA)
    for worker in pair:
        message = worker.expect("ended")
        assert (message["fault"], message["complete"]) == ("length_mismatch", [1, 0])


def test_who_is_leaving_takes_part_in_no_further_epoch(pair: list[Worker], wire: Wire) -> None:
    pair[1].hush()
    contribute(pair, 0)
    has(wire, pair[0], 0xA)
    pair[0].control.send({"type": "leave", "received": [1, 0]})
    pair[1].halted()
    pair[1].resume()
    again(pair[1:])
    has(wire, pair[1], 0xA)
    pair[1].control.send({"type": "leave", "received": [1, 0]})
    for worker in pair:
        worker.expect("left")


def test_a_leave_that_meets_a_halt(pair: list[Worker], wire: Wire) -> None:
    contribute(pair, 0)
    for worker in pair:
        has(wire, worker, 0xA)
    pair[1].control.send({"type": "broken", "message": "gone"})
    for worker in pair:
        worker.halted()
    pair[0].control.send({"type": "leave", "received": [1, 0]})
    pair[1].resume()
    again(pair[1:])
    pair[0].expect("left")
    pair[1].leave(1, 0)


def test_both_pools_go_on(pair: list[Worker], wire: Wire) -> None:
    for worker in pair:
        worker.write(worker.pairs[1], MAX_F32, 0, ints(5), 1)
    for worker in pair:
        wire.pump(lambda worker=worker: worker.pairs[1].completions == [1])
    pair[0].control.send({"type": "broken", "message": "gone"})
    resume(pair)
    assert pair[0].offer["complete"] == [0, 1]
    for worker in pair:
        worker.write(worker.pairs[1], MAX_F32, 1, ints(6), 2)
    for worker in pair:
        wire.pump(lambda worker=worker: worker.pairs[1].completions == [2])
