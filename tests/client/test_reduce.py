"""reduce: several workers' lines over a rack in memory, advanced in any order: exact sums, within the window."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pascaline import codec as codecs
from pascaline.errors import EpochEnded
from pascaline.link import Result
from pascaline.reduce import Collective, Line

from .rack import Rack


@dataclass
class Worker:
    """One rank: its lines and what has completed, in order."""

    rank: int
    rack: Rack
    lines: list[Line]
    codecs: dict[str, codecs.Codec]
    done: list[int] = field(default_factory=list)

    def call(self, values: np.ndarray, codec: str, sequence: int) -> None:
        key = "i32" if values.dtype == np.int32 else codec
        collective = Collective(values, self.codecs[key], sequence, lambda: self.done.append(sequence))
        for line, stream in collective.streams(self.lines[0], self.lines[1]):
            line.enter(stream)

    def turn(self) -> None:
        for result in self.rack.links[self.rank].completions():
            self.lines[result.pool].arrived(result)
        while any([line.advance() for line in self.lines]):
            pass


def workers_of(rack: Rack) -> list[Worker]:
    n = rack.world_size
    return [
        Worker(
            rank,
            rack,
            rack.lines(rank),
            {"f32": codecs.SUM_F32, "i32": codecs.SUM_I32, "fixed32": codecs.Fixed32(n)},
        )
        for rank in range(n)
    ]


def run(workers: list[Worker], order: random.Random) -> None:
    for _ in range(10_000):
        if not any(line.busy() for worker in workers for line in worker.lines):
            return
        order.choice(workers).turn()
    raise AssertionError("the workers got stuck")


CHUNK_ELEMS = 16
calls = st.lists(
    st.tuples(st.integers(1, 150), st.sampled_from(["f32", "fixed32", "i32"])), min_size=1, max_size=5
)


@given(calls, st.integers(1, 4), st.integers(1, 4), st.integers())
@settings(deadline=None, max_examples=150)
def test_any_tensors_in_any_turn_order_are_summed_in_place(
    calls: list[tuple[int, str]], world_size: int, window: int, seed: int
) -> None:
    rack = Rack(world_size, data=(window, CHUNK_ELEMS * 4), small=(1, 8))
    workers, order = workers_of(rack), random.Random(seed)
    rng = np.random.default_rng(seed & 0xFFFF)
    inputs, tensors = [], []
    for sequence, (elems, codec) in enumerate(calls):
        dtype = np.int32 if codec == "i32" else np.float32
        inputs.append([rng.integers(-1000, 1000, elems).astype(dtype) for _ in workers])
        tensors.append([x.copy() for x in inputs[-1]])
        for worker in workers:
            worker.call(tensors[-1][worker.rank], codec, sequence)
            if order.random() < 0.5:
                worker.turn()
    run(workers, order)
    for given_, got in zip(inputs, tensors, strict=True):
        for tensor in got:
            assert tensor.tobytes() == sum(given_).tobytes()  # type: ignore[attr-defined]
    assert all(worker.done == list(range(len(calls))) for worker in workers)


def test_no_more_than_a_window_is_written_and_the_rest_queues() -> None:
    rack = Rack(2, data=(4, 64))
    first, second = workers_of(rack)
    first.call(np.ones(16 * 100, np.float32), "f32", 0)
    first.turn()
    assert first.lines[0].rounds_written == 4  # rack.py asserts that it never is more
    second.call(np.ones(16 * 100, np.float32), "f32", 0)
    run([first, second], random.Random(1))
    assert first.lines[0].rounds_written == first.lines[0].rounds_drained == 100
    assert first.lines[0].bytes_sent == first.lines[0].bytes_received == 6400


def test_a_tensor_that_waits_for_its_scales_is_not_overtaken() -> None:
    rack = Rack(2)
    first, second = workers_of(rack)
    first.call(np.ones(16, np.float32), "fixed32", 0)
    first.call(np.ones(16, np.int32), "f32", 1)
    first.turn()
    assert first.lines[1].rounds_written == 1
    assert first.lines[0].rounds_written == 0
    second.call(np.ones(16, np.float32), "fixed32", 0)
    second.call(np.ones(16, np.int32), "f32", 1)
    run([first, second], random.Random(1))
    assert first.done == second.done == [0, 1]


def test_scales_do_not_wait_for_data() -> None:
    rack = Rack(2, data=(1, 64))
    first, _ = workers_of(rack)
    first.call(np.ones(16 * 50, np.float32), "f32", 0)
    first.call(np.ones(16, np.float32), "fixed32", 1)
    first.turn()
    assert (first.lines[0].rounds_written, first.lines[1].rounds_written) == (1, 1)


@pytest.mark.parametrize("wrong", [Result(0, 1, 64), Result(0, 0, 60)])
def test_a_result_of_another_message_is_never_decoded(wrong: Result) -> None:
    worker = workers_of(Rack(2))[0]
    tensor = np.ones(16, np.float32)
    worker.call(tensor, "f32", 0)
    worker.turn()
    with pytest.raises(EpochEnded, match="came where 64 bytes"):
        worker.lines[0].arrived(wrong)
    assert tensor.tolist() == [1.0] * 16


def test_a_result_that_nothing_waits_for_is_a_fault() -> None:
    with pytest.raises(EpochEnded, match="nothing waits for"):
        workers_of(Rack(1))[0].lines[0].arrived(Result(0, 0, 4))
