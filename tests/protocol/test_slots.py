"""Slots: written again only when everybody has the result and nothing outside points into it (rule 6)."""

from __future__ import annotations

import numpy as np

from .rack import RETRANSMIT_NS, acks, ints, results


def test_a_held_slot_is_not_written_and_its_contribution_comes_again(rack):
    a, b = rack.workers()
    x = ints(2)
    rack.held = []
    for round in range(4):  # 2W rounds: the next one wants slot 0 again
        rack.run([*a.write(round, x), *b.write(round, x)])
    first, second = a.write(4, x)
    assert rack.poll(first, second) == [], "neither executed nor acknowledged nor NAKed"
    assert rack.drops() == {"no_buffer": 1, "gap": 1}
    rack.release()
    rack.run([first, second, *b.write(4, x)])
    np.testing.assert_array_equal(a.result(4, x), x + x)


def test_a_held_slot_costs_the_worker_no_retries(rack):
    a, b = rack.workers()
    rack.held = []
    for round in range(4):
        rack.run([*a.write(round, ints(1)), *b.write(round, ints(1))])
    (packet,) = a.write(4, ints(1))
    later = packet.but(psn=packet.psn + 1)
    for _ in range(20):
        assert acks(rack.poll(packet, later)) == []
    rack.release()


def test_what_is_held_keeps_its_bytes(rack):
    a, b = rack.workers()
    x = ints(1)
    rack.held = []
    rack.poll(*a.write(0, x), *b.write(0, x))
    again = results(rack.poll(after_ns=2 * RETRANSMIT_NS))
    assert [np.frombuffer(p.payload, np.int32).tolist() for p in again] == [(x + x).tolist()] * 2
    assert len(rack.held) == 4
    rack.release()


def test_the_small_pool_has_slots_rounds_and_window_of_its_own(make_rack):
    rack = make_rack(pools=2)
    x, y = ints(1, seed=1), ints(1, seed=2)
    for round in range(3):
        rack.run(p for w in rack.workers(pool=1) for p in w.write(round, y))
    rack.run(p for w in rack.workers(pool=0) for p in w.write(0, x))
    np.testing.assert_array_equal(rack.workers(pool=0)[0].result(0, x), x + x)
    np.testing.assert_array_equal(rack.workers(pool=1)[0].result(2, y), y + y)
    assert rack.jobs[0].stats.rounds_completed == 4


def test_two_jobs_share_a_lane_and_nothing_else(make_rack):
    rack = make_rack()
    rack.add_job(world=3, window=4)
    x, y = ints(2, seed=1), ints(2, seed=2)
    rack.run(
        p for job, values in ((0, x), (1, y)) for worker in rack.workers(job) for p in worker.write(0, values)
    )
    np.testing.assert_array_equal(rack.workers(0)[1].result(0, x), 2 * x)
    np.testing.assert_array_equal(rack.workers(1)[2].result(0, y), 3 * y)
    rack.poll(rack.workers(0)[0].write(9, x)[0])
    assert rack.fault().job == 0
    rack.run(p for worker in rack.workers(1) for p in worker.write(1, x))
    np.testing.assert_array_equal(rack.workers(1)[0].result(1, x), 3 * x)


def test_a_worker_of_one_job_cannot_reach_another_s_qp(make_rack):
    rack = make_rack()
    rack.add_job()
    (packet,) = rack.workers(0)[0].write(0, ints(1))
    assert rack.poll(packet.but(qpn=rack.workers(1)[0].appliance_qpn)) == []
    assert rack.drops() == {"foreign_peer": 1}
