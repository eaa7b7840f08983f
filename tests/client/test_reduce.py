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

    def call(
        self,
        values: np.ndarray,
        codec: str,
        sequence: int,
        feedback: codecs.ErrorFeedback | None = None,
        name: str = "",
    ) -> None:
        key = "i32" if values.dtype == np.int32 else codec
        collective = Collective(
            values, self.codecs[key], sequence, lambda: self.done.append(sequence), feedback, name=name
        )
        for line, stream in collective.streams(self.lines[:-1], self.lines[-1]):
            line.enter(stream)

    def turn(self) -> None:
        for result in self.rack.links[self.rank].completions():
            self.lines[result.pool].arrived(result)
        while any([line.advance() for line in self.lines]):
            pass


THC = codecs.Thc(g=20, p=0.01)
THC_RACK = {"data": (2, 2048), "small": (1, 8), "tables": {"lut4_u8": THC.params(2).wire_table}}
"""Slots of two blocks, and messages of two scales: as many as a slot needs."""


def workers_of(rack: Rack) -> list[Worker]:
    n = rack.world_size
    return [
        Worker(
            rank,
            rack,
            rack.lines(rank),
            {
                "f32": codecs.SUM_F32,
                "i32": codecs.SUM_I32,
                "fixed32": codecs.Fixed32(n),
                "f16": codecs.resolve("f16").build(rank, n, 0),
                "bf16": codecs.resolve("bf16").build(rank, n, 0),
                "thc": THC.build(rank, n, 0),
                "thc-paper": codecs.resolve("thc-paper").build(rank, n, 0),
            },
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
EXACT = ["f32", "fixed32", "i32", "f16"]
"""Codecs that sum integers up to 4000 exactly; f16's chunks are half as long on the way there."""
calls = st.lists(st.tuples(st.integers(1, 150), st.sampled_from(EXACT)), min_size=1, max_size=5)


@given(calls, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers())
@settings(max_examples=150)
def test_any_tensors_in_any_turn_order_are_summed_in_place(
    calls: list[tuple[int, str]], world_size: int, window: int, lanes: int, seed: int
) -> None:
    rack = Rack(world_size, data=(window, CHUNK_ELEMS * 4), small=(1, 8), lanes=lanes)
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
    for worker in workers:  # lanes do not wait for each other
        assert (worker.done if lanes == 1 else sorted(worker.done)) == list(range(len(calls)))


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


def scales_drained(worker: Worker) -> None:
    """One message of scales comes back, and whatever that lets through is written."""
    for result in worker.rack.links[worker.rank].completions():
        worker.lines[result.pool].arrived(result)
    worker.lines[0].advance()


def test_a_chunk_does_not_wait_for_the_scales_of_the_next() -> None:
    rack = Rack(2, **THC_RACK)
    first, second = workers_of(rack)
    for worker in (first, second):
        worker.call(np.ones(3 * 2048, np.float32), "thc", 0)
        worker.lines[1].advance()
    assert not first.lines[0].advance()  # no scale has come
    scales_drained(first)
    assert (first.lines[1].rounds_drained, first.lines[0].rounds_written) == (1, 1)
    assert not first.lines[0].advance()  # the window has room, the second chunk has no scales
    run([first, second], random.Random(1))
    assert first.done == second.done == [0]
    assert first.lines[1].rounds_written == 3


def test_one_scale_for_a_tensor_is_one_message_and_all_chunks_wait_for_it() -> None:
    rack = Rack(2, **{**THC_RACK, "tables": {"lut4_u8": codecs.Thc(name="thc-paper").params(2).wire_table}})
    first, second = workers_of(rack)
    for worker in (first, second):
        worker.call(np.ones(3 * 2048, np.float32), "thc-paper", 0)
    run([first, second], random.Random(1))
    assert (first.lines[1].rounds_written, first.lines[0].rounds_written) == (1, 3)


def normal(rank: int, step: int, elems: int = 3 * 2048 + 77) -> np.ndarray:
    return np.random.default_rng(10 * step + rank).normal(size=elems).astype(np.float32)


@pytest.mark.parametrize("codec", ["thc", "thc-paper"])
@pytest.mark.parametrize("seed", range(4))
def test_turns_do_not_matter_to_what_is_drawn_or_held_back(codec: str, seed: int) -> None:
    tables = {"lut4_u8": (THC if codec == "thc" else codecs.Thc(name=codec)).params(2).wire_table}
    outcomes = []
    for order in (random.Random(0), random.Random(seed + 1)):
        workers = workers_of(Rack(2, **{**THC_RACK, "tables": tables}))
        feedbacks = [codecs.ErrorFeedback(normal(0, 0).size) for _ in workers]
        tensors = [[normal(worker.rank, step) for step in range(2)] for worker in workers]
        for step in range(2):
            for worker, feedback in zip(workers, feedbacks, strict=True):
                worker.call(tensors[worker.rank][step], codec, step, feedback)
            run(workers, order)
        outcomes.append(
            [*(t.tobytes() for ts in tensors for t in ts), *(f.residual.tobytes() for f in feedbacks)]
        )
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][:2] == outcomes[0][2:4]


def test_what_is_pending_waits_for_every_chunk_s_result() -> None:
    rack = Rack(2, **THC_RACK)
    first, second = workers_of(rack)
    feedback = codecs.ErrorFeedback(3 * 2048)
    first.call(np.ones(3 * 2048, np.float32), "thc", 0, feedback)
    second.call(np.ones(3 * 2048, np.float32), "thc", 0)
    while first.lines[0].rounds_drained < 2:
        first.turn()
        second.turn()
        assert first.lines[0].rounds_drained == 3 or not feedback.residual.any()
    run([first, second], random.Random(1))
    assert feedback.residual.any()


def test_a_held_residual_is_committed_or_discarded_by_its_owner() -> None:
    feedback = codecs.ErrorFeedback(2, hold=True)
    for fate, expected in ((feedback.discard, [0, 0]), (feedback.commit, [1, 2]), (feedback.commit, [1, 2])):
        if fate != feedback.commit or not feedback.residual.any():
            carry = feedback.carry(0, 2)
            assert carry.pending is not None
            carry.pending[:] = [1, 2]
            feedback.accepted()
        fate()
        assert feedback.residual.tolist() == expected


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
