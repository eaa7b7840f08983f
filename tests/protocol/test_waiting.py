"""The two clocks: who has not begun a round is waited for and named; what has begun and stands still is a fault."""

from __future__ import annotations

from .rack import PROGRESS_NS, RETRANSMIT_NS, ints


def test_a_rank_that_has_not_begun_is_named_for_as_long_as_its_round_waits(make_rack):
    rack = make_rack(world=3)
    a, b, c = rack.workers()
    rack.poll(*b.write(0, ints(1)))
    rack.poll(after_ns=PROGRESS_NS - 1)
    assert rack.events() == []
    rack.poll(after_ns=RETRANSMIT_NS)
    assert [(e.kind, e.round, e.ranks) for e in rack.events()] == [("waiting", 0, 0b101)]
    for ranks, late in ((0b101, None), (0b101, a), (0b100, None)):
        rack.poll(after_ns=PROGRESS_NS - RETRANSMIT_NS)
        assert rack.events() == [], "no sooner"
        rack.poll(after_ns=RETRANSMIT_NS)
        assert [(e.kind, e.round, e.ranks) for e in rack.events()] == [("waiting", 0, ranks)], (
            "still waited for"
        )
        rack.run(late.write(0, ints(1)) if late else [])
    rack.run([*c.write(0, ints(1)), *c.write(1, ints(1))])
    rack.poll(after_ns=PROGRESS_NS)
    assert [(e.kind, e.round, e.ranks) for e in rack.events()] == [("waiting", 1, 0b011)]


def test_a_rank_is_not_waited_for_before_it_could_have_begun(rack):
    a, b = rack.workers()
    rack.run([*a.write(0, ints(1)), *a.write(1, ints(1))])
    rack.poll(after_ns=PROGRESS_NS - 1)
    rack.run(b.write(0, ints(1)))
    rack.poll(after_ns=PROGRESS_NS - 1)
    assert rack.events() == [], "round 1 waits since round 0 was complete"
    rack.poll(after_ns=RETRANSMIT_NS)
    assert [(e.kind, e.round, e.ranks) for e in rack.events()] == [("waiting", 1, 0b10)]


def test_waiting_is_told_again_when_a_slot_is_used_again(make_rack):
    rack = make_rack(window=1)
    a, b = rack.workers()
    for round in range(5):
        rack.run(a.write(round, ints(1)))
        rack.poll(after_ns=PROGRESS_NS)
        assert [(e.kind, e.round, e.ranks) for e in rack.events()] == [("waiting", round, 0b10)]
        rack.run(b.write(round, ints(1)))


def test_a_begun_message_that_does_not_advance_is_a_fault(rack):
    a, _ = rack.workers()
    rack.poll(a.write(0, ints(2))[0])
    rack.poll(after_ns=PROGRESS_NS - 1)
    assert rack.events() == []
    rack.poll(after_ns=RETRANSMIT_NS)
    fault = rack.fault()
    assert (fault.fault, fault.rank, fault.round) == ("stalled_message", 0, 0)
    assert (fault.expected, fault.got) == (2 * 256, 256)


def test_an_idle_job_has_no_clock(rack):
    rack.run([*rack.workers()[0].write(0, ints(1)), *rack.workers()[1].write(0, ints(1))])
    for _ in range(3):
        assert rack.poll(after_ns=10 * PROGRESS_NS) == []
    assert rack.events() == []
