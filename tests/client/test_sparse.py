"""The codec sparse against docs/sparse.md: what travels, what it comes to, and what it costs where it does not pay."""

from __future__ import annotations

import math
import random
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pascaline import codec as codecs
from pascaline.codec import sparse as sparse_room
from pascaline.codec.measure import Measure
from pascaline.codec.sparse import codec as sparse_codec
from pascaline.codec.sparse import reference
from pascaline.errors import ConfigurationError
from pascaline.reduce import Collective

from .lockstep import reduce_chunk
from .rack import Rack
from .test_reduce import run, workers_of

GROUP = 32


def ranks_of(options: codecs.Options, n: int) -> list[codecs.Codec]:
    return [options.build(rank, n, 0) for rank in range(n)]


def drawn(seed: int, n: int, elems: int, density: float, support: str = "independent") -> list[np.ndarray]:
    """Integers, so that every order of additions is exact."""
    rng = np.random.default_rng(seed)
    common = rng.random(elems) < density
    rows = np.repeat(rng.random(-(-elems // 64)) < density, 64)[:elems]
    chosen = {
        "independent": lambda: rng.random(elems) < density,
        "identical": lambda: common,
        "shared": lambda: np.where(rng.random(elems) < 0.8, common, rng.random(elems) < density),
        "rows": lambda: rows,
    }[support]
    return [np.where(chosen(), rng.integers(1, 1000, elems), 0).astype(np.float32) for _ in range(n)]


def plain(xs: list[np.ndarray]) -> np.ndarray:
    total = xs[0].copy()
    for x in xs[1:]:
        total += x
    return total


@given(
    st.integers(1, 2200),
    st.integers(1, 5),
    st.sampled_from([0, 0.003, 0.05, 0.5, 1.0]),
    st.sampled_from(["independent", "identical", "shared", "rows"]),
    st.sampled_from(["f32", "fixed32"]),
    st.integers(0, 1 << 16),
)
@settings(max_examples=300, deadline=None)
def test_the_sum_is_the_dense_codec_s(
    elems: int, n: int, density: float, support: str, values: str, seed: int
) -> None:
    xs = drawn(seed, n, elems, density, support)
    ranks = [sparse_room.SparseCodec("sparse", values, n, direct_elems=seed % 2 * 1024) for _ in range(n)]  # type: ignore[arg-type]
    got = reduce_chunk(ranks, xs)
    dense = reduce_chunk(ranks_of(codecs.resolve(values), n), xs)
    for one, other in zip(got.values, dense.values, strict=True):
        assert one.tobytes() == other.tobytes()
    assert got.outcomes[0].kept == (np.count_nonzero(xs[0]) if got.outcomes[0].encoding != "nothing" else 0)


def cost(elems: int, xs: list[np.ndarray]) -> dict[str, int]:
    """Bytes of each encoding, straight from the specification."""
    union = np.logical_or.reduce([x != 0 for x in xs])
    groups = [union[begin : begin + GROUP] for begin in range(0, elems, GROUP)]
    occupied = [group for group in groups if group.any()]
    index = 4 + 4 * -(-len(groups) // 32)
    return {
        "nothing": index,
        "bitmap": index + 4 * len(occupied) + 4 * int(union.sum()),
        "rows": index + 4 * sum(map(len, occupied)),
        "dense": index + 4 * elems,
    }


@pytest.mark.parametrize("support", ["independent", "shared", "rows"])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.03, 0.3, 0.97, 0.99, 1.0])
def test_the_smallest_encoding_is_chosen_and_counted(density: float, support: str) -> None:
    elems = 64 * 1024 + 32 * 3 + 5
    xs = drawn(7, 3, elems, density, support)
    got = reduce_chunk(ranks_of(codecs.Sparse(), 3), xs)
    [encoding] = {one.encoding for one in got.outcomes}
    costs = cost(elems, xs)
    assert got.bytes_up == costs[encoding]
    possible = costs if encoding == "nothing" else {key: costs[key] for key in ("bitmap", "rows", "dense")}
    assert got.bytes_up <= 1.04 * min(possible.values())  # what a rank cannot know of the others' zeros
    assert got.bytes_up <= 1.05 * 4 * elems


def test_each_encoding_where_it_belongs() -> None:
    elems, n = 32 * 1024, 2
    table = np.zeros((512, 64), np.float32)
    table[[3, 77, 200]] = np.random.default_rng(1).normal(size=(3, 64))
    cases = {
        "nothing": np.zeros(elems, np.float32),
        "bitmap": drawn(1, 1, elems, 0.05)[0],
        "rows": table.reshape(-1),
        "dense": np.ones(elems, np.float32),
        "dense ": np.where(np.arange(elems) % 999 < 12, 0, 1).astype(np.float32),  # zeros in a row: ragged
    }
    lengths = {
        "nothing": [132],
        "bitmap": [132, None, None],
        "rows": [132, 3 * 64 * 4],
        "dense": [132, 4 * elems],
        "dense ": [132, 4 * elems],
    }
    for encoding, x in cases.items():
        got = reduce_chunk(ranks_of(codecs.Sparse(), n), [x, x])
        assert got.outcomes == [codecs.Outcome(np.count_nonzero(x), encoding.strip())] * n
        assert [b for _, b in got.travelled] == [
            b or g for b, (_, g) in zip(lengths[encoding], got.travelled, strict=True)
        ]
        assert got.values[0].tobytes() == (x + x).tobytes()
    small = reduce_chunk(ranks_of(codecs.Sparse(), n), [np.zeros(1024, np.float32)] * n)
    assert small.travelled == [("sum_f32", 4096)]


@pytest.mark.parametrize("density", [0.01, 1.0])
def test_what_is_no_number_and_what_is_no_zero(density: float) -> None:
    """NaN and Inf are values; -0.0 is zero, unless it travels because of another rank's value."""
    elems = 2048
    xs = drawn(3, 2, elems, density)
    for x, (a, b, c, d) in zip(xs, [(math.nan, math.inf, -0.0, -0.0), (1, -math.inf, -0.0, 5)], strict=True):
        x[[0, 100, 200, 300]] = a, b, c, d
    got = reduce_chunk(ranks_of(codecs.Sparse(), 2), xs).values[0]
    with np.errstate(all="ignore"):
        expected = plain(xs)
    assert math.isnan(got[0]) and math.isnan(got[100])  # Inf - Inf
    assert got[200] == 0 and got[300] == 5
    assert density == 1.0 or not math.copysign(1, got[200]) < 0
    rest = np.setdiff1d(np.arange(elems), [0, 100, 200])
    assert got[rest].tobytes() == expected[rest].tobytes()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("options", [codecs.Sparse("fixed32"), codecs.TopK(1 / 4, "fixed32")], ids=str)
def test_fixed32_values_that_are_no_number_travel_as_a_scale_alone(
    options: codecs.Options, bad: float
) -> None:
    xs = drawn(5, 2, 3000, 0.1)
    xs[1][77] = bad
    carries = [codecs.Carry(np.full(3000, 0.5, np.float32), np.full(3000, 9, np.float32)) for _ in xs]
    got = reduce_chunk(ranks_of(options, 2), xs, carries if options.error_feedback else None)
    assert got.travelled == []
    np.testing.assert_array_equal(got.values[0], np.full(3000, bad, np.float32))
    if options.error_feedback:
        assert all(carry.pending.tolist() == [0.5] * 3000 for carry in carries)  # type: ignore[union-attr]
    zeros = reduce_chunk(ranks_of(options, 2), [np.zeros(3000, np.float32)] * 2)
    assert zeros.travelled == [] and not zeros.values[0].any()


# ---- Sparsifiers ----


SPARSIFIED = [
    codecs.TopK(),
    codecs.TopK(0.02),
    codecs.TopK(1.0),
    codecs.TopK(0.05, "fixed32"),
    codecs.Threshold(0.8),
    codecs.Threshold(100.0),
]


@pytest.mark.parametrize("options", SPARSIFIED, ids=str)
@pytest.mark.parametrize("elems", [1, 10, 1501, 40_000])
@pytest.mark.parametrize("loss_scale", [1.0, 256.0])
def test_what_is_sent_and_what_is_pending_are_x(
    options: codecs.Options, elems: int, loss_scale: float
) -> None:
    """Of two ranks that choose different values: what either has chosen both send, and nothing of it is pending."""
    rng = np.random.default_rng(elems)
    values, residuals, pendings = rng.normal(size=(3, 2, elems)).astype(np.float32)
    carries = [codecs.Carry(old, new, loss_scale) for old, new in zip(residuals, pendings, strict=True)]
    xs = values + residuals * np.float32(loss_scale)
    got = reduce_chunk(ranks_of(options, 2), list(values), carries)
    union = pendings[0] == 0
    sent = np.where(union, xs, 0)
    assert (pendings[1] == 0).tolist() == union.tolist()
    assert (pendings * np.float32(loss_scale)).tobytes() == (xs - sent).tobytes()
    for x, outcome in zip(np.abs(xs), got.outcomes, strict=True):
        assert union[np.argsort(x)[elems - outcome.kept :]].all()
    assert max(one.kept for one in got.outcomes) <= union.sum() <= sum(one.kept for one in got.outcomes)
    assert elems > sparse_codec.DIRECT_ELEMS or all(one.kept == elems for one in got.outcomes)
    tolerance = 0 if options.values == "f32" else 1e-6 * np.abs(xs).max()  # type: ignore[attr-defined]
    np.testing.assert_allclose(got.values[0], sent[0] + sent[1], rtol=0, atol=tolerance)


def test_topk_sends_the_largest_share_and_keeps_a_step_that_is_void() -> None:
    ranks = [
        sparse_room.SparseCodec("topk", "f32", 2, sparse_room.Share(0.3), direct_elems=0) for _ in range(2)
    ]
    x = np.array([1, -9, 2, 8, -3, 7, 4, -5, 6, 0.5], np.float32)
    residual, pending = np.full(10, 0.25, np.float32), np.full(10, 77, np.float32)
    carry = codecs.Carry(residual, pending)
    got = reduce_chunk(ranks[:1], [x], [carry])
    assert np.flatnonzero(got.values[0]).tolist() == [1, 3, 5] and got.outcomes[0].kept == 3
    assert pending.tolist() == [1.25, 0, 2.25, 0, -2.75, 0, 4.25, -4.75, 6.25, 0.75]
    other = np.zeros(10, np.float32)
    other[4] = math.inf
    reduce_chunk(ranks, [x, other], [carry, codecs.NOTHING])
    assert pending.tolist() == residual.tolist()
    other[4] = 7
    got = reduce_chunk(ranks, [x, other], [carry, codecs.NOTHING])
    assert np.flatnonzero(got.values[1]).tolist() == [1, 3, 4, 5] and got.values[1][4] == 7 - 2.75
    assert pending.tolist() == [1.25, 0, 2.25, 0, 0, 0, 4.25, -4.75, 6.25, 0.75]


def test_a_small_chunk_travels_whole_behind_a_sparsifier_too() -> None:
    x, residual, pending = np.random.default_rng(1).normal(size=(3, 1024)).astype(np.float32)
    got = reduce_chunk(ranks_of(codecs.TopK(0.01), 1), [x], [codecs.Carry(residual, pending)])
    assert got.travelled == [("sum_f32", 4096)] and got.outcomes == [codecs.Outcome(1024, "dense")]
    assert got.values[0].tobytes() == (x + residual).tobytes()
    assert not pending.any()


def test_a_topk_option_s_share() -> None:
    for share in (0, 1.5):
        with pytest.raises(ConfigurationError, match=f"share of the values above 0 and up to 1, not {share}"):
            codecs.TopK(share=share)


def test_a_threshold_is_estimated_once_and_used_again_while_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 values: their selection is never sorted, and a threshold that has become wrong is found anew."""
    partitioned = []
    monkeypatch.setattr(
        np, "partition", lambda x, k, real=np.partition: partitioned.append(x.size) or real(x, k)
    )
    share, elems = sparse_room.Share(0.01), 200_000
    rng, own = np.random.default_rng(2), np.empty(elems // 32, np.uint32)
    carry = codecs.ErrorFeedback(elems).carry(0, elems)
    for step in range(10):
        grown = 1 if step < 6 else 50
        x = rng.normal(size=elems).astype(np.float32) * np.float32(grown)
        count = share.choose(sparse_codec.fastest(), codecs.Place(step, 0, elems), x, carry, own)
        assert 0.6 * 2000 <= count <= 1.6 * 2000
        assert count == reference.count(own)
    assert 2 <= len(partitioned) <= 6 and max(partitioned) < 9000


@pytest.mark.parametrize("pattern", ["ties", "columns", "zeros"])
def test_a_share_of_values_in_a_pattern(pattern: str) -> None:
    elems = 64 * 1024
    x = {
        "ties": np.ones(elems),
        "columns": np.tile([1.0, *[0.001] * 63], elems // 64)
        * np.random.default_rng(1).uniform(0.5, 1, elems),
        "zeros": np.where(np.arange(elems) % 1000 == 0, 1.0, 0),
    }[pattern].astype(np.float32)
    own = np.empty(elems // 32, np.uint32)
    place = codecs.Place(0, 0, elems)
    count = sparse_room.Share(1 / 64).choose(sparse_codec.fastest(), place, x, codecs.NOTHING, own)
    assert count == {"ties": elems, "columns": count, "zeros": 66}[pattern]
    assert pattern != "columns" or 0.6 * 1024 <= count <= 1.6 * 1024


# ---- Through reduce ----


def test_chunks_of_all_kinds_through_lines_in_any_order() -> None:
    """Slots of 2048 elements: tensors of several chunks, ranks out of step, residuals that are committed."""
    outcomes = []
    for seed in range(3):
        workers = workers_of(Rack(2, data=(3, 8192), small=(1, 8)))
        tensors = []
        for worker in workers:
            worker.codecs |= {
                name: options.build(worker.rank, 2, 0)
                for name, options in (
                    ("sparse", codecs.Sparse()),
                    ("exact", codecs.Sparse("fixed32")),
                    ("topk", codecs.TopK(1 / 20)),
                )
            }
        feedbacks = [codecs.ErrorFeedback(7000) for _ in workers]
        for sequence, (codec, density) in enumerate(
            [
                ("sparse", 0.01),
                ("f32", 1),
                ("exact", 0.2),
                ("topk", 1),
                ("sparse", 1),
                ("topk", 1),
                ("exact", 0),
            ]
        ):
            tensors.append(drawn(sequence, 2, 7000, density))
            for worker in workers:
                feedback = feedbacks[worker.rank] if codec == "topk" else None
                if feedback and feedback.residual.any():
                    assert codec == "topk"
                worker.call(tensors[-1][worker.rank], codec, sequence, feedback)
            if codec == "topk":
                run(workers, random.Random(seed))
        run(workers, random.Random(seed))
        assert all(one[0].tobytes() == one[1].tobytes() for one in tensors)
        outcomes.append([*(t[0].tobytes() for t in tensors), *(f.residual.tobytes() for f in feedbacks)])
    assert outcomes[0] == outcomes[1] == outcomes[2]
    for sequence, density in ((0, 0.01), (4, 1)):
        assert outcomes[0][sequence] == plain(drawn(sequence, 2, 7000, density)).tobytes()


@pytest.mark.parametrize("feedback", [True, False])
def test_two_tensors_of_equal_length_over_lanes_give_the_same_bits_in_every_run(feedback: bool) -> None:
    """Their chunks are chosen from in either order, and a threshold of one would do for the other."""
    elems, outcomes = 20_000, []
    for seed in range(4):
        workers, order = workers_of(Rack(2, data=(2, 40_000), lanes=2)), random.Random(seed)
        feedbacks = [[codecs.ErrorFeedback(elems) for _ in range(2)] for _ in workers]
        for worker in workers:
            worker.codecs["topk"] = codecs.TopK(1 / 20).build(worker.rank, 2, 0)
        sums = []
        for step in range(3):
            for which in range(2):
                sequence = 2 * step + which
                rng = np.random.default_rng(sequence)
                tensors = [rng.normal(0, 1 - which / 40, elems).astype(np.float32) for _ in workers]
                for worker in workers:
                    own = feedbacks[worker.rank][which] if feedback else None
                    worker.call(tensors[worker.rank], "topk", sequence, own)
                sums.append(tensors[0])
            while any(line.busy() for worker in workers for line in worker.lines):
                one = order.choice(workers)
                for result in one.rack.links[one.rank].completions():
                    one.lines[result.pool].arrived(result)
                order.choice(one.lines).advance()
        residuals = [one.residual.tobytes() for of_rank in feedbacks for one in of_rank]
        outcomes.append([*(x.tobytes() for x in sums), *residuals])
    assert all(one == outcomes[0] for one in outcomes)


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("options", [codecs.TopK(1 / 20), codecs.Threshold(100.0)], ids=str)
def test_a_rank_s_error_is_what_has_not_travelled_when_all_has(
    options: codecs.Options, feedback: bool
) -> None:
    """Known after the union is; and of a chunk in which no rank has chosen anything, after its index."""
    elems = 5000
    workers, measure = workers_of(Rack(2, data=(2, 4 * elems), small=(1, 8))), Measure()
    xs = list(np.random.default_rng(4).normal(size=(2, elems)).astype(np.float32))
    sums = [x.copy() for x in xs]
    for worker, values in zip(workers, sums, strict=True):
        codec = options.build(worker.rank, 2, 0)
        own = codecs.ErrorFeedback(elems) if feedback else None
        collective = Collective(values, codec, 0, lambda: None, own, None if worker.rank else measure)
        for line, messages in collective.streams(worker.lines[:-1], worker.lines[-1]):
            line.enter(messages)
    run(workers, random.Random(1))
    left_out = np.where(sums[0] == 0, xs[0], 0)
    unsent = np.count_nonzero(left_out)
    assert unsent == elems if isinstance(options, codecs.Threshold) else elems - 500 <= unsent < elems - 250
    stats = measure.stats()
    assert stats["measured"] == elems
    assert stats["nmse"] == pytest.approx(float((left_out**2).sum() / (xs[0] ** 2).sum()), rel=1e-5)


# ---- The wrong choice, and what is refused ----


def test_dense_gradients_are_told_which_codec_would_be_better() -> None:
    [codec] = ranks_of(codecs.Sparse(), 1)
    for _ in range(20):
        assert reduce_chunk([codec], [np.ones(1 << 16, np.float32)]).bytes_up <= 1.002 * (4 << 16)
    assert "codec sparse has sent 100% of what f32 would have" in codec.advice
    assert "codec='f32' is as small" in codec.advice
    [codec] = ranks_of(codecs.Sparse(), 1)
    for _ in range(20):
        reduce_chunk([codec], drawn(1, 1, 1 << 16, 0.2))
    assert codec.advice == ""


def test_ranks_with_different_elements_are_told_of_one_phase_by_exact_bytes() -> None:
    """What the sentence says is what one phase sends and receives; alike supports are not told, nor sparsifiers."""
    xs = drawn(1, 8, 1 << 16, 0.01)
    [two, *_] = ranks = ranks_of(codecs.Sparse(), 8)
    sent = [reduce_chunk(ranks, xs) for _ in range(17)][-1]
    one = reduce_chunk(ranks_of(codecs.Sparse(phases=1), 8), xs)
    share = (one.bytes_up + one.bytes_down) / (sent.bytes_up + sent.bytes_down)
    assert share < 0.75
    assert f"codec sparse in one phase would have sent and received {share:.0%} of its bytes" in two.advice
    for options, support in ((codecs.Sparse(), "identical"), (codecs.TopK(0.01), "independent")):
        ranks = ranks_of(options, 8)
        for _ in range(17):
            reduce_chunk(ranks, drawn(1, 8, 1 << 16, 0.01, support))
        assert ranks[0].advice == ""


def test_options_say_what_differs() -> None:
    said = [
        codecs.describe(options, 1)
        for options in (codecs.Sparse(), codecs.Sparse("fixed32"), codecs.TopK(0.25), codecs.Threshold(1e-3))
    ]
    assert said == [
        "sparse seed 1",
        "sparse values fixed32 seed 1",
        "topk share 0.25 seed 1",
        "threshold threshold 0.001 seed 1",
    ]
    with pytest.raises(ConfigurationError, match="sparse's values travel as 'f32' or 'fixed32', not 'f16'"):
        codecs.Sparse("f16")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="threshold is a finite number above 0, not 0"):
        codecs.Threshold(0)


def test_without_kernels_the_same_bits_come_slowly_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = [drawn(seed, 1, 5000, 0.03)[0] for seed in range(3)]
    fast = reduce_chunk(ranks_of(codecs.TopK(0.01), 3), xs)
    monkeypatch.setattr(sparse_codec.kernels, "available", lambda: False)
    monkeypatch.setattr(sparse_codec.kernels, "remedy", lambda: "install gcc")
    sparse_codec.fastest.cache_clear()
    try:
        with pytest.warns(UserWarning, match="sparse computes in numpy, many times slower: install gcc"):
            slow = ranks_of(codecs.TopK(0.01), 3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = reduce_chunk(slow, xs)
    finally:
        sparse_codec.fastest.cache_clear()
    assert got.travelled == fast.travelled
    assert [x.tobytes() for x in got.values] == [x.tobytes() for x in fast.values]
