"""Ends of a job that need an appliance of their own: it is stopped, or its patience is short."""

from __future__ import annotations

from tests.appliance.conftest import Start
from tests.appliance.job import SUM_I32, ended, ints, join
from tests.appliance.rack import Rack
from tests.appliance.worker import Wire


def test_a_straggler_is_waited_for_only_so_long(start: Start, rack: Rack) -> None:
    appliance = start(limits={"straggler_timeout_s": 1.0, "waiting_event_s": 0.2})
    appliance.ready()
    wire = Wire(rack)
    workers = join(rack, wire, 2)
    workers[0].write(workers[0].pairs[0], SUM_I32, 0, ints(1), 1)
    for worker in workers:
        ended(worker, "straggler", "waits for rank 1 (host host-1) for more than 1 s")
    assert appliance.stop() == 0


def test_a_stop_is_told_to_everyone(start: Start, rack: Rack) -> None:
    appliance = start()
    appliance.ready()
    workers = join(rack, Wire(rack), 2)
    assert appliance.stop() == 0
    for worker in workers:
        ended(worker, "stopping", "the appliance is being stopped")
