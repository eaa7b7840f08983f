"""FREEZE: another lane's part of the job has halted. From every state this part halts, too, and goes on as after a
fault of its own.
"""

from __future__ import annotations

import pytest

from .epochs import contribute, end, halt, kinds, reconnect
from .rack import RETRANSMIT_NS, Rack, ints, results


def freeze(rack: Rack) -> bool:
    return rack.apply("FREEZE", rack.jobs[0])


def test_a_running_part_halts_without_a_fault_of_its_own_and_is_resumed(rack):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1))
    rack.poll(*a.write(1, ints(1)))
    assert freeze(rack)
    (event,) = rack.events()
    assert (event.kind, event.fault, event.complete) == ("fault", "none", (1,))
    assert rack.jobs[0].stats.faults == 1, "an epoch that ends counts on every lane"
    assert rack.poll(*b.write(1, ints(1)), after_ns=2 * RETRANSMIT_NS) == []
    reconnect(rack)
    contribute(rack, 1, ints(1), ints(1))
    assert rack.jobs[0].stats.rounds_completed == 2


def test_a_part_that_has_halted_by_itself_says_nothing_more(rack):
    assert halt(rack) and freeze(rack) and freeze(rack)
    assert kinds(rack) == [("fault", 0)]
    assert rack.jobs[0].stats.faults == 1


@pytest.mark.parametrize("lacking", [False, True], ids=["ended", "ending"])
def test_a_part_that_ends_is_taken_back_and_delivers_after_the_resume(make_rack, lacking):
    """Its workers flush all their QPs, also those of this lane, so whoever lacks a result gets it by a new one."""
    rack = make_rack(world=3)
    a, _, c = rack.workers()
    contribute(rack, 0, ints(1), ints(1), ints(1), skip=(a,) if lacking else ())
    assert end(rack, 1)
    assert kinds(rack) == ([] if lacking else [("ended", 0)])
    assert freeze(rack)
    (event,) = rack.events()
    assert (event.kind, event.fault, event.complete) == ("fault", "none", (1,))
    assert rack.jobs[0].stats.faults == 1, "END has counted it"
    rack.resume()
    assert (a.received, c.received) == (0 if lacking else 1, 1)
    assert rack.connect(a) and rack.connect(c) and end(rack, 1)
    rack.run([a.probe(), c.probe()])
    assert ("ended", 0) in kinds(rack)


def test_a_detached_part_is_not_frozen(rack):
    rack.detach(rack.jobs[0])
    assert not freeze(rack)


def test_nothing_is_sent_between_freeze_and_resume(rack):
    a, _ = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a,))
    assert freeze(rack)
    assert results(rack.poll(after_ns=3 * RETRANSMIT_NS)) == []
