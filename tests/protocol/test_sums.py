"""Exact sums, whatever the op, the length and the order of arrival."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from . import wire
from .library import lib
from .rack import MTU, ints, results
from .worker import MAX_F32, SUM_F32, SUM_I32, Array


def contributions(op: int, ranks: int, elems: int) -> list[Array]:
    rng = np.random.default_rng(op)
    if op == SUM_I32:
        return [rng.integers(-(2**31), 2**31, elems, np.int64).astype(np.int32) for _ in range(ranks)]
    return [
        rng.integers(-1000, 1000, elems).astype(np.float32) for _ in range(ranks)
    ]  # sums are representable


def expected(op: int, parts: list[Array]) -> Array:
    if op == MAX_F32:
        return np.max(np.abs(parts), axis=0)
    with np.errstate(over="ignore"):
        return np.sum(parts, axis=0, dtype=parts[0].dtype)


@pytest.mark.parametrize("op", [SUM_I32, SUM_F32, MAX_F32])
@pytest.mark.parametrize("elems", [1, 3, MTU // 4 - 1, MTU // 4, MTU // 4 + 1, 2 * MTU // 4, MTU])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_sum_is_exact(make_rack, op, elems, world):
    rack = make_rack(world=world)
    parts = contributions(op, world, elems)
    rack.run(p for w, part in zip(rack.workers(), parts, strict=True) for p in w.write(0, part, op=op))
    for worker in rack.workers():
        np.testing.assert_array_equal(worker.result(0, parts[0]), expected(op, parts))
        assert worker.completions == [0xABC00000]
    assert not rack.drops()


def test_inf_and_nan_arrive_as_such(rack):
    a, b = rack.workers()
    x = np.array([np.inf, np.nan, 1, -np.inf], np.float32)
    y = np.array([1, 1, np.nan, -np.inf], np.float32)
    rack.run([*a.write(0, x, op=SUM_F32), *b.write(0, y, op=SUM_F32)])
    np.testing.assert_array_equal(a.result(0, x), np.array([np.inf, np.nan, np.nan, -np.inf], np.float32))
    rack.run([*a.write(1, x, op=MAX_F32), *b.write(1, y, op=MAX_F32)])
    np.testing.assert_array_equal(a.result(1, x), np.array([np.inf, np.nan, np.nan, np.inf], np.float32))


@pytest.mark.parametrize("seed", range(10))
def test_ranks_may_be_interleaved_in_any_way(make_rack, seed):
    rack, rnd = make_rack(world=3), random.Random(seed)
    parts = [ints(4, seed=10 * seed + rank) for rank in range(3)]
    queues = [w.write(0, part) for w, part in zip(rack.workers(), parts, strict=True)]
    order = [rank for rank in range(3) for _ in range(4)]
    rnd.shuffle(order)
    while order:
        burst = [queues[order.pop()].pop(0) for _ in range(min(len(order), rnd.randint(1, 5)))]
        rack.run(burst)
    for worker in rack.workers():
        np.testing.assert_array_equal(worker.result(0, parts[0]), expected(SUM_I32, parts))


def test_two_rounds_in_flight_and_a_rank_that_is_a_round_behind(rack):
    a, b = rack.workers()
    x, y = [ints(2, seed=s) for s in (1, 2)], [ints(2, seed=s) for s in (3, 4)]
    rack.run([*a.write(0, x[0]), *a.write(1, x[1])])
    assert a.completions == []
    rack.run(b.write(0, y[0]))
    assert a.completions == b.completions == [0xABC00000]
    rack.run(b.write(1, y[1]))
    for worker, round in itertools.product((a, b), (0, 1)):
        np.testing.assert_array_equal(worker.result(round, x[0]), x[round] + y[round])


def test_a_length_may_change_from_round_to_round(rack):
    a, b = rack.workers()
    for round, elems in enumerate([MTU, 1, MTU // 2 + 1, 7, MTU]):
        x = np.full(elems, round + 1, np.int32)
        rack.run([*a.write(round, x), *b.write(round, x)])
        np.testing.assert_array_equal(b.result(round, x), 2 * x)


def test_slots_are_used_again_and_again(make_rack):
    rack = make_rack(window=2, packets=2)
    a, b = rack.workers()
    for round in range(4 * 2 * 4 + 3):
        x, y = ints(1, seed=round, tail_bytes=8), ints(1, seed=1000 + round, tail_bytes=8)
        rack.run([*a.write(round, x), *b.write(round, y)])
        np.testing.assert_array_equal(a.result(round, x), x + y)
        np.testing.assert_array_equal(b.result(round, x), x + y)
    assert not rack.drops()


@pytest.mark.parametrize("side", ["worker_psn", "appliance_psn"])
def test_psns_wrap_inside_a_message(make_rack, side):
    rack = make_rack(**{side: wire.PSN_MASK - 1})
    a, b = rack.workers()
    for round in range(3):
        x, y = ints(4, seed=round), ints(4, seed=9 + round)
        rack.run([*a.write(round, x), *b.write(round, y)])
        np.testing.assert_array_equal(a.result(round, x), x + y)
    assert not rack.drops()


def test_all_workers_are_sent_the_same_bytes_with_one_header_each(rack):
    a, b = rack.workers()
    x = ints(2, tail_bytes=12)
    out = results(rack.poll(*a.write(0, x), *b.write(0, x)))
    to_a, to_b = results(out, a), results(out, b)
    assert [p.payload for p in to_a] == [p.payload for p in to_b] and len(to_a) == 3
    assert [p.opcode for p in to_a] == [wire.FIRST, wire.MIDDLE, wire.LAST_IMM]
    assert [p.ack_req for p in to_a] == [False, False, True]
    assert (to_a[0].va, to_a[0].rkey, to_a[0].dma_len) == (a.result_va, a.result_rkey, x.nbytes)
    assert (to_b[0].va, to_b[0].rkey, to_b[0].dma_len) == (b.result_va, b.result_rkey, x.nbytes)


def test_counters_count_each_payload_byte_once(rack):
    a, b = rack.workers()
    x = ints(2)
    first, second = a.write(0, x)
    rack.run([first, first, second, *b.write(0, x)])
    stats = rack.jobs[0].stats
    assert (stats.contribution_bytes, stats.result_bytes) == (2 * x.nbytes, 2 * x.nbytes)
    assert stats.rounds_completed == 1
    assert stats.last_round_time_us == (rack.now_ns + 1_700_000_000_000_000_000) // 1000
    assert rack.drops() == {"duplicate": 1}
    lane = rack.stats
    assert lane.acks_sent == 2 and lane.naks_sent == 0 and lane.acks_received == 2
    assert lane.qps == 2 and lane.slots == 4


def test_the_time_of_a_round_follows_a_clock_that_is_set(rack):
    lib.psc_lane_set_realtime_offset(rack.lane, 7_000)
    rack.run(p for w in rack.workers() for p in w.write(0, ints(1)))
    assert rack.jobs[0].stats.last_round_time_us == rack.now_ns // 1000 + 7
