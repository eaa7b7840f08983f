"""The codec lhc in one phase: sizes that follow from earlier unions, alike on all ranks whatever each has drained, and
sums that are exact whether they were right or not.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pascaline import codec as codecs
from pascaline.codec.lhc import Params, buckets
from pascaline.codec.lhc.sizes import Expected
from pascaline.errors import ConfigurationError, SessionClosed
from pascaline.reduce import Collective, Line, op_windows

from .lhc_rack import KINDS, dense, drawn, inexact
from .lockstep import Reduced, reduce_chunk
from .rack import OPS, PATIENCE_S, Rack
from .test_epochs import progress_of, submit, until
from .test_reduce import Worker, run
from .test_rounds import Delayed

SEED = 0xDEADBEEF12345678
ONE_PHASE = codecs.Lhc(phases=1)
ELEMS = 40_000


def ranks_of(n: int, permille: int = 1300) -> list[codecs.Codec]:
    """One for each rank: what they remember is their own."""
    return [codecs.Lhc(permille, phases=1).build(rank, n, SEED) for rank in range(n)]


class Steps:
    """One tensor, step after step."""

    def __init__(self, n: int = 2, permille: int = 1300) -> None:
        self.ranks, self.step = ranks_of(n, permille), 0

    def reduce(self, xs: list[np.ndarray]) -> Reduced:
        """The sum is the dense one on every rank."""
        self.step += 1
        got = reduce_chunk(self.ranks, xs, sequence=self.step)
        assert [inexact(values, dense(xs)) for values in got.values] == [0] * len(xs)
        return got

    def drawn(self, share: float, elems: int = ELEMS, kind: str = "independent") -> Reduced:
        rng = np.random.default_rng(self.step)
        return self.reduce(drawn(rng, KINDS[kind](rng, elems, share, len(self.ranks))))


def encoding(got: Reduced) -> str:
    [found] = {outcome.encoding for outcome in got.outcomes}
    return found


# ---- Sizes ----


def test_what_is_expected():
    """By hand: half of the way, a quarter of the deviation's; and never less than what came last."""
    first = Expected.first(800)
    assert (first.mean / 16, first.deviation / 16, first.elems) == (800, 100, 1000)
    second = first.after(1000)
    assert (second.mean / 16, second.deviation / 16, second.elems) == (900, 125, 1150)
    third = second.after(100)
    assert (third.mean / 16, third.deviation / 16, third.elems) == (500, 293.75, 1087)
    assert Expected.first(10).after(1000).elems == 1001  # 505, and twice 248.4
    assert Expected.first(0).elems == 0


@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=40))
def test_what_has_come_fits_the_next_time(unions):
    expected = Expected.first(unions[0])
    for union in unions[1:]:
        expected = expected.after(union)
        assert expected.elems >= union
        assert isinstance(expected.mean, int) and isinstance(expected.deviation, int)


def test_a_size_that_stays_is_soon_not_exceeded():
    expected = Expected.first(1000)
    for _ in range(20):
        expected = expected.after(1000)
    assert 1000 <= expected.elems <= 1001


# ---- Law ----


def test_first_two_phases_and_then_one():
    steps = Steps()
    got = steps.drawn(0.05)
    union = int(np.count_nonzero(got.values[0]))  # random floats do not cancel
    assert [op for op, _ in got.travelled] == ["or_u32", "sum_i32"]
    expected = Expected.first(union)
    for _ in range(6):
        got = steps.drawn(0.05)
        assert got.travelled == [
            ("or_u32", 5000),
            ("sum_i32", 4 * buckets(Params(SEED).rows(expected.elems))),
        ]
        assert encoding(got) == "sketch"
        expected = expected.after(int(np.count_nonzero(got.values[0])))


def test_a_support_that_jumps_is_repaired_once_and_fits_then():
    steps = Steps()
    for share, wanted in (
        (0.02, "sketch"),
        (0.02, "sketch"),
        (0.2, "sketch and repair"),
        (0.2, "sketch"),
        (0.001, "sketch"),
        (0.2, "sketch"),
        (0.5, "sketch and repair"),
        (0.5, "sketch"),
        (0.9, "sketch and repair"),
        (0.9, "dense"),
        (0.01, "dense"),
    ):
        got = steps.drawn(share)
        assert encoding(got) == wanted, share
        assert len(got.travelled) == {"sketch": 2, "sketch and repair": 3, "dense": 1}[wanted]
    for _ in range(12):
        got = steps.drawn(0.01)
    assert encoding(got) == "sketch"  # what was dense is so no more
    assert got.bytes_up < 0.15 * 4 * ELEMS


def test_a_union_that_grows_and_grows_is_followed():
    steps, seen = Steps(), []
    for step in range(25):
        seen.append(encoding(steps.drawn(0.02 * 1.06**step)))
    assert seen.count("sketch") == 25


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3, 16])
def test_supports(kind, n):
    steps = Steps(n)
    for share in (0.01, 0.05, 0.05, 0.001):
        steps.drawn(share, 20_000, kind)


def test_too_few_buckets_are_repaired_in_every_step():
    steps = Steps(permille=700)
    assert [encoding(steps.drawn(0.05)) for _ in range(4)] == ["sketch and repair"] * 4


def test_zeros_and_what_is_no_number_are_remembered_as_what_they_tell():
    steps, zeros = Steps(), [np.zeros(ELEMS, np.float32)] * 2
    unions = [int(np.count_nonzero(steps.drawn(0.05).values[0])) for _ in range(2)]
    bad = [np.ones(ELEMS, np.float32)] * 2
    bad[1] = bad[1].copy()
    bad[1][7] = np.nan
    assert steps.reduce(bad).travelled == []
    rows = Params(SEED).rows(Expected.first(unions[0]).after(unions[1]).elems)
    assert steps.drawn(0.05).travelled[1][1] == 4 * buckets(rows)  # nothing was learnt
    assert steps.reduce(zeros).travelled == []
    assert encoding(steps.drawn(0.05)) == "sketch"  # one step without any is no new habit
    first = Steps()
    assert first.reduce(zeros).travelled == []
    assert encoding(first.drawn(0.05)) == "sketch and repair"
    assert encoding(first.drawn(0.05)) == "sketch"


def test_a_dense_chunk_tells_its_size_without_an_index():
    steps = Steps()
    full = [np.ones(500, np.float32)] * 2
    assert [steps.reduce(full).travelled[-1:] for _ in range(3)] == [[("sum_i32", 2000)]] * 3
    for _ in range(12):
        got = steps.drawn(0.02, 500)
    assert encoding(got) == "sketch"


@pytest.mark.parametrize("elems", [1, 31, 95, 130, 1000])
def test_short_tensors(elems):
    steps = Steps()
    for share in (0.05, 0.5, 0.02, 1.0, 0.05, 0.05):
        steps.drawn(share, elems)


def test_options():
    assert codecs.describe(ONE_PHASE, 0) == "lhc phases 1"
    with pytest.raises(ConfigurationError, match="lhc takes 1 or 2 phases, not 3"):
        codecs.Lhc(phases=3)  # type: ignore[arg-type]


# ---- Ranks that have not drained the same ----

CHUNK_ELEMS = 1024
calls = st.lists(
    st.tuples(
        st.sampled_from([700, 2000, 3000]),
        st.sampled_from(["lhc", "lhc", "lhc", "f32", "fixed32"]),
        st.sampled_from(["", "a"]),
        st.sampled_from([0, 0.01, 0.1, 1]),
    ),
    min_size=1,
    max_size=8,
)


def workers_of(rack: Rack) -> list[Worker]:
    n = rack.world_size
    return [
        Worker(
            rank,
            rack,
            rack.lines(rank),
            {
                "f32": codecs.SUM_F32,
                "fixed32": codecs.Fixed32(n),
                "lhc": ONE_PHASE.build(rank, n, SEED),
            },
        )
        for rank in range(n)
    ]


def sparse(rng: np.random.Generator, elems: int, density: float) -> np.ndarray:
    return (rng.integers(-1000, 1000, elems) * (rng.random(elems) < density)).astype(np.float32)


@given(calls, st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), st.integers())
@settings(max_examples=60, deadline=None)
def test_any_calls_in_any_turn_order_are_summed_in_place(calls, world_size, window, lanes, seed):
    """The rack holds all ranks to one sequence of (op, length, immediate), over any number of lanes."""
    rack = Rack(world_size, data=(window, CHUNK_ELEMS * 4), small=(1, 8), lanes=lanes)
    workers, order = workers_of(rack), random.Random(seed)
    rng = np.random.default_rng(seed & 0xFFFF)
    inputs, tensors = [], []
    for sequence, (elems, codec, name, density) in enumerate(calls):
        inputs.append([sparse(rng, elems, density) for _ in workers])
        tensors.append([x.copy() for x in inputs[-1]])
        for worker in workers:
            worker.call(tensors[-1][worker.rank], codec, sequence, name=name)
            for _ in range(order.randrange(3)):
                worker.turn()
    run(workers, order)
    for given_, got in zip(inputs, tensors, strict=True):
        for tensor in got:
            np.testing.assert_array_equal(tensor, sum(given_))
    assert all(sorted(worker.done) == list(range(len(calls))) for worker in workers)
    assert not any(worker.codecs["lhc"]._open or worker.codecs["lhc"]._indexes for worker in workers)


def test_a_sketch_waits_for_what_it_is_made_for():
    """Three calls at once over two lanes: nobody guesses what it has not drained and another rank may have."""
    rack = Rack(2, data=(8, 4 * CHUNK_ELEMS), small=(4, 8), lanes=2)
    first, second = workers_of(rack)
    rng = np.random.default_rng(0)
    xs = [[sparse(rng, CHUNK_ELEMS, 0.1) for _ in range(2)] for _ in range(3)]
    for worker in (first, second):
        for sequence in range(3):
            worker.call(xs[sequence][worker.rank], "lhc", sequence)
    for worker in (first, second) * 4:  # all scales come
        while worker.lines[-1].advance():
            pass
        for result in rack.links[worker.rank].completions():
            worker.lines[result.pool].arrived(result)
    for line in (*first.lines, *second.lines):
        while line.advance():
            pass
    written = [[line.rounds_written for line in worker.lines[:-1]] for worker in (first, second)]
    assert written == [[1, 0], [1, 0]]  # the first call's index; the second call is for the other lane
    first.turn()
    written = [[line.rounds_written for line in worker.lines[:-1]] for worker in (first, second)]
    assert written == [[2, 2], [1, 0]]
    run([first, second], random.Random(0))
    assert first.done == second.done == [0, 1, 2]


def test_tensors_are_told_apart_by_their_names_and_sizes():
    rack = Rack(1, data=(8, 4 * CHUNK_ELEMS), small=(4, 8))
    [worker] = workers_of(rack)
    order = [("a", 0.02), ("b", 0.2)] * 3
    sent = []
    for sequence, (name, density) in enumerate(order):
        before = worker.lines[0].bytes_sent
        x = sparse(np.random.default_rng(sequence), CHUNK_ELEMS, density)
        worker.call(x, "lhc", sequence, name=name)
        run([worker], random.Random(0))
        sent.append(worker.lines[0].bytes_sent - before)
    assert max(sent[2::2]) < 0.6 * min(sent[3::2])


def test_tensors_that_nobody_reduces_any_more_are_forgotten(monkeypatch):
    monkeypatch.setattr("pascaline.codec.lhc.codec._TENSORS", 3)
    [codec] = ranks_of(1)
    rng = np.random.default_rng(0)
    for sequence, elems in enumerate((1000, 1001, 1000, 1002, 1003, 1000, 1001)):
        got = reduce_chunk([codec], [sparse(rng, elems, 0.02)], sequence=sequence)
        size = 4 * buckets(Params(SEED).rows(int(np.count_nonzero(got.values[0]))))
        if sequence in (2, 5):
            assert got.travelled[1][1] >= size
    assert [elems for _, elems in codec._last] == [1003, 1000, 1001]


def test_a_new_epoch_sizes_nothing_again():
    """Results and contributions are lost while a tensor is reduced again and again: stored bytes are written again."""
    rack, chance = Rack(2, data=(4, 4 * CHUNK_ELEMS), small=(2, 16), lanes=2), random.Random(5)
    both = [progress_of(rack, rank) for rank in range(2)]
    rng = np.random.default_rng(5)
    inputs = [[sparse(rng, 3000, 0.03 * (1 + step % 3)) for step in range(8)] for _ in both]
    tensors = [[x.copy() for x in row] for row in inputs]
    ranks = ranks_of(2)
    for progress in both:
        progress.start()
    try:
        works = [
            submit(progress, tensor, sequence, codec)
            for progress, row, codec in zip(both, tensors, ranks, strict=True)
            for sequence, tensor in enumerate(row)
        ]
        for _ in range(5):
            with rack.lock:
                rack.deaf |= {rank for rank in range(2) if chance.random() < 0.5}
                rack.mute |= {rank for rank in range(2) if chance.random() < 0.5}
            epoch = rack.epoch
            rack.halt()
            until(lambda epoch=epoch: rack.epoch > epoch)
        assert all(work.wait(PATIENCE_S) for work in works)
    finally:
        for progress in both:
            progress.end(SessionClosed("the test is over"))
            assert progress.wait_ended(PATIENCE_S)
    for first, second, *got in zip(*inputs, *tensors, strict=True):
        for tensor in got:
            np.testing.assert_array_equal(tensor, first + second)


# ---- What it is for ----


def timeline(options: codecs.Lhc, chunks: int, window: int = 4) -> tuple[str, int]:
    """The second reduction of a tensor, on a wire that holds a window: its messages, one column each, and when the sum
    is there, the round of the scales included.
    """
    data, small = Delayed(window, 4 * CHUNK_ELEMS, window), Delayed(2, 4096, window)
    small.index = 1
    lines = [Line(data, op_windows(OPS)), Line(small, op_windows(OPS))]
    codec, done = options.build(0, 1, SEED), []
    x = sparse(np.random.default_rng(1), chunks * CHUNK_ELEMS, 0.05)
    begun = 0
    for sequence in range(2):
        begun = data.tick
        collective = Collective(x.copy(), codec, sequence, lambda: done.append(data.tick))
        for line, stream in collective.streams(lines[:1], lines[1]):
            line.enter(stream)
        while any(line.busy() for line in lines):
            for pool, line in zip((data, small), lines, strict=True):
                while (result := pool.due()) is not None:
                    line.arrived(result)
            for pool, line in zip((data, small), lines, strict=True):
                line.advance()
                pool.tick += 1
    columns = ["."] * (data.trace[-1][0] - begun + 1)
    seen: dict[str, int] = {}
    for tick, op, _ in itertools.dropwhile(lambda one: one[0] < begun, data.trace):
        letter = "i" if op == "or_u32" else "s"
        columns[tick - begun] = f"{letter}{seen.setdefault(letter, 0)}"
        seen[letter] += 1
    return " ".join(columns), done[-1] - begun


def test_one_latency_less():
    """As docs/lhc.md shows it."""
    assert timeline(codecs.Lhc(2000), 1) == (". . . . i0 . . . s0", 12)
    assert timeline(codecs.Lhc(2000, phases=1), 1) == (". . . . i0 s0", 9)
    two, two_done = timeline(codecs.Lhc(2000), 4)
    one, one_done = timeline(codecs.Lhc(2000, phases=1), 4)
    assert one == ". . . . i0 s0 i1 s1 i2 s2 i3 s3"
    assert two == ". . . . i0 i1 i2 . s0 i3 s1 s2 . s3"
    assert (two_done, one_done) == (17, 15)
    for chunks, window in ((1, 8), (2, 4), (2, 8), (8, 8), (16, 4)):
        assert (
            timeline(codecs.Lhc(2000), chunks, window)[1]
            > timeline(codecs.Lhc(2000, phases=1), chunks, window)[1]
        )
