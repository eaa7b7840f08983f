"""Ends of a job that need an appliance of their own: it is stopped, or its patience is short."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from websockets.exceptions import ConnectionClosed

from tests.appliance.conftest import Start
from tests.appliance.job import SUM_I32, ended, ints, join, refused
from tests.appliance.rack import Rack, until
from tests.appliance.worker import Control, Wire


def test_a_straggler_is_waited_for_only_so_long(start: Start, rack: Rack) -> None:
    appliance = start(limits={"straggler_timeout_s": 1.0, "waiting_event_s": 0.2})
    appliance.ready()
    wire = Wire(rack)
    workers = join(rack, wire, 2)
    workers[0].write(workers[0].pairs[0], SUM_I32, 0, ints(1), 1)
    ended(workers, "straggler", "waits for rank 1 (host host-1) for more than 1 s")
    assert appliance.stop() == 0


def test_a_straggler_is_not_forgiven_for_another_pool_s_rounds(start: Start, rack: Rack) -> None:
    appliance = start(limits={"straggler_timeout_s": 6.0, "waiting_event_s": 0.3})
    appliance.ready()
    wire = Wire(rack)
    workers = join(rack, wire, 2)
    began = time.monotonic()
    workers[0].write(workers[0].pairs[0], SUM_I32, 0, ints(1), 1)
    message = workers[1].control.receive()
    assert (message["kind"], message["ranks"]) == ("waiting", [1])
    for worker in workers:
        worker.write(worker.pairs[1], SUM_I32, 0, ints(1), 7)
    wire.pump(lambda: all(worker.pairs[1].completions == [7] for worker in workers))
    told = 1
    while (message := workers[1].control.receive())["type"] == "event":
        told += 1
    seconds = time.monotonic() - began
    assert message["fault"] == "straggler", message
    assert 5.5 < seconds < 30
    assert 3 <= told <= 1 + seconds / 0.27
    assert appliance.stop() == 0


def test_a_rank_that_never_comes_is_named(start: Start, rack: Rack) -> None:
    appliance = start(limits={"join_timeout_s": 5.0})
    appliance.ready()
    for control in [Control(rack, rank, world_size=4) for rank in (0, 2)]:
        refused(control, "timeout", "ranks 1, 3 of job test did not join within 5 s")
    assert appliance.stop() == 0


def test_a_rank_that_does_not_connect_is_named(start: Start, rack: Rack) -> None:
    appliance = start(limits={"join_timeout_s": 1.5})
    appliance.ready()
    control = Control(rack)
    assert control.receive()["type"] == "offer"
    refused(control, "timeout", "rank 0 (host host-0) of job test did not connect and probe within 1.5 s")
    assert appliance.stop() == 0


def test_a_second_leave_is_as_good_as_one(start: Start, rack: Rack) -> None:
    appliance = start()
    appliance.ready()
    workers = join(rack, Wire(rack), 2)
    with contextlib.suppress(ConnectionClosed):
        for _ in range(300):  # until long after the first is answered
            workers[0].control.send({"type": "leave", "received": [0, 0]})
    workers[1].leave(0, 0)
    until(lambda: not appliance.status()["jobs"])
    assert appliance.stop() == 0
    assert "Traceback" not in appliance.stderr
    assert "refuses" not in appliance.stderr


def test_a_signal_during_the_start_is_a_clean_stop(start: Start, tmp_path: Path) -> None:
    appliance = start()
    until(lambda: (tmp_path / "status.sock").exists())  # EAL starts behind it
    assert appliance.stop() == 0
    assert not (tmp_path / "status.sock").exists()


def test_a_stop_is_told_to_everyone(start: Start, rack: Rack) -> None:
    appliance = start()
    appliance.ready()
    workers = join(rack, Wire(rack), 2)
    assert appliance.stop() == 0
    ended(workers, "stopping", "the appliance is being stopped")


def test_a_result_on_its_way_arrives_before_the_verdict(start: Start, rack: Rack) -> None:
    appliance = start()
    appliance.ready()
    wire = Wire(rack)
    workers = join(rack, wire, 2)
    workers[1].hush()
    for worker in workers:
        worker.write(worker.pairs[0], SUM_I32, 0, ints(1), 0xA)
    time.sleep(0.2)
    workers[1].control.close()
    time.sleep(0.2)
    wire.pump(lambda: workers[0].pairs[0].completions == [0xA])  # only now is it acknowledged
    message = workers[0].expect("ended")
    assert (message["fault"], message["complete"]) == ("connection_lost", [1, 0])
    assert appliance.stop() == 0


def test_a_verdict_waits_no_longer_than_the_deadline(start: Start, rack: Rack) -> None:
    appliance = start(limits={"retransmit_exponent": 20, "progress_s": 20.0, "deadline_s": 22.0})
    appliance.ready()
    workers = join(rack, Wire(rack), 2)
    for worker in workers:
        worker.write(worker.pairs[0], SUM_I32, 0, ints(1), 0xA)
    time.sleep(0.2)
    began = time.monotonic()
    workers[1].control.close()
    ended(workers[:1], "connection_lost", "rank 1 (host host-1)")
    assert 1 < time.monotonic() - began < 15  # 1 s is left to deliver; without a limit it is progress_s
    assert appliance.stop() == 0
