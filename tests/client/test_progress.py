"""The progress thread over a rack in memory: calls queue, waits end, errors are typed, and nobody holds the GIL."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from pascaline import codec as codecs
from pascaline.contract import control
from pascaline.errors import EpochEnded, PascalineError, SessionClosed, Timeout
from pascaline.session.progress import Progress
from pascaline.session.work import Work

from .interrupt import ctrl_c
from .rack import PATIENCE_S, Rack

TIMEOUT_S = 60.0
"""Ends a round that nothing else ends."""


def progress_of(
    rack: Rack, rank: int, timeout_s: float = TIMEOUT_S, hang_up: Callable[[], None] = lambda: None
) -> Progress:
    lines = rack.lines(rank)
    epochs = rack.epochs_of(rank, lines)
    progress = Progress(rack.links[rank], lines, lines[:-1], lines[-1], timeout_s, epochs, hang_up)
    progress.start()
    return progress


@pytest.fixture
def rack() -> Iterator[Rack]:
    yield Rack(2)


@pytest.fixture
def pair(rack: Rack) -> Iterator[list[Progress]]:
    both = [progress_of(rack, rank) for rank in range(2)]
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


def test_many_in_flight_complete_in_order(pair: list[Progress]) -> None:
    tensors = [[np.full(size, rank + 1, np.float32) for size in range(1, 200, 7)] for rank in range(2)]
    works = [[submit(p, t, i) for i, t in enumerate(ts)] for p, ts in zip(pair, tensors, strict=True)]
    for row in works:
        for work in reversed(row):
            assert work.wait(PATIENCE_S)
    assert all((tensor == 3).all() for row in tensors for tensor in row)
    assert all(progress.wait_idle(PATIENCE_S) for progress in pair)


def test_fixed32_uses_both_lines(pair: list[Progress]) -> None:
    tensors = [np.linspace(-1, 1, 500, dtype=np.float32) for _ in pair]
    works = [submit(p, t, 0, codecs.Fixed32(2)) for p, t in zip(pair, tensors, strict=True)]
    assert all(work.wait(PATIENCE_S) for work in works)
    assert tensors[0].tobytes() == tensors[1].tobytes()
    np.testing.assert_allclose(tensors[0], 2 * np.linspace(-1, 1, 500), atol=1e-8)


def test_a_wait_can_time_out_and_the_work_goes_on(pair: list[Progress]) -> None:
    tensor = np.ones(3, np.float32)
    work = submit(pair[0], tensor)
    with pytest.raises(Timeout, match=r"all_reduce 0 has not completed within 0\.05 s"):
        work.wait(0.05)
    assert not work.is_completed()
    submit(pair[1], np.ones(3, np.float32))
    assert work.wait(PATIENCE_S)
    assert tensor.tolist() == [2, 2, 2]


def test_an_end_reaches_every_pending_work_and_every_later_call(pair: list[Progress], rack: Rack) -> None:
    works = [submit(pair[0], np.ones(100, np.float32), i) for i in range(5)]
    verdict = EpochEnded("rank 1 does not answer", "retry_exceeded", 1)
    pair[0].end(verdict)
    pair[0].end(EpochEnded("a later one", "stopping"))
    for work in works:
        with pytest.raises(EpochEnded, match="rank 1 does not answer"):
            work.wait(PATIENCE_S)
    assert rack.links[0].closed  # the flush came before the error
    with pytest.raises(EpochEnded) as caught:
        submit(pair[0], np.ones(1, np.float32))
    assert (caught.value.fault, caught.value.rank) == ("retry_exceeded", 1)


def test_a_rank_that_never_comes_is_named_by_the_deadline() -> None:
    rack = Rack(2)
    progress = progress_of(rack, 0, timeout_s=0.3)
    progress.now_waiting_for([1], "rank 1 (host trainer-02)")
    work = submit(progress, np.ones(1, np.float32), 17)
    with pytest.raises(
        Timeout, match=r"all_reduce 17 has waited .* \(limit 0\.3 s\) for rank 1 \(host trainer-02\)"
    ) as e:
        work.wait(PATIENCE_S)
    assert e.value.ranks == (1,)
    assert progress.wait_ended(PATIENCE_S)


def test_a_defect_ends_the_wait_too(pair: list[Progress]) -> None:
    class Broken(type(codecs.SUM_F32)):
        def encode(self, *_: object) -> None:
            raise ZeroDivisionError("a defect")

    work = submit(pair[0], np.ones(1, np.float32), 0, Broken("broken", "sum_f32", "<f4"))
    with pytest.raises(PascalineError, match=r"internal error.*a defect"):
        work.wait(PATIENCE_S)


def test_other_threads_run_while_a_round_waits(pair: list[Progress]) -> None:
    work = submit(pair[0], np.ones(1, np.float32))
    most = 0
    for _ in range(20):  # the machine may stand still in one stretch, not in all
        counted = 0
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            counted += 1
        most = max(most, counted)
        if most > 10_000:
            break
    assert most > 10_000
    assert not work.is_completed()


def test_ctrl_c_ends_a_wait(pair: list[Progress]) -> None:
    work = submit(pair[0], np.ones(1, np.float32))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), ctrl_c():
        work.wait()
    assert time.monotonic() - began < TIMEOUT_S / 2


def test_a_torch_future_carries_tensor_and_error(pair: list[Progress]) -> None:
    tensor = torch.ones(5)
    work = Work(tensor, 0)
    future = work.get_future()
    doubled = future.then(lambda f: f.value() * 2)
    pair[0].submit(tensor.numpy(), codecs.SUM_F32, work)
    submit(pair[1], np.ones(5, np.float32))
    assert doubled.wait().tolist() == [4.0] * 5
    assert work.get_future() is future

    failed = Work(tensor, 1)
    chained = failed.get_future().then(lambda f: f.value())
    pair[0].submit(tensor.numpy(), codecs.SUM_F32, failed)
    pair[0].end(EpochEnded("rank 1 is gone", "connection_lost", 1))
    with pytest.raises(Exception, match="rank 1 is gone"):
        chained.wait()


def test_a_future_of_a_completed_work_is_complete() -> None:
    work = Work(torch.ones(1), 0)
    work.complete()
    assert work.get_future().done()
    assert work.wait()


def test_a_wait_in_a_callback_is_refused_instead_of_hanging(pair: list[Progress]) -> None:
    first, second = Work(torch.ones(1), 0), Work(torch.ones(1), 1)
    chained = first.get_future().then(lambda _: second.wait(3))
    for sequence, work in enumerate((first, second)):
        pair[0].submit(np.ones(1, np.float32), codecs.SUM_F32, work)
        submit(pair[1], np.ones(1, np.float32), sequence)
    with pytest.raises(Exception, match=r"chain the next step with then\(\)"):
        chained.wait()
    assert second.wait(PATIENCE_S)


@pytest.mark.parametrize("defect", [False, True])
def test_an_end_that_was_decided_here_hangs_up(defect: bool) -> None:
    hung_up, rack = threading.Event(), Rack(2)
    progress = progress_of(rack, 0, timeout_s=0.3, hang_up=hung_up.set)
    if defect:
        rack.links[0].completions = None  # type: ignore[assignment,method-assign]
    with pytest.raises(PascalineError, match="internal error" if defect else "has waited"):
        submit(progress, np.ones(1, np.float32)).wait(PATIENCE_S)
    assert hung_up.wait(PATIENCE_S)
    assert progress.wait_ended(PATIENCE_S)


def test_leave_comes_after_what_was_submitted_before_it_and_nothing_is_taken_after_it() -> None:
    rack = Rack(1)
    lines = rack.lines(0)
    progress = Progress(
        rack.links[0], lines, lines[:-1], lines[-1], 20, rack.epochs_of(0, lines), lambda: None
    )
    work = submit(progress, np.ones(1, np.float32))
    turn = progress._turn

    def late_turn() -> None:  # what a submit between a turn and the leave looks like
        progress._turn = turn  # type: ignore[method-assign]

    progress._turn = late_turn  # type: ignore[method-assign]
    progress.leave()
    with pytest.raises(SessionClosed, match="is leaving"):
        submit(progress, np.ones(1, np.float32), 1)
    progress.start()
    assert work.wait(PATIENCE_S)
    progress.end(SessionClosed("the test is over"))
    assert progress.wait_ended(PATIENCE_S)
    assert rack.heard == [(0, control.Leave(received=[1, 0]))]


def test_each_raise_is_an_exception_of_its_own() -> None:
    verdict = EpochEnded("rank 1 is gone", "connection_lost", 1)
    caught = []
    for sequence in range(2):
        work = Work(None, sequence)
        work.complete(verdict)
        with pytest.raises(EpochEnded, match="rank 1 is gone") as info:
            work.wait()
        caught.append(info.value)
    assert caught[0] is not caught[1]
    assert [(e.fault, e.rank, e.__cause__) for e in caught] == [("connection_lost", 1, verdict)] * 2
    assert verdict.__traceback__ is None
    copied = pickle.loads(pickle.dumps(verdict))
    assert (type(copied), str(copied), copied.rank) == (EpochEnded, "rank 1 is gone", 1)
