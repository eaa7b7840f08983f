"""Epochs as a worker lives them, over a rack in memory: a fault that can be resumed is noticed by nobody, any other
ends in one typed error after everything complete has been drained.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest

from pascaline import codec as codecs
from pascaline.contract import control
from pascaline.errors import ApplianceUnreachable, EpochEnded, SessionClosed
from pascaline.link.verbs.pool import timeout_exponent
from pascaline.reduce import Collective, Line, op_windows
from pascaline.session.progress import Progress
from pascaline.session.work import Work

from .rack import OPS, PATIENCE_S, Rack, RackLink
from .union import Union


@pytest.fixture
def rack() -> Iterator[Rack]:
    yield Rack(2)


TIMEOUT_S = 60.0
"""Ends a round that nothing else ends."""


def progress_of(rack: Rack, rank: int) -> Progress:
    lines = rack.lines(rank)
    return Progress(
        rack.links[rank], lines, lines[:-1], lines[-1], TIMEOUT_S, rack.epochs_of(rank, lines), lambda: None
    )


@pytest.fixture
def pair(rack: Rack) -> Iterator[list[Progress]]:
    both = [progress_of(rack, rank) for rank in range(2)]
    for progress in both:
        progress.start()
    yield both
    for progress in both:
        progress.end(SessionClosed("the test is over"))
        assert progress.wait_ended(PATIENCE_S)


def submit(
    progress: Progress, tensor: np.ndarray, sequence: int = 0, codec: codecs.Codec = codecs.SUM_F32
) -> Work:
    work = Work(tensor, sequence)
    progress.submit(tensor, codec, work)
    return work


def until(true: object, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def looked(progress: Progress, link: RackLink) -> None:
    """The progress thread has gone round once more: nothing is half-way that it had begun before."""
    looks = link.looks
    os.eventfd_write(progress.wake_fd, 1)
    until(lambda: link.looks > looks)


def said(rack: Rack, kind: type) -> list[tuple[int, object]]:
    return [(rank, message) for rank, message in rack.heard if isinstance(message, kind)]


@pytest.mark.parametrize("seed", range(6))
def test_any_loss_at_any_time_is_mended_by_a_new_epoch(pair: list[Progress], rack: Rack, seed: int) -> None:
    chance = random.Random(seed)
    rng = np.random.default_rng(seed)
    inputs = [
        [(rng.integers(-1000, 1000, 200) * (rng.random(200) < 0.2)).astype(np.float32) for _ in range(30)]
        for _ in pair
    ]
    tensors = [[x.copy() for x in row] for row in inputs]
    chosen = [chance.choice([codecs.SUM_F32, codecs.Fixed32(2), Union()]) for _ in range(30)]
    works = [
        submit(progress, tensor, sequence, codec)
        for progress, row in zip(pair, tensors, strict=True)
        for sequence, (tensor, codec) in enumerate(zip(row, chosen, strict=True))
    ]
    for _ in range(8):
        time.sleep(chance.random() * 0.01)
        with rack.lock:
            rack.deaf |= {rank for rank in range(2) if chance.random() < 0.5}
            rack.mute |= {rank for rank in range(2) if chance.random() < 0.5}
        time.sleep(chance.random() * 0.01)
        epoch = rack.epoch
        rack.halt()
        until(lambda epoch=epoch: rack.epoch > epoch)
    assert all(work.wait(PATIENCE_S) for work in works)
    for sequence, codec in enumerate(chosen):
        expected = inputs[0][sequence] + inputs[1][sequence]
        assert tensors[0][sequence].tobytes() == tensors[1][sequence].tobytes()
        if not isinstance(codec, codecs.Fixed32):
            assert tensors[0][sequence].tobytes() == expected.tobytes()
        else:
            np.testing.assert_allclose(tensors[0][sequence], expected, atol=1e-4)


def test_a_result_that_one_rank_has_returned_reaches_the_other(pair: list[Progress], rack: Rack) -> None:
    rack.deaf = {1}
    tensors = [np.full(40, rank + 1, np.float32) for rank in range(2)]
    works = [submit(progress, tensor) for progress, tensor in zip(pair, tensors, strict=True)]
    assert works[0].wait(PATIENCE_S)
    assert not works[1].is_completed()
    rack.halt()
    assert works[1].wait(PATIENCE_S)
    assert tensors[1].tolist() == [3.0] * 40
    resumed = {rank: message.received for rank, message in said(rack, control.Resume)}  # type: ignore[attr-defined]
    assert resumed == {0: [3, 0], 1: [0, 0]}
    assert rack.complete == [3, 0]  # nothing was computed again


def test_a_failed_queue_pair_is_told_and_mended(pair: list[Progress], rack: Rack) -> None:
    rack.mute = {0}
    works = [submit(progress, np.ones(40, np.float32)) for progress in pair]
    until(lambda: rack.links[0].pools[0].next_round == 3)
    rack.links[0].fail("write 1: retry exceeded error")
    assert all(work.wait(PATIENCE_S) for work in works)
    assert [message.message for _, message in said(rack, control.Broken)] == ["write 1: retry exceeded error"]  # type: ignore[attr-defined]


def test_a_path_that_comes_back_in_time(pair: list[Progress], rack: Rack) -> None:
    rack.links[1].unreachable = 2
    rack.mute = {0}
    works = [submit(progress, np.ones(4, np.float32)) for progress in pair]
    rack.halt()
    assert all(work.wait(PATIENCE_S) for work in works)
    assert rack.links[1].unreachable == 0


def test_an_epoch_that_ends_while_it_begins(pair: list[Progress], rack: Rack) -> None:
    rack.links[1].unreachable = 4
    rack.mute = {0}
    works = [submit(progress, np.ones(4, np.float32)) for progress in pair]
    rack.halt()
    until(lambda: rack.epoch == 2)
    rack.halt("and again")
    assert all(work.wait(PATIENCE_S) for work in works)
    assert rack.epoch == 3


def test_a_call_during_a_resume_queues(pair: list[Progress], rack: Rack) -> None:
    rack.links[1].unreachable = 2
    rack.halt()
    until(lambda: rack.epoch == 2)
    works = [submit(progress, np.ones(4, np.float32)) for progress in pair]
    assert all(work.wait(PATIENCE_S) for work in works)


def test_what_has_landed_is_drained_before_a_resume(pair: list[Progress], rack: Rack) -> None:
    rack.links[1].blind = True
    works = [submit(progress, np.ones(40, np.float32)) for progress in pair]
    assert works[0].wait(PATIENCE_S)
    rack.halt()
    assert works[1].wait(PATIENCE_S)
    until(lambda: rack.epoch == 2)
    assert {rank: message.received for rank, message in said(rack, control.Resume)} == {0: [3, 0], 1: [3, 0]}  # type: ignore[attr-defined]


def test_what_has_landed_is_drained_before_the_error(pair: list[Progress], rack: Rack) -> None:
    rack.links[1].blind = True
    tensors = [np.ones(40, np.float32) for _ in pair]
    works = [submit(progress, tensor) for progress, tensor in zip(pair, tensors, strict=True)]
    assert works[0].wait(PATIENCE_S)
    late = submit(pair[1], np.ones(40, np.float32), 1)
    pair[1].end(EpochEnded("rank 2 is gone", "connection_lost", 2))
    assert works[1].wait(PATIENCE_S)
    assert tensors[1].tolist() == [2.0] * 40
    with pytest.raises(EpochEnded, match="rank 2 is gone"):
        late.wait(PATIENCE_S)
    assert pair[1].wait_ended(PATIENCE_S)
    assert rack.links[1].closed


@pytest.mark.parametrize("fault", ["told", "seen"])
def test_an_appliance_that_says_nothing_more_is_unreachable(fault: str) -> None:
    rack = Rack(2, deadline_s=0.4)
    progress = progress_of(rack, 0)
    progress.start()
    rack.epochs[1] = rack.epochs[0]  # never resumes: the barrier stays open
    work = submit(progress, np.ones(4, np.float32))
    began = time.monotonic()
    if fault == "told":
        del rack.epochs[1]
        rack.halt("rank 1 does not acknowledge")
    else:
        rack.hear = lambda *_: None  # type: ignore[method-assign]
        rack.epochs[0]._say = lambda _: None
        rack.links[0].fail("rank 1 does not acknowledge")
    with pytest.raises(ApplianceUnreachable, match=r"within 0\.4 s of a fault: rank 1 does not acknowledge"):
        work.wait(PATIENCE_S)
    assert 0.3 < time.monotonic() - began < TIMEOUT_S / 2
    assert progress.wait_ended(PATIENCE_S)


def test_a_verdict_ends_a_resume(pair: list[Progress], rack: Rack) -> None:
    rack.links[1].unreachable = 1000
    works = [submit(pair[0], np.ones(4, np.float32))]
    rack.halt()
    until(lambda: rack.epoch == 2)
    for progress in pair:
        progress.end(EpochEnded("rank 1 did not resume within 3 s", "retry_exceeded", 1))
    with pytest.raises(EpochEnded, match="rank 1 did not resume within 3 s"):
        works[0].wait(PATIENCE_S)
    assert all(progress.wait_ended(PATIENCE_S) for progress in pair)


def test_who_leaves_takes_part_in_no_further_epoch(pair: list[Progress], rack: Rack) -> None:
    works = [submit(progress, np.ones(4, np.float32)) for progress in pair]
    assert all(work.wait(PATIENCE_S) for work in works)
    pair[0].leave()
    until(lambda: said(rack, control.Leave))
    assert said(rack, control.Leave) == [(0, control.Leave(received=[1, 0]))]
    rack.halt()
    until(lambda: said(rack, control.Resume) and rack.links[0].halts == 1)
    rack.links[0].fail("write 1: retry exceeded error")
    until(lambda: rack.links[0].halts == 2)
    looked(pair[0], rack.links[0])  # so it is through with both ends
    assert [rank for rank, _ in said(rack, control.Resume)] == [1]
    assert not said(rack, control.Broken)
    assert pair[0].error is None


def test_a_leave_during_a_resume_waits_for_it(pair: list[Progress], rack: Rack) -> None:
    rack.links[0].unreachable = 1000
    rack.halt()
    until(lambda: rack.epoch == 2)
    pair[0].leave()
    tries = rack.links[0].unreachable
    until(lambda: rack.links[0].unreachable < tries - 1)
    assert not said(rack, control.Leave)
    rack.links[0].unreachable = 1
    until(lambda: said(rack, control.Leave))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options", [codecs.Thc(g=20, p=0.01), codecs.TopK(0.05, "fixed32")], ids=["thc", "topk"]
)
def test_void_rounds_change_neither_sums_nor_residuals(options: codecs.Options, seed: int) -> None:
    """Stored bytes are sent again, so nothing is drawn twice; what is pending waits for the round that was accepted."""
    elems, outcomes = 4 * 1024 + 99, []
    table = options.build(0, 2, 0).table
    # Slots of one block of thc, and of more than a chunk that sparse sends in one round.
    rack_of = {"tables": {"lut4_u8": table}, "data": (3, 1024)} if table else {"data": (3, 6000)}
    for faults in (0, 6):
        rack = Rack(2, small=(2, 16), **rack_of)  # type: ignore[arg-type]
        both = [progress_of(rack, rank) for rank in range(2)]
        feedbacks = [codecs.ErrorFeedback(elems) for _ in both]
        tensors = [
            np.random.default_rng(rank).normal(size=(8, elems)).astype(np.float32) for rank in range(2)
        ]
        works = []
        for rank, progress in enumerate(both):
            progress.start()
            for step, tensor in enumerate(tensors[rank]):
                works.append(Work(tensor, step))
                codec = options.build(rank, 2, 0)
                progress.submit(tensor, codec, works[-1], feedbacks[rank] if step == 7 else None)
        chance = random.Random(seed)
        for _ in range(faults):
            epoch = rack.epoch
            with rack.lock:
                rack.mute = {rank for rank in range(2) if chance.random() < 0.5}
                rack.deaf = {rank for rank in range(2) if chance.random() < 0.5}
            time.sleep(chance.random() * 0.005)
            rack.halt()
            until(lambda: rack.epoch > epoch)  # noqa: B023
        assert all(work.wait(PATIENCE_S) for work in works)
        for progress in both:
            progress.end(SessionClosed("the test is over"))
            assert progress.wait_ended(PATIENCE_S)
        outcomes.append([*(t.tobytes() for t in tensors), *(f.residual.tobytes() for f in feedbacks)])
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == outcomes[0][1]


class Recorder:
    """A pool that remembers what is written."""

    index, window, chunk_bytes, va_base = 0, 4, 16, 0

    def __init__(self) -> None:
        self.contributions = self.results = [memoryview(bytearray(16)) for _ in range(4)]
        self.written: list[tuple[int, int, int]] = []

    def can_write(self) -> bool:
        return True

    def post_receive(self) -> None:
        pass

    def write(self, slot: int, length_bytes: int, remote_address: int, immediate: int) -> None:
        self.written.append((slot, remote_address >> 24 & 0xFFFFFFFF, immediate))


@pytest.mark.parametrize("first", [0, 2**32 - 2])
def test_void_rounds_are_written_again_from_their_slots(first: int) -> None:
    pool = Recorder()
    line = Line(pool, op_windows(OPS))
    line.rounds_written = line.rounds_drained = first
    four = Collective(np.ones(4 * pool.chunk_bytes // 4, np.float32), codecs.SUM_F32, 0, lambda: None)
    [(_, stream)] = four.streams([line], line)
    line.enter(stream)
    while line.advance():
        pass
    once = pool.written.copy()
    assert [round_ for _, round_, _ in once] == [(first + i) % 2**32 for i in range(4)]
    line.write_again((first + 1) % 2**32)
    assert pool.written == once + once[1:]
    line.write_again((first + 4) % 2**32)
    assert pool.written == once + once[1:]
    with pytest.raises(EpochEnded, match=r"complete rounds of pool 0, this worker has written"):
        line.write_again((first + 5) % 2**32)
    with pytest.raises(EpochEnded, match=r"complete rounds of pool 0, this worker has written"):
        line.write_again((first - 1) % 2**32)


def test_an_offer_of_another_shape_is_refused(pair: list[Progress], rack: Rack) -> None:
    work = submit(pair[0], np.ones(4, np.float32))
    rack.pool_sizes = [(8, 64), (2, 16)]
    rack.halt()
    with pytest.raises(Exception, match=r"resumes with an MTU, pools.*\(0, 8, 64\).*\(0, 4, 64\)"):
        work.wait(PATIENCE_S)


def test_an_offer_with_another_table_is_refused(pair: list[Progress], rack: Rack) -> None:
    work = submit(pair[0], np.ones(4, np.float32))
    rack.tables = {"lut2_u8": (0, 1, 2, 2)}
    rack.halt()
    with pytest.raises(Exception, match=r"tables .*'lut2_u8': .*the job began with"):
        work.wait(PATIENCE_S)


@pytest.mark.parametrize("deadline_s, exponent", [(0.1, 14), (5.0, 16), (16.0, 17), (600.0, 18)])
def test_retries_end_well_before_the_deadline(deadline_s: float, exponent: int) -> None:
    assert timeout_exponent(deadline_s) == exponent
    assert 7 * 4.096e-6 * 2**exponent <= max(0.4 * deadline_s, 0.5)
