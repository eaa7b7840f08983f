"""The codec sparse in one phase: streams of the ranks' own, whose sums have a length that the result alone tells."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pascaline
from pascaline import codec as codecs
from pascaline.codec.measure import Measure
from pascaline.codec.sparse import SparseCodec, stream
from pascaline.codec.sparse import codec as sparse_codec
from pascaline.codec.sparse.reference import bitmap_of, bits_of
from pascaline.contract import wire
from pascaline.errors import ConfigurationError, EpochEnded, SessionClosed
from pascaline.link import Result
from pascaline.link.emulated import streams
from pascaline.reduce import Collective

from .lockstep import reduce_chunk
from .processes import run_ranks
from .rack import PATIENCE_S, Rack
from .test_epochs import progress_of, submit, until
from .test_reduce import run, workers_of
from .test_sparse import drawn, plain, ranks_of

SUB_BLOCK = 2048
ONE_PHASE = codecs.Sparse(phases=1)
LENGTHS = [1, 2, 31, 33, SUB_BLOCK - 1, SUB_BLOCK, SUB_BLOCK + 1, 2 * SUB_BLOCK + 77]


def in_one_phase(n: int, values: str = "f32", direct_elems: int = 0) -> list[codecs.Codec]:
    """As the options make it, but for small chunks, which then are streams too."""
    return [SparseCodec("sparse", values, n, direct_elems=direct_elems, phases=1) for _ in range(n)]  # type: ignore[arg-type]


# ---- The stream ----


@given(
    st.sampled_from(LENGTHS) | st.integers(1, 9000),
    st.sampled_from([0, 0.001, 0.05, 0.6, 0.9995, 1]),
    st.integers(0, 999),
)
@settings(max_examples=100, deadline=None)
def test_a_stream_is_the_one_that_the_emulated_link_makes(elems: int, density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    there = rng.random(elems) < density
    there[: SUB_BLOCK * (seed % 2)] = True  # a sub-block that is full
    values = rng.integers(0, 1 << 32, elems, np.uint32)
    bitmap, packed = bitmap_of(there), values[there]
    made = np.full(stream.length_bytes(elems, bitmap), 0x55, np.uint8)
    stream.write(None, packed, bitmap, elems, made)
    assert made.tobytes() == streams.encode(there, values).tobytes()
    assert made.size <= stream.longest_bytes(elems)
    read_bitmap, read_values = stream.read(elems, made)
    assert (read_bitmap.tobytes(), read_values.tobytes()) == (bitmap.tobytes(), packed.tobytes())


def test_the_longest_stream_of_a_chunk_fits_its_slot() -> None:
    for slot in (4, 60, 64, 72, 76, 200, 4096, 8512, 8513, 1 << 19, wire.MAX_CHUNK_BYTES):
        elems = stream.chunk_elems(slot)
        assert elems == 0 or stream.longest_bytes(elems) <= slot
        assert elems % SUB_BLOCK == 0 or elems == wire.sub_block_elems_max(slot)
        assert elems or slot < 76
    # 0: one element short of full everywhere
    there = np.ones(3 * SUB_BLOCK, np.bool_)
    there[::SUB_BLOCK] = False
    assert streams.encode(there, np.ones(there.size, np.float32)).size == stream.longest_bytes(there.size)


def words(*parts: Any) -> np.ndarray:
    return np.concatenate([np.atleast_1d(np.asarray(part)).astype("<u4") for part in parts]).view(np.uint8)


ELEMS = SUB_BLOCK + 40
MALFORMED: dict[str, tuple[np.ndarray, str, str]] = {
    "nothing": (words([]), "elements_mismatch", "of 0 elements, 2088 were due"),
    "another length": (words(ELEMS - 1, 0, 0), "elements_mismatch", "of 2087 elements, 2088 were due"),
    "no head of the last": (words(ELEMS, 0), "stream_length", "of 8 bytes whose sub-blocks take 12"),
    "no values": (words(ELEMS, 0, 2, 3, 0, 9), "stream_length", "of 24 bytes whose sub-blocks take 28"),
    "no later one": (
        words(ELEMS, 1, [1] + [0] * 63),
        "stream_length",
        "of 264 bytes whose sub-blocks take 272",
    ),
    "too long": (words(ELEMS, 0, 0, 0), "stream_length", "of 16 bytes whose sub-blocks take 12"),
    "too many": (words(ELEMS, SUB_BLOCK + 1, 0), "sub_block", "of 2048 elements of which 2049 are there"),
    "too many in the last": (words(ELEMS, 0, 41), "sub_block", "of 40 elements of which 41 are there"),
    "another count": (words(ELEMS, 0, 2, 7, 0, 9, 9), "sub_block", "of 2 values whose bitmap has 3"),
    "beyond the end": (words(ELEMS, 0, 2, 1, 256, 9, 9), "sub_block", "of 40 elements whose bitmap has 41"),
}


@pytest.mark.parametrize("wrong", MALFORMED)
def test_a_result_that_is_no_stream_is_refused_before_a_value_is_written(wrong: str) -> None:
    """Through lines, as a completion brings it: the sum's place is as it was."""
    made, fault, sentence = MALFORMED[wrong]
    rack = Rack(1, data=(2, 17408), small=(1, 8))
    rack.mute = {0}
    [data, small] = rack.lines(0)
    tensor = drawn(1, 1, ELEMS, 0.05)[0]
    before = tensor.tobytes()
    for line, messages in Collective(tensor, ONE_PHASE.build(0, 1, 0), 0, lambda: None).streams(
        [data], small
    ):
        line.enter(messages)
    assert data.advance()
    np.frombuffer(rack.links[0].pools[0].results[0], np.uint8)[: made.size] = made
    immediate = wire.immediate(0, 0, wire.OPS["expand_sum_f32"], 4 * ELEMS, ELEMS)
    with pytest.raises(EpochEnded, match=sentence) as raised:
        data.arrived(Result(0, immediate, made.size))
    assert raised.value.fault == fault
    assert tensor.tobytes() == before


@pytest.mark.parametrize("length_bytes", [4 * (1 + ELEMS + 66) + 4, 10])
def test_a_result_of_no_possible_length_is_not_read(length_bytes: int) -> None:
    rack = Rack(1, data=(2, 17408), small=(1, 8))
    rack.mute = {0}
    [data, small] = rack.lines(0)
    tensor = np.ones(ELEMS, np.float32)
    [(line, messages)] = Collective(tensor, ONE_PHASE.build(0, 1, 0), 0, lambda: None).streams([data], small)
    line.enter(messages)
    assert data.advance()
    immediate = wire.immediate(0, 0, wire.OPS["expand_sum_f32"], 4 * ELEMS, ELEMS)
    with pytest.raises(EpochEnded, match=f"of {length_bytes} bytes .* up to 8620 bytes"):
        data.arrived(Result(0, immediate, length_bytes))


# ---- The sum ----


@given(
    st.sampled_from(LENGTHS) | st.integers(1, 5000),
    st.integers(1, 5),
    st.sampled_from([0, 0.003, 0.05, 0.5, 1.0]),
    st.sampled_from(["independent", "identical", "shared", "rows"]),
    st.sampled_from(["f32", "fixed32"]),
    st.integers(0, 1 << 16),
)
@settings(max_examples=100, deadline=None)
def test_the_sum_is_the_dense_codec_s(
    elems: int, n: int, density: float, support: str, values: str, seed: int
) -> None:
    xs = drawn(seed, n, elems, density, support)
    got = reduce_chunk(in_one_phase(n, values), xs)
    dense = reduce_chunk(ranks_of(codecs.resolve(values), n), xs)
    for one, other in zip(got.values, dense.values, strict=True):
        assert one.tobytes() == other.tobytes()
    union = np.logical_or.reduce([x != 0 for x in xs])
    if values == "f32" or union.any():
        of = {"f32": "f32", "fixed32": "i32"}[values]
        assert [op for op, _ in got.travelled] == [f"expand_sum_{of}"]
        assert {one.encoding for one in got.outcomes} == {"stream" if union.any() else "nothing"}
        assert got.bytes_up == streams.encode(xs[0] != 0, xs[0]).size
        assert got.bytes_down == streams.encode(union, xs[0]).size
    assert [one.kept for one in got.outcomes] == [np.count_nonzero(x) for x in xs]


@pytest.mark.parametrize("density", [0, 0.001, 0.01, 0.1, 0.3, 0.9, 1])
def test_bytes_are_the_formula_s(density: float) -> None:
    """1/8 + 4 k up and 1/8 + 4 rho down, within 1.6 % and the stream's first word; a dense chunk 1/2048 above dense."""
    elems, n = 48 * SUB_BLOCK, 4
    xs = drawn(9, n, elems, density)
    got = reduce_chunk(ranks_of(ONE_PHASE, n), xs)
    own = np.count_nonzero(xs[0]) / elems
    union = np.count_nonzero(np.logical_or.reduce([x != 0 for x in xs])) / elems
    for length, share in ((got.bytes_up, own), (got.bytes_down, union)):
        assert (length - 4) / elems <= (1 / 8 + 4 * share) * 1.016
        assert (length - 4) / elems <= 4 + 1 / 8
        assert share < 1 or length == 4 + 4 * elems + 4 * 48
        assert share > 0 or length == 4 + 4 * 48


def test_small_chunks_travel_as_they_are() -> None:
    xs = drawn(1, 2, 1024, 0.1)
    got = reduce_chunk(ranks_of(ONE_PHASE, 2), xs)
    assert got.travelled == [("sum_f32", 4096)]
    assert got.values[0].tobytes() == plain(xs).tobytes()


@pytest.mark.parametrize(
    "options", [codecs.TopK(0.02), codecs.TopK(0.3, "fixed32"), codecs.Threshold(1.5)], ids=str
)
@pytest.mark.parametrize("bad", [0, np.inf])
def test_sparsifiers_choose_the_same_as_in_two_phases_and_send_that_alone(options: Any, bad: float) -> None:
    """In two phases what others have chosen is sent too, and is not pending; in one nobody knows it beforehand."""
    rng = np.random.default_rng(2)
    xs, residuals = rng.normal(size=(2, 3, 5000)).astype(np.float32)
    xs[1][7] = bad or xs[1][7]
    got = {}
    for phases in (1, 2):
        chosen = type(options)(*(getattr(options, one) for one in options.__match_args__[:2]), phases=phases)
        pendings = np.full((3, 5000), 77, np.float32)
        carries = [codecs.Carry(old, new) for old, new in zip(residuals, pendings, strict=True)]
        reduced = reduce_chunk(ranks_of(chosen, 3), list(xs), carries)
        got[phases] = (reduced, pendings)
    (one, own), (two, left) = got[1], got[2]
    assert [outcome.kept for outcome in one.outcomes] == [outcome.kept for outcome in two.outcomes]
    if bad:  # nothing is known of what the ranks have said: all of it is owed again
        assert own.tobytes() == left.tobytes() == residuals.tobytes()
        return
    assert [op[:10] for op, _ in one.travelled] == ["expand_sum"]
    owed = xs + residuals
    said = np.where(own == 0, owed, 0)
    assert (said + own).tobytes() == owed.tobytes()
    union = said.any(axis=0)
    assert left.tobytes() == np.where(union, 0, owed).tobytes()
    tolerance = 0 if options.values == "f32" else 1e-6 * np.abs(owed).max()
    for reduced, sent in ((one, said), (two, np.where(union, owed, 0))):
        np.testing.assert_allclose(reduced.values[0], plain(list(sent)), rtol=0, atol=tolerance)


def test_dense_gradients_are_told_which_codec_would_be_better() -> None:
    [codec] = ranks_of(ONE_PHASE, 1)
    for _ in range(20):
        reduce_chunk([codec], [np.ones(1 << 16, np.float32)])
    assert "codec='f32' is as small, and codec='topk'" in codec.advice  # type: ignore[attr-defined]
    [codec] = ranks_of(ONE_PHASE, 1)
    for _ in range(20):
        reduce_chunk([codec], drawn(1, 1, 1 << 16, 0.2))
    assert codec.advice == ""


def test_options() -> None:
    assert codecs.describe(ONE_PHASE, 0) == "sparse phases 1"
    assert codecs.describe(codecs.TopK(0.25, phases=1), 0) == "topk share 0.25 phases 1"
    for make in (codecs.Sparse, codecs.TopK, lambda phases: codecs.Threshold(1, phases=phases)):
        with pytest.raises(ConfigurationError, match="takes 1 or 2 phases, not 3"):
            make(phases=3)  # type: ignore[arg-type]
    assert codecs.Sparse().phases == 2


def test_without_kernels_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = drawn(4, 3, 5000, 0.03)
    fast = reduce_chunk(in_one_phase(3), xs)
    slow = in_one_phase(3)
    for codec in slow:
        monkeypatch.setattr(codec, "_machine", sparse_codec.reference)
        monkeypatch.setattr(codec, "_streams", stream)
    got = reduce_chunk(slow, xs)
    assert (got.travelled, got.bytes_down) == (fast.travelled, fast.bytes_down)
    assert [x.tobytes() for x in got.values] == [x.tobytes() for x in fast.values]


def test_bitmaps_of_whole_words_have_no_bit_beyond() -> None:
    made = streams.encode(np.ones(70, np.bool_), np.ones(70, np.float32))
    bitmap, _ = stream.read(70, made)
    assert bits_of(bitmap, 96).sum() == 70


# ---- Through lines, epochs and sessions ----


def one_phase_workers(rack: Rack) -> list[Any]:
    workers = workers_of(rack)
    for worker in workers:
        for name, options in (
            ("sparse", ONE_PHASE),
            ("exact", codecs.Sparse("fixed32", phases=1)),
            ("two", codecs.Sparse()),
        ):
            worker.codecs[name] = options.build(worker.rank, rack.world_size, 0)
    return workers


@pytest.mark.parametrize("seed", range(3))
def test_chunks_through_lines_in_any_order_with_their_own_lengths(seed: int) -> None:
    """Slots of one sub-block and something: several chunks, ranks out of step, bits counted as they travelled."""
    rack = Rack(3, data=(3, 8600), small=(1, 8))
    workers, inputs, tensors = one_phase_workers(rack), [], []
    calls: list[tuple[str, float, str]] = [
        ("sparse", 0.01, "independent"),
        ("f32", 1, "rows"),
        ("exact", 0.2, "shared"),
        ("sparse", 1, "rows"),
        ("two", 0.1, "independent"),
        ("sparse", 0, "rows"),
    ]
    for sequence, (codec, density, support) in enumerate(calls):
        inputs.append(drawn(sequence, 3, 3 * SUB_BLOCK - 5, density, support))
        tensors.append([x.copy() for x in inputs[-1]])
        for worker in workers:
            worker.call(tensors[-1][worker.rank], codec, sequence)
    run(workers, random.Random(seed))
    for given_, got in zip(inputs, tensors, strict=True):
        assert {x.tobytes() for x in got} == {plain(given_).tobytes()}


def test_bits_are_those_that_travelled_each_way() -> None:
    rack = Rack(2, data=(3, 8600), small=(1, 8))
    elems = 3 * SUB_BLOCK - 5
    xs = [drawn(1, 1, elems, 0.02)[0], drawn(2, 1, elems, 0.3)[0]]
    tensors, measures = [x.copy() for x in xs], [Measure(), Measure()]
    workers = one_phase_workers(rack)
    for worker, tensor, measure in zip(workers, tensors, measures, strict=True):
        collective = Collective(tensor, worker.codecs["sparse"], 0, lambda: None, None, measure)
        for line, messages in collective.streams(worker.lines[:-1], worker.lines[-1]):
            line.enter(messages)
    run(workers, random.Random(1))
    union = (xs[0] != 0) | (xs[1] != 0)

    def bits(there: np.ndarray) -> float:
        cut = [there[begin : begin + SUB_BLOCK] for begin in range(0, elems, SUB_BLOCK)]
        return 8 * sum(streams.encode(one, np.ones(one.size, np.float32)).size for one in cut) / elems

    for x, measure, worker in zip(xs, measures, workers, strict=True):
        stats = measure.stats()
        assert (stats["bits_up"], stats["bits_down"]) == (bits(x != 0), bits(union))
        assert stats["encodings"] == {"stream": 3} and stats["kept"] == np.count_nonzero(x)
        data = worker.lines[0]
        assert (8 * data.bytes_sent / elems, 8 * data.bytes_received / elems) == (bits(x != 0), bits(union))


def test_ranks_that_mean_other_tensors_are_found_by_the_immediate() -> None:
    """Whatever the lengths of their streams are: here they are the same."""
    rack = Rack(2, data=(3, 17408), small=(1, 8))
    messages = []
    for rank, elems in enumerate((3000, 3001)):
        [data, small] = rack.lines(rank)
        tensor = np.zeros(elems, np.float32)
        seen: list[tuple[Any, ...]] = []
        data.pool.write = lambda *message, seen=seen: seen.append(message)  # type: ignore[method-assign]
        for line, stream_ in Collective(tensor, ONE_PHASE.build(rank, 2, 0), 0, lambda: None).streams(
            [data], small
        ):
            line.enter(stream_)
        assert data.advance()
        messages.append(seen[0])
    (_, length, _, immediate), (_, other_length, _, other_immediate) = messages
    assert length == other_length == 12
    assert immediate == wire.immediate(0, 0, wire.OPS["expand_sum_f32"], 12000, 3000) != other_immediate


@pytest.mark.parametrize("seed", range(4))
def test_void_rounds_are_written_again_with_their_own_lengths(seed: int) -> None:
    rack, chance = Rack(2, data=(3, 8600)), random.Random(seed)
    both = [progress_of(rack, rank) for rank in range(2)]
    for progress in both:
        progress.start()
    try:
        inputs = [drawn(10 * seed + i, 2, 3 * SUB_BLOCK, 0.05) for i in range(12)]
        tensors = [[x.copy() for x in xs] for xs in inputs]
        rack.mute, rack.deaf = {chance.randrange(2)}, {chance.randrange(2)}
        works = [
            submit(progress, xs[rank], sequence, ONE_PHASE.build(rank, 2, 0))
            for rank, progress in enumerate(both)
            for sequence, xs in enumerate(tensors)
        ]
        for _ in range(4):
            epoch = rack.epoch
            until(
                lambda: (
                    any(link.pools[0].next_round > rack.complete[0] for link in rack.links) or all_done(works)
                )
            )
            rack.halt()
            until(lambda epoch=epoch: rack.epoch > epoch)
            with rack.lock:
                rack.deaf |= {rank for rank in range(2) if chance.random() < 0.5}
                rack.mute |= {rank for rank in range(2) if chance.random() < 0.5}
        rack.halt()
        assert all(work.wait(PATIENCE_S) for work in works)
    finally:
        for progress in both:
            progress.end(SessionClosed("the test is over"))
            assert progress.wait_ended(PATIENCE_S)
    for xs, got in zip(inputs, tensors, strict=True):
        assert {x.tobytes() for x in got} == {plain(xs).tobytes()}


def all_done(works: list[Any]) -> bool:
    return all(work.is_completed() for work in works)


def through_sessions(rank: int, world_size: int, build: Callable[[], list[Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for options in build():
        with pascaline.Session(link="emulated", codec=options, chunk_bytes=16384) as session:
            generator = torch.Generator().manual_seed(rank)
            tensor = torch.randint(1, 100, (20_000,), generator=generator).float()
            tensor *= torch.rand(20_000, generator=generator) < 0.02
            session.all_reduce(tensor)
            name = codecs.describe(codecs.resolve(options), 0)
            found[name] = (tensor.numpy(), session.stats()["codecs"][codecs.resolve(options).name])
            if name == "sparse":
                with pytest.raises(ConfigurationError) as raised:
                    session.all_reduce(tensor, codec=ONE_PHASE)
                found["refused"] = str(raised.value)
    return found


def several() -> list[Any]:
    return ["f32", "sparse", ONE_PHASE, codecs.Sparse("fixed32", phases=1)]


def test_sessions_over_the_emulated_link(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path / "store", 2, through_sessions, several)
    dense = ranks[0]["f32"][0].tobytes()
    for one in ranks:
        for name in ("sparse", "sparse phases 1", "sparse values fixed32 phases 1"):
            assert one[name][0].tobytes() == dense, name
        stats = one["sparse phases 1"][1]
        assert stats["encodings"] == {"stream": 10}  # of 2048 elements, which a slot of 16 KiB takes once
        assert stats["bits_up"] == pytest.approx(1 + 32 * 0.02, rel=0.1)
        assert stats["bits_down"] == pytest.approx(1 + 32 * 0.04, rel=0.1)
        assert "codec sparse phases 1 needs the op expand_sum_f32" in one["refused"]
        assert "joined with sparse: join a session of its own with codec sparse phases 1" in one["refused"]
