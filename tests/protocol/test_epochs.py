"""Rule 7: an epoch ends by a fault; a round that is complete keeps its result, the others are void, and the job goes on
over new QPs.
"""

from __future__ import annotations

import numpy as np
import pytest

from . import wire
from .epochs import contribute, end, halt, imm, reconnect
from .rack import PROGRESS_NS, RETRANSMIT_NS, ints, results
from .worker import PROBE_IMM

# ---- Halt. ----


def test_a_worker_that_says_its_qp_died_ends_the_epoch_for_all(make_rack):
    rack = make_rack(world=3, pools=2)
    rack.run(p for w in rack.workers(pool=1) for p in w.write(0, ints(1)))
    assert halt(rack, rank=2)
    (fault,) = rack.events()
    assert (fault.kind, fault.fault, fault.rank, fault.pool, fault.round) == (
        "fault",
        "retry_exceeded",
        2,
        0,
        0,
    )
    assert fault.complete == (0, 1) and rack.jobs[0].stats.faults == 1
    assert rack.poll(*rack.workers()[0].write(0, ints(1)), after_ns=PROGRESS_NS) == []
    assert halt(rack) and rack.events() == [], "told once"


def test_a_worker_that_is_not_connected_yet_may_say_so_too(make_rack):
    rack = make_rack(connected=False, pools=2)
    assert halt(rack, rank=1) and rack.fault().rank == 1


def test_an_impossible_halt_changes_nothing(rack):
    assert not halt(rack, rank=2)
    assert not rack.apply("HALT", rack.jobs[0], rank=0, fault=0)
    assert not rack.apply("HALT", rack.jobs[0], rank=0, fault=99)
    rack.run([*rack.workers()[0].write(0, ints(1)), *rack.workers()[1].write(0, ints(1))])
    assert rack.events() == []


# ---- Resume. ----


def test_only_a_halted_job_can_be_resumed(rack):
    job = rack.jobs[0]
    assert not rack.apply("RESUME", job)
    halt(rack)
    assert rack.apply("RESUME", job) and not rack.apply("RESUME", job)
    end(rack)
    assert not rack.apply("RESUME", job)
    rack.detach(job)
    assert not rack.apply("RESUME", job)


def test_the_old_qpns_are_unknown_at_once_and_their_places_free(rack):
    a, b = rack.workers()
    old_qpn, (ghost,) = a.appliance_qpn, a.write(0, ints(1))
    halt(rack)
    rack.resume()
    assert rack.stats.qps == 0
    assert rack.poll(ghost) == [] and rack.drops() == {"unknown_qp": 1}
    assert rack.connect(a, qpn=old_qpn ^ 1 << 14), "its index in the lane's table, another QPN"
    assert rack.poll(ghost) == [] and rack.drops() == {"unknown_qp": 2}
    assert not rack.connect(a) and rack.connect(b) and rack.stats.qps == 2


@pytest.mark.parametrize("lacks", [0, 1, 3, 4])
def test_what_a_rank_lacks_follows_its_probe(make_rack, lacks):
    rack = make_rack(window=4)
    a, b = rack.workers()
    x = [(ints(2, seed=r, tail_bytes=8), ints(2, seed=9 + r, tail_bytes=8)) for r in range(4)]
    for round in range(4):
        contribute(rack, round, *x[round], skip=(b,) if round >= 4 - lacks else ())
    halt(rack)
    rack.resume()
    assert b.received == 4 - lacks and rack.connect(a) and rack.connect(b)
    assert rack.poll() == [], "not before its probe"
    assert [p.imm for p in results(rack.poll(a.probe()))] == [PROBE_IMM]
    out = results(rack.poll(b.probe()), b)
    assert [p.imm for p in out if p.imm] == [PROBE_IMM, *map(imm, range(4 - lacks, 4))]
    assert [p.psn - b.appliance_psn & 0xFFFFFF for p in out] == list(range(1 + 3 * lacks))
    rack.run(reply for p in out for reply in b.receive(p))
    for round in range(4 - lacks, 4):
        np.testing.assert_array_equal(b.result(round, x[0][0]), sum(x[round]))
    assert rack.jobs[0].stats.rounds_completed == 4


def test_a_round_completed_in_the_turn_of_the_fault_is_kept(rack):
    a, b = rack.workers()
    x = ints(3)
    out = rack.poll(*a.write(0, x), *b.write(0, x), a.packet(wire.MIDDLE, a.psn, payload=bytes(256)))
    assert results(out) == [] and rack.fault().complete == (1,)
    reconnect(rack)
    for worker in (a, b):
        np.testing.assert_array_equal(worker.result(0, x), x + x)
    assert a.received == b.received == 1


def test_an_incomplete_round_is_void_and_written_again(rack):
    a, b = rack.workers()
    x, y = ints(3, seed=1), ints(3, seed=2)
    rack.run([*a.write(0, x), *b.write(0, y)[:2]])
    assert rack.stats.tx_packets > 2 and a.received == 0, "half of it has left already"
    halt(rack)
    reconnect(rack)
    rack.run([*b.write(0, y), *a.write(0, x)])
    for worker in (a, b):
        np.testing.assert_array_equal(worker.result(0, x), x + y)
    stats = rack.jobs[0].stats
    assert (stats.rounds_completed, stats.contribution_bytes) == (1, 3 * x.nbytes + y.nbytes * 2 // 3)


def test_a_void_round_may_come_with_another_op_length_and_immediate(rack):
    a, b = rack.workers()
    rack.run(a.write(0, ints(3)))
    halt(rack)
    reconnect(rack)
    x = ints(2).astype(np.float32)
    rack.run(p for w in (a, b) for p in w.write(0, x, op=2, imm=7))
    np.testing.assert_array_equal(a.result(0, x), x + x)


def test_rounds_go_on_after_the_complete_ones(rack):
    a, b = rack.workers()
    for round in range(3):
        contribute(rack, round, ints(1), ints(1))
    rack.run(a.write(3, ints(1)))
    halt(rack)
    reconnect(rack)
    rack.events()
    rack.poll(*a.write(4, ints(1)))
    fault = rack.fault()
    assert (fault.fault, fault.expected, fault.got) == ("round_mismatch", 3, 4)
    reconnect(rack)
    for round in range(3, 12):
        rack.run([*a.write(round, ints(1, seed=round)), *b.write(round, ints(1, seed=round))])
        np.testing.assert_array_equal(a.result(round, ints(1)), 2 * ints(1, seed=round))


def test_a_rank_that_lacks_a_whole_window_writes_after_its_first_result_only(rack):
    a, b = rack.workers()
    for round in range(2):
        contribute(rack, round, ints(1), ints(1), skip=(b,))
    halt(rack)
    rack.resume()
    assert rack.connect(a) and rack.connect(b)
    rack.events()
    rack.poll(*b.write(2, ints(1)))
    fault = rack.fault()
    assert (fault.fault, fault.rank, fault.expected, fault.got) == ("round_mismatch", 1, 1, 2)


@pytest.mark.parametrize("probes", [True, False], ids=["after its probe", "without a probe"])
def test_a_late_rank_gets_what_it_lacks_before_anything_newer(rack, probes):
    a, b = rack.workers()
    x = ints(2)
    contribute(rack, 0, x, x, skip=(b,))
    halt(rack)
    rack.resume()
    assert rack.connect(a)
    rack.run([a.probe(), *a.write(1, x)])
    assert a.received == 1, "nothing new without b"
    assert rack.connect(b)
    out = results(rack.poll(*([b.probe()] if probes else []), *b.write(1, x)), b)
    assert [p.imm for p in out if p.imm] == [PROBE_IMM] * probes + [imm(0), imm(1)]
    rack.run(reply for p in out for reply in b.receive(p))
    np.testing.assert_array_equal(b.result(0, x), x + x)
    np.testing.assert_array_equal(b.result(1, x), x + x)


def test_a_probe_belongs_before_the_epoch_s_first_contribution(rack):
    a, _ = rack.workers()
    contribute(rack, 0, ints(1), ints(1))
    halt(rack)
    reconnect(rack)
    rack.events()
    rack.run(a.write(1, ints(1)))
    rack.poll(a.probe())
    fault = rack.fault()
    assert (fault.fault, fault.expected, fault.got) == ("round_mismatch", 2, 0)


def test_a_slot_freed_by_the_fault_is_not_written_while_a_frame_points_into_it(rack):
    a, b = rack.workers()
    x, y = ints(2, seed=1), ints(2, seed=2)
    rack.held = []
    rack.poll(*a.write(0, x), b.write(0, y)[0])
    assert len(rack.held) == 2, "the half that was summed is on its way to both"
    halt(rack)
    held, rack.held = rack.held, None
    reconnect(rack)
    replay = a.write(0, x)
    assert rack.poll(*replay) == [], "neither executed nor acknowledged nor NAKed"
    for hold in held:
        hold.count -= 1
    rack.run([*replay, *b.write(0, y)])
    np.testing.assert_array_equal(b.result(0, x), x + y)


def test_a_result_delivered_again_is_the_same_bytes_however_often(rack):
    a, b = rack.workers()
    x = ints(2)
    contribute(rack, 0, x, x, skip=(a, b))
    for _ in range(5):
        halt(rack)
        rack.resume()
        assert rack.connect(a) and rack.connect(b)
        for worker in (a, b):
            payload = b"".join(p.payload for p in results(rack.poll(worker.probe()), worker)[1:])
            np.testing.assert_array_equal(np.frombuffer(payload, np.int32), x + x)
    assert [event.complete for event in rack.events() if event.kind == "fault"] == [(1,)] * 5


def test_what_was_owed_and_unsent_is_forgotten(rack):
    a, b = rack.workers()
    x = ints(1)
    rack.poll(*a.write(0, x), *b.write(0, x), max_emits=0)
    halt(rack)
    reconnect(rack)
    assert (a.received, b.received) == (1, 1)
    rack.run([*a.write(1, x), *b.write(1, x)])
    assert (a.received, b.received) == (2, 2) and rack.stats.retransmitted_packets == 0
    assert (rack.stats.acks_sent, rack.stats.acks_received) == (4, 6)


def test_received_is_between_what_was_acknowledged_and_what_is_complete(rack):
    a, b = rack.workers()
    contribute(rack, 0, ints(1), ints(1))
    contribute(rack, 1, ints(1), ints(1), skip=(b,))
    halt(rack)
    rack.resume()
    assert not rack.connect(b, received=3) and not rack.connect(b, received=0)
    assert rack.stats.qps == 0
    assert rack.connect(b, received=2), "its acknowledgement may be lost"
    assert not rack.connect(a, received=1) and rack.connect(a, received=2)


def test_the_rounds_of_each_pool_are_resumed_for_themselves(make_rack):
    rack = make_rack(pools=2)
    x = ints(1)
    for round in range(3):
        rack.run(p for w in rack.workers(pool=1) for p in w.write(round, x))
    rack.run(rack.workers(pool=0)[0].write(0, x))
    halt(rack)
    rack.resume()
    for pool in range(2):
        for worker in rack.workers(pool=pool):
            assert rack.connect(worker)
    rack.run(
        p for pool in range(2) for w in rack.workers(pool=pool) for p in [w.probe(), *w.write(3 * pool, x)]
    )
    assert [w.received for pool in range(2) for w in rack.workers(pool=pool)] == [1, 1, 4, 4]


def test_an_address_given_up_for_a_halted_job_is_asked_for_again(make_rack):
    rack = make_rack(connected=False)
    a, _ = rack.workers()
    again = rack.add_job().workers[0][0]
    again.ip = a.ip
    assert rack.connect(a)
    for _ in range(11):
        rack.poll(after_ns=100_000_000)
    assert rack.fault().fault == "unreachable" and len(rack.other) == 10
    assert rack.connect(again)
    rack.poll(after_ns=RETRANSMIT_NS)
    assert rack.events() == [] and len(rack.other) == 11


def test_another_job_does_not_notice(make_rack):
    rack = make_rack()
    rack.add_job()
    c, d = rack.workers(1)
    half = c.write(0, ints(2))
    rack.run(half[:1])
    halt(rack)
    reconnect(rack)
    rack.run([*half[1:], *d.write(0, ints(2))])
    np.testing.assert_array_equal(d.result(0, ints(2)), 2 * ints(2))
    assert {event.job for event in rack.events()} == {0}


def test_a_round_is_waited_for_and_told_again_in_the_next_epoch(rack):
    a, _ = rack.workers()
    rack.run(a.write(0, ints(1)))
    rack.poll(after_ns=PROGRESS_NS)
    halt(rack)
    reconnect(rack)
    rack.events()
    rack.run(a.write(0, ints(1)))
    rack.poll(after_ns=PROGRESS_NS - 1)
    assert rack.events() == []
    rack.poll(after_ns=RETRANSMIT_NS)
    assert [(e.kind, e.round, e.ranks) for e in rack.events()] == [("waiting", 0, 0b10)]


def test_forty_epochs_leave_nothing_behind(rack):
    a, b = rack.workers()
    for round in range(40):
        x = ints(1, seed=round)
        rack.run([*a.write(round, x), *b.write(round, x), *a.write(round + 1, x)])
        np.testing.assert_array_equal(b.result(round, x), x + x)
        halt(rack, rank=round % 2)
        reconnect(rack)
        assert rack.stats.qps == 2
    assert (rack.jobs[0].stats.rounds_completed, rack.jobs[0].stats.faults) == (40, 40)
    rack.detach(rack.jobs[0])
    assert (rack.stats.qps, rack.stats.slots) == (0, 0)
