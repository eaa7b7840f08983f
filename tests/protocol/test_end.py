"""The end of a job that cannot go on: whoever can be reached gets what is complete. Ranks that leave, and DETACH, at
any point of a resume or an end.
"""

from __future__ import annotations

import numpy as np
import pytest

from .epochs import contribute, end, halt, kinds, leave
from .rack import PROGRESS_NS, RETRANSMIT_NS, acks, ints, results
from .worker import PROBE_IMM

# ---- End. ----


def test_what_is_complete_is_delivered_to_the_living_and_nothing_to_the_dead(make_rack):
    rack = make_rack(world=3)
    a, b, c = rack.workers()
    x = ints(2)
    contribute(rack, 0, x, x, x, skip=(a, b, c))
    assert end(rack, 1) and rack.events() == []
    out = results(rack.poll(after_ns=2 * RETRANSMIT_NS))
    assert {p.dst for p in out} == {a.ip, c.ip}
    rack.poll(*(reply for p in out if rack.owner(p) is a for reply in a.receive(p)))
    assert rack.events() == [], "c has not acknowledged"
    rack.poll(*(reply for p in out if rack.owner(p) is c for reply in c.receive(p)))
    (ended,) = rack.events()
    assert (ended.kind, ended.complete) == ("ended", (1,)) and rack.jobs[0].stats.faults == 1
    assert rack.poll(after_ns=10 * PROGRESS_NS) == [] and rack.events() == []


def test_end_with_nothing_to_deliver_is_answered_at_once(rack):
    a, b = rack.workers()
    rack.run([*a.write(0, ints(1)), *b.write(0, ints(1)), *a.write(1, ints(1))])
    assert end(rack, 1) and end(rack, 0), "a second one is heard"
    assert [(e.kind, e.complete) for e in rack.events()] == [("ended", (1,))]


def test_nothing_is_executed_while_a_job_is_ending(rack):
    a, b = rack.workers()
    x = ints(1)
    (old, new), lost = [*a.write(0, x), *a.write(1, x)], b.write(0, x)
    rack.poll(old, *lost)
    assert end(rack)
    assert rack.poll(new, new.but(psn=new.psn + 1)) == [], "no NAK that would spend the QP's retries"
    assert acks(rack.poll(old)) == [(old.psn, 0x1F, 1)], "what was executed is acknowledged again"
    assert rack.poll(*b.write(1, x)) == []
    rack.poll(after_ns=PROGRESS_NS + RETRANSMIT_NS)
    assert [e.kind for e in rack.events()] == ["ended"], "neither a fault nor waiting is told any more"
    assert rack.jobs[0].stats.rounds_completed == 1


def test_an_ending_job_has_the_clock_of_its_results_only(make_rack):
    rack = make_rack(window=4)
    a, _ = rack.workers()
    for round in range(2):
        contribute(rack, round, ints(1), ints(1), skip=(a,))
    rack.poll(a.write(2, ints(2))[0])
    assert end(rack, 1)
    rack.poll(after_ns=3 * PROGRESS_NS // 4)
    rack.poll(a.ack(a.expected_psn))
    rack.poll(after_ns=PROGRESS_NS // 2)
    assert rack.events() == [], (
        "a message that stands still and a rank that has not begun mean nothing any more"
    )
    rack.poll(a.ack(a.expected_psn + 1))
    assert [e.kind for e in rack.events()] == ["ended"]


def test_a_half_published_result_is_never_finished(rack):
    a, b = rack.workers()
    x = ints(3)
    contribute(rack, 0, x, x, skip=(a,))
    rest = b.write(1, x)
    out = rack.poll(*a.write(1, x), *rest[:2])
    assert end(rack) and rack.poll(rest[2]) == []
    rack.run(reply for p in results(out, a) for reply in a.receive(p))
    for _ in range(3):
        rack.run(reply for p in rack.poll(after_ns=2 * RETRANSMIT_NS) for reply in rack.owner(p).receive(p))
    assert [(e.kind, e.complete) for e in rack.events()] == [("ended", (1,))]
    assert (a.received, b.received) == (1, 1)


def test_an_end_that_crosses_a_fault_is_answered_by_it_and_takes_no_result_from_anybody(rack):
    _, b = rack.workers()
    x = ints(1)
    contribute(rack, 0, x, x, skip=tuple(rack.workers()))
    halt(rack)
    assert end(rack, 0) and [e.kind for e in rack.events()] == ["fault"], "b lacks a complete result"
    rack.resume()
    assert end(rack, 0) and rack.connect(b)
    assert "ended" not in {event.kind for event in rack.events()}
    rack.run([b.probe()])
    np.testing.assert_array_equal(b.result(0, x), 2 * x)
    assert kinds(rack)[-1][0] == "ended"


def test_a_job_that_is_being_resumed_may_end_once_its_living_ranks_have_what_is_complete(make_rack):
    rack = make_rack(world=3)
    a, b, c = rack.workers()
    x = ints(2)
    contribute(rack, 0, x, x, x, skip=(a, b, c))
    halt(rack)
    rack.resume()
    assert rack.connect(a)
    assert end(rack, 1)
    assert not rack.connect(b), "it is dead"
    rack.run([a.probe()])
    np.testing.assert_array_equal(a.result(0, x), 3 * x)
    assert "ended" not in {event.kind for event in rack.events()}, "c may still come"
    assert rack.connect(c) and rack.poll(*c.write(1, x)) == []
    c.psn -= 2
    rack.run([c.probe()])
    np.testing.assert_array_equal(c.result(0, x), 3 * x)
    assert kinds(rack)[-1][0] == "ended"


def test_a_rank_that_never_comes_back_is_named_by_another_end(rack):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a, b))
    halt(rack)
    rack.resume()
    assert end(rack, 0) and rack.connect(b, received=0)
    rack.poll(after_ns=10 * PROGRESS_NS)
    assert "ended" not in {event.kind for event in rack.events()}
    assert end(rack, 1) and kinds(rack) == [("ended", 0)]


def test_a_connect_may_show_that_nothing_is_owed_any_more(rack):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a, b))
    halt(rack)
    rack.resume()
    assert end(rack, 0)
    assert rack.connect(b, received=1), "it had landed, only the acknowledgement was lost"
    assert kinds(rack)[-1][0] == "ended"


def test_a_connect_that_crosses_a_fault_or_the_end_is_answered_by_it(rack):
    a, b = rack.workers()
    halt(rack)
    rack.resume()
    halt(rack)
    assert rack.connect(a) and rack.stats.qps == 0
    rack.resume()
    assert end(rack, 0, 1) and rack.connect(b) and rack.stats.qps == 0
    assert [event.kind for event in rack.events()] == ["fault", "fault", "ended"]


def test_a_rank_that_leaves_instead_of_coming_back_is_owed_nothing(rack):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a, b))
    halt(rack)
    rack.resume()
    assert end(rack, 0) and leave(rack, 1, 0)
    assert kinds(rack)[-1][0] == "ended"


@pytest.mark.parametrize("how", ["silence", "nak", "halt", "refusal", "leave"])
def test_a_rank_that_is_cut_off_does_not_hold_up_the_end(rack, how):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a, b))
    rack.poll(after_ns=2 * RETRANSMIT_NS)
    assert end(rack, 1) and rack.events() == []
    if how == "silence":
        for _ in range(8):
            rack.poll(after_ns=2 * RETRANSMIT_NS)
    if how == "nak":
        rack.poll(a.ack(a.expected_psn, 0x62))
    if how == "halt":
        assert halt(rack, rank=0)
    if how == "refusal":
        assert acks(rack.poll(a.write(0, bytes(256), op=0, imm=PROBE_IMM)[0].but(rkey=1)))
    if how == "leave":
        assert leave(rack, 0, 0)
    assert [e.kind for e in rack.events()] == ["ended"], "no fault after end"
    assert halt(rack) and rack.events() == []


def test_a_rank_whose_mac_is_not_found_does_not_hold_up_the_end(rack):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a, b))
    halt(rack)
    rack.resume()
    rack.events()
    assert end(rack, 1)
    rack.now_ns += 61_000_000_000
    assert rack.connect(a)
    for _ in range(12):
        rack.poll(after_ns=100_000_000)
    assert [e.kind for e in rack.events()] == ["ended"]


def test_one_pool_cut_off_does_not_keep_the_other_from_its_results(make_rack):
    rack = make_rack(pools=2)
    x = ints(1)
    out = rack.poll(*(p for pool in (0, 1) for w in rack.workers(pool=pool) for p in w.write(0, x)))
    assert end(rack, 1)
    a, small_a = rack.workers()[0], rack.workers(pool=1)[0]
    rack.poll(a.ack(a.expected_psn, 0x61))
    assert rack.events() == []
    rack.poll(*(reply for p in results(out, small_a) for reply in small_a.receive(p)))
    assert [e.kind for e in rack.events()] == ["ended"]


def test_a_job_that_has_ended_takes_up_nothing(rack):
    a, b = rack.workers()
    assert end(rack, 0) and [e.kind for e in rack.events()] == ["ended"]
    assert rack.poll(*a.write(0, ints(1)), *b.write(0, ints(1)), after_ns=PROGRESS_NS) == []
    assert not rack.apply("RESUME", rack.jobs[0]) and halt(rack) and leave(rack, 1, 0)
    assert rack.events() == [] and rack.drops() == {"qp_state": 2}
    rack.detach(rack.jobs[0])
    assert not halt(rack) and not end(rack)


# ---- Leave and detach beside it. ----


def test_a_rank_that_has_left_is_not_connected_again_and_counts_as_having_everything(rack):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a, b))
    assert leave(rack, 0, 0)
    halt(rack)
    rack.resume()
    assert rack.events()[-1].kind == "fault", "b lacks its result"
    assert not rack.connect(a, received=1) and rack.connect(b)
    rack.run([b.probe()])
    assert b.received == 1 and ("left", 0) in kinds(rack)


def test_left_comes_with_the_resume_when_the_leaver_alone_lacked_something(rack):
    a, _ = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a,))
    assert leave(rack, 0, 0) and rack.events() == []
    halt(rack, rank=1)
    rack.resume()
    assert kinds(rack) == [("fault", 1), ("left", 0)]


@pytest.mark.parametrize("when", ["halted", "resumed", "connected"])
def test_a_rank_may_leave_at_any_point_of_a_resume(rack, when):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a, b))
    halt(rack)
    if when == "halted":
        assert leave(rack, 0, 0)
    rack.resume()
    if when == "resumed":
        assert leave(rack, 0, 0)
    if when == "connected":
        assert rack.connect(a) and leave(rack, 0, 0)
    assert rack.connect(b)
    assert "left" not in {event.kind for event in rack.events()}
    rack.run([b.probe()])
    assert ("left", 0) in kinds(rack)
    assert leave(rack, 1, 1) and kinds(rack) == [("left", 1)]


def test_a_rank_that_leaves_after_its_probe_is_still_delivered_to(rack):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a, b))
    halt(rack)
    rack.resume()
    assert rack.connect(a) and rack.connect(b)
    rack.run([b.probe()])
    out = results(rack.poll(a.probe()), a)
    assert leave(rack, 0, 0) and ("left", 0) not in kinds(rack)
    rack.run(reply for p in out for reply in a.receive(p))
    assert ("left", 0) in kinds(rack)


def test_left_comes_with_a_connect_when_it_shows_that_everybody_has_everything(rack):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a, b))
    assert leave(rack, 0, 0)
    halt(rack)
    rack.resume()
    assert rack.connect(b, received=1), "it had landed, only the acknowledgement was lost"
    assert ("left", 0) in kinds(rack)


def test_a_void_round_that_needs_a_rank_that_has_left_is_a_fault(rack):
    a, b = rack.workers()
    rack.run(a.write(0, ints(1)))
    assert leave(rack, 0, 0)
    halt(rack)
    rack.resume()
    assert rack.connect(b)
    rack.poll(*b.write(0, ints(1)))
    assert [(e.fault, e.rank, e.round) for e in rack.events() if e.kind == "fault"][1:] == [
        ("rank_left", 0, 0)
    ]


@pytest.mark.parametrize("state", ["halted", "resumed", "connecting", "ending", "ended"])
def test_detach_is_always_legal(rack, state):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1), skip=(a, b))
    if state not in ("ending",):
        halt(rack)
    if state in ("resumed", "connecting"):
        rack.resume()
    if state == "connecting":
        assert rack.connect(a)
    if state in ("ending", "ended"):
        assert end(rack)
    rack.detach(rack.jobs[0])
    assert (rack.stats.qps, rack.stats.slots) == (0, 0)
