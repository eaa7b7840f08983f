"""Chunks of several rounds whose later lengths depend on earlier results: exact, in one order on all ranks, and with
the wire never idle for it.
"""

from __future__ import annotations

import itertools
import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pascaline import codec as codecs
from pascaline.codec.measure import Measure
from pascaline.link import Result
from pascaline.reduce import Collective, Line, op_windows

from .rack import OPS, Rack
from .test_reduce import CHUNK_ELEMS, Worker, run, workers_of
from .union import Union


def union_workers(rack: Rack) -> list[Worker]:
    workers = workers_of(rack)
    for worker in workers:
        worker.codecs["union"] = Union()
    return workers


def sparse(rng: np.random.Generator, elems: int, density: float) -> np.ndarray:
    return (rng.integers(-1000, 1000, elems) * (rng.random(elems) < density)).astype(np.float32)


calls = st.lists(
    st.tuples(
        st.integers(1, 150),
        st.sampled_from(["union", "union", "f32", "fixed32"]),
        st.sampled_from([0, 0.05, 1]),
    ),
    min_size=1,
    max_size=5,
)


@given(calls, st.integers(1, 4), st.integers(1, 5), st.integers())
@settings(max_examples=150)
def test_any_supports_in_any_turn_order_are_summed_in_place(
    calls: list[tuple[int, str, float]], world_size: int, window: int, seed: int
) -> None:
    """The rack holds all ranks to one sequence of (op, length, immediate)."""
    rack = Rack(world_size, data=(window, CHUNK_ELEMS * 4), small=(1, 8))
    workers, order = union_workers(rack), random.Random(seed)
    rng = np.random.default_rng(seed & 0xFFFF)
    inputs, tensors = [], []
    for sequence, (elems, codec, density) in enumerate(calls):
        inputs.append([sparse(rng, elems, density) for _ in workers])
        tensors.append([x.copy() for x in inputs[-1]])
        for worker in workers:
            worker.call(tensors[-1][worker.rank], codec, sequence)
            if order.random() < 0.5:
                worker.turn()
    run(workers, order)
    for given_, got in zip(inputs, tensors, strict=True):
        for tensor in got:
            np.testing.assert_array_equal(tensor, sum(given_))
    assert all(sorted(worker.done) == list(range(len(calls))) for worker in workers)


class Delayed:
    """A pool of a job of one rank, on a wire that takes one message a tick and answers `latency` ticks later."""

    index, va_base = 0, 0

    def __init__(self, window: int, chunk_bytes: int, latency: int) -> None:
        self.window, self.chunk_bytes, self.latency = window, chunk_bytes, latency
        self.contributions = [memoryview(bytearray(chunk_bytes)) for _ in range(window)]
        self.results = [memoryview(bytearray(chunk_bytes)) for _ in range(window)]
        self.tick = 0
        self.coming: deque[tuple[int, int, Result]] = deque()
        self.trace: list[tuple[int, str, int]] = []
        """(tick, op, immediate) of each message."""

    def can_write(self) -> bool:
        return not self.trace or self.trace[-1][0] < self.tick

    def post_receive(self) -> None:
        pass

    def write(self, slot: int, length_bytes: int, remote_address: int, immediate: int) -> None:
        self.trace.append((self.tick, OPS[(remote_address >> 56) - 1], immediate))
        self.coming.append((self.tick + self.latency, slot, Result(0, immediate, length_bytes)))

    def due(self) -> Result | None:
        if not self.coming or self.coming[0][0] > self.tick:
            return None
        _, slot, result = self.coming.popleft()
        self.results[slot][: result.length_bytes] = self.contributions[slot][: result.length_bytes]
        return result


def traced(window: int, chunks: int, collectives: int = 1) -> Delayed:
    """Everything enters at once; a window is what the wire holds: the latency is that of `window` messages."""
    pool = Delayed(window, 128, window)
    line = Line(pool, op_windows(OPS))
    done: list[int] = []
    for sequence in range(collectives):
        values = np.ones(chunks * 32, np.float32)
        collective = Collective(values, Union(), sequence, lambda sequence=sequence: done.append(sequence))
        [(_, stream)] = collective.streams([line], line)
        line.enter(stream)
    while line.busy():
        assert pool.tick < 10_000
        while (result := pool.due()) is not None:
            line.arrived(result)
        line.advance()
        pool.tick += 1
    assert done == list(range(collectives))
    return pool


@pytest.mark.parametrize("window", [2, 3, 4, 8])
def test_the_first_round_travels_behind_other_chunks(window: int) -> None:
    """The timeline: at most at a tensor's two ends is the wire idle, never in between."""
    chunks = 40
    pool = traced(window, chunks)
    ticks = [tick for tick, _, _ in pool.trace]
    assert len(ticks) == 2 * chunks  # 32 values of 32 are even: two rounds
    idle = [after for before, after in itertools.pairwise(ticks) if after > before + 1]
    begun = window // 2 + 1
    assert all(after <= window or after > ticks[-1] - window for after in idle)
    assert ticks[-1] + 1 <= 2 * chunks + window
    assert len({immediate for _, _, immediate in pool.trace}) == 2 * chunks
    ops = [op for _, op, _ in pool.trace]
    assert ops[:begun] == ["or_u32"] * begun  # the first ones
    assert ops[begun : begun + 4] == ["sum_f32", "or_u32"] * 2  # c - A's values, c's bitmap
    assert ops[-begun:] == ["sum_f32"] * begun


def test_between_two_tensors_there_is_one_latency() -> None:
    pool = traced(4, 10, collectives=3)
    ticks = [tick for tick, _, _ in pool.trace]
    assert ticks[-1] - ticks[0] + 1 <= 3 * (20 + 4)


def test_one_round_codecs_are_not_held_up() -> None:
    """A chunk of one round is never waited for: a whole window is written before anything comes back."""
    first, _ = union_workers(Rack(2, data=(4, 64)))
    first.call(np.ones(16 * 9, np.float32), "f32", 0)
    first.turn()
    assert first.lines[0].rounds_written == 4


def test_what_several_rounds_have_sent_is_counted() -> None:
    rack = Rack(1, data=(4, 128))
    line, small = rack.lines(0)
    measure = Measure()
    values = np.concatenate([np.zeros(32), np.ones(32), np.eye(1, 32)[0]]).astype(np.float32)
    for entered, stream in Collective(values, Union(), 0, lambda: None, None, measure).streams([line], small):
        entered.enter(stream)
    while line.busy():
        line.advance()
        for result in rack.links[0].completions():
            line.arrived(result)
    stats = measure.stats()
    sent = 3 * 4 + 32 * 4 + 4 + 4  # bitmaps, the second chunk's values, the third's one and its size
    assert (stats["elements"], stats["kept"]) == (96, 33)
    assert stats["bits_up"] == stats["bits_down"] == 8 * sent / 96
    assert stats["encodings"] == {"nothing": 1, "even": 1, "odd": 1}
    assert line.bytes_sent == line.bytes_received == sent


class Endless(Union):
    """It says that its first round is the last, and goes on."""

    def rounds(self, *arguments: object) -> codecs.Rounds:
        inner = super().rounds(*arguments)  # type: ignore[arg-type]
        combined = yield next(inner)._replace(more=False)
        yield inner.send(combined)
        return codecs.Outcome(0)


def test_a_round_after_the_last_is_a_defect_and_no_wrong_order() -> None:
    [worker] = workers_of(Rack(1))
    worker.codecs["union"] = Endless()
    worker.call(np.ones(4, np.float32), "union", 0)
    with pytest.raises(RuntimeError, match="union takes a round after one that it called the last"):
        run([worker], random.Random(0))
