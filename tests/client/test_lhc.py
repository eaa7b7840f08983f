"""The codec lhc: its law, on the codec; its specification, on the reference; and the kernels, bit by bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pascaline.codec.lhc import Hash, Params, blocks, buckets, kernels, reference
from pascaline.codec.lhc.codec import LhcCodec, by_reference
from pascaline.codec.sparse.reference import bitmap_of
from pascaline.codec.thc import kernels as door
from pascaline.codec.thc import philox
from pascaline.errors import ConfigurationError, UnsupportedTensor

from .lhc_rack import KINDS, adversarial, dense, drawn, inexact
from .lockstep import Reduced, reduce_chunk

SEED = 0xDEADBEEF12345678
FACTORS = (2.0**12, 0.5)


@pytest.fixture(autouse=True)
def own_choice():
    before = door.variant()
    yield
    door.use(before)


@pytest.fixture(params=door.VARIANTS)
def variant(request):
    if request.param not in door.variants():
        pytest.skip(f"this CPU does not run {request.param}")
    door.use(request.param)
    return request.param


def ranks_of(n: int, **settings) -> list[LhcCodec]:
    return [LhcCodec(n, Params(SEED), **settings)] * n


def encodings(got: Reduced) -> set[str]:
    return {outcome.encoding for outcome in got.outcomes}


# ---- Law ----


def test_every_length_is_the_dense_sum():
    rng = np.random.default_rng(1)
    ranks, seen = ranks_of(3), set()
    for elems in range(1, 2101):
        share = rng.choice([0.02, 0.2, 0.5])
        x = drawn(rng, KINDS[rng.choice(list(KINDS))](rng, elems, share, 3))
        got = reduce_chunk(ranks, x, sequence=elems)
        assert [inexact(values, dense(x)) for values in got.values] == [0, 0, 0], elems
        seen |= encodings(got)
    assert seen == {"nothing", "sketch", "sketch and repair", "dense"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 64])
def test_supports(kind, n):
    rng = np.random.default_rng(n)
    for share in (0.001, 0.05, 0.2):
        x = drawn(rng, KINDS[kind](rng, 20_000, share, n))
        got = reduce_chunk(ranks_of(n), x)
        assert inexact(got.values[0], dense(x)) == 0
        if share >= 0.05:
            assert got.travelled[1][1] < 0.4 * 4 * 20_000  # it is compressed


def test_more_than_peels_is_repaired():
    """Too few buckets, whole rows, and elements chosen by who knows the seed."""
    rng = np.random.default_rng(3)
    elems, seen = 30_000, []
    for step in range(6):
        hash_ = Hash(SEED, step, 0, Params(SEED).rows(elems // 10))
        supports = [
            KINDS["independent"](rng, elems, 0.1, 2),
            KINDS["rows"](rng, elems, 0.1, 2),
            [adversarial(rng, hash_, elems, 0.1)] * 2,
        ][step % 3]
        x = drawn(rng, supports)
        tight = [LhcCodec(2, Params(SEED, permille=1300 if step % 3 else 1000))] * 2
        got = reduce_chunk(tight, x, sequence=step)
        assert inexact(got.values[1], dense(x)) == 0
        seen += encodings(got)
    assert seen.count("sketch and repair") >= 4


def test_what_would_be_longer_travels_dense():
    rng = np.random.default_rng(5)
    for share, encoding in ((0.74, "sketch"), (0.78, "dense"), (1.0, "dense")):
        x = drawn(rng, KINDS["independent"](rng, 64_000, share, 2))
        got = reduce_chunk(ranks_of(2), x)
        assert encodings(got).pop().startswith(encoding)
        assert got.travelled[-1][1] <= 4 * 64_000
        assert inexact(got.values[0], dense(x)) == 0


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_inf_and_nan_make_the_chunk_theirs_and_zeros_send_nothing(bad):
    x = [np.ones(500, np.float32), np.ones(500, np.float32)]
    x[1][33] = bad
    got = reduce_chunk(ranks_of(2), x)
    assert got.travelled == []
    assert inexact(got.values[0], dense(x)) == 0
    got = reduce_chunk(ranks_of(2), [np.zeros(500, np.float32), -np.zeros(500, np.float32)])
    assert got.travelled == []
    assert inexact(got.values[0], np.zeros(500, np.float32)) == 0


def test_sums_that_cancel_and_values_that_round_to_nothing():
    x = [np.array([1.0, -3.0, 1e-30, 0, -0.0], np.float32), np.array([-1.0, 3.0, 0, 0, 7], np.float32)]
    got = reduce_chunk(ranks_of(2), x)
    assert inexact(got.values[0], dense(x)) == 0
    assert got.values[0].tolist() == [0, 0, 0, 0, 7]


# ---- Specification ----


def test_buckets_are_where_the_document_says():
    hash_ = Hash(SEED, 7, 9, 1000)
    elements = np.array([0, 1, 31, 32, 100_000])
    for element, places, signs in zip(
        elements, hash_.buckets(elements).T, hash_.signs(elements).T, strict=True
    ):
        block, lane = divmod(int(element), 32)
        words = philox.philox4x32((block, 9, 7, 0x40000000), philox.key_of(SEED))
        negative = philox.philox4x32((block, 9, 7, 0x40000001), philox.key_of(SEED))
        for j in range(3):
            row = int(words[j]) * 1000 >> 32
            rotation = int(words[3]) >> 5 * j & 31
            assert places[j] == 32 * (1000 * j + row) + (lane + rotation) % 32
            assert signs[j] == (-1 if int(negative[j]) >> lane & 1 else 1)


def test_sizes():
    assert [Params(SEED).rows(union) for union in (0, 1, 73, 74, 148, 1_000_000)] == [1, 1, 1, 2, 3, 13542]
    with pytest.raises(ConfigurationError, match="100 to 10000 buckets for 1000 elements, not 50"):
        Params(SEED, permille=50)


def test_a_crowded_bucket_never_peels():
    """300 elements in one row of each table: no bucket of fewer than 255 elements, whatever is taken out of them."""
    elems = 32 * 300
    hash_ = Hash(SEED, 0, 0, 1)
    union = bitmap_of(np.ones(elems, np.bool_))
    _, unpeeled = reference.peel(hash_, union, elems)
    assert np.array_equal(unpeeled, union)


def test_a_seed_and_a_place_make_a_hash_of_their_own():
    elements = np.arange(3200)
    places = {
        Hash(seed, sequence, chunk, 50).buckets(elements).tobytes()
        for seed in (1, 2**32 + 1)
        for sequence in (0, 1)
        for chunk in (0, 1)
    }
    assert len(places) == 8


# ---- Kernels ----

CASES = [(1, 0.9), (31, 0.5), (33, 1.0), (500, 0.03), (511, 0.3), (513, 0.2), (4096, 0.05), (9999, 0.2)]


@pytest.mark.parametrize(("elems", "share"), CASES)
@pytest.mark.parametrize("permille", [1300, 900, 150])
def test_kernels_are_the_reference(variant, elems, share, permille):
    """Sketch, check and peel; with load above 1 much does not peel, at 150 buckets are crowded where there are few."""
    rng = np.random.default_rng(elems)
    values = np.where(rng.random(elems) < share, rng.standard_normal(elems) * 1e5, 0).astype(np.float32)
    union = bitmap_of((values != 0) | (rng.random(elems) < share / 4))
    hash_ = Hash(SEED, 0x9ABCDEF0, 5, Params(SEED, permille).rows(int(share * elems)))
    left_out = reference.peel(hash_, union, elems)[1]
    integers = reference.integers(values, FACTORS)
    scratch = np.full(kernels.scratch_words(elems, hash_.rows), 0x55555555, np.uint32)
    for omitted in (None, left_out):
        wanted = reference.sketch(hash_, integers, omitted)
        table = np.full(wanted.size, 77, np.int32)
        kernels.sketch(hash_, values, FACTORS, omitted, table)
        assert np.array_equal(table, wanted)
        recovered, unpeeled = reference.peel(hash_, union, elems, wanted)
        got, marked = np.full(elems, 77, np.float32), np.full(blocks(elems), 77, np.uint32)
        left = kernels.check(hash_, union, elems, marked, scratch)
        assert left == np.unpackbits(unpeeled.view(np.uint8)).sum()
        assert np.array_equal(marked, unpeeled)
        marked[:] = 77
        assert kernels.peel(hash_, union, table, (0.5, 2.0**-11), got, marked, scratch) == left
        assert np.array_equal(marked, unpeeled)
        assert inexact(got, reference.floats(recovered, (0.5, 2.0**-11))) == 0


def test_crowded_buckets_are_alike(variant):
    """All elements in one row of the first sub-table, 500 to a bucket; 320 of these peel by the others, not all."""
    rows, elems = 330, 32 * 160_000
    hash_ = Hash(SEED, 1, 1, rows)
    first = np.arange(0, elems, 32)
    crowded = hash_.buckets(first)[0] // 32 == 0
    union = np.where(crowded, 0xFFFFFFFF, 0).astype(np.uint32)
    counts = np.bincount(hash_.buckets(reference.elements_of(union))[0])
    assert counts[:32].min() >= 255 and counts[32:].sum() == 0
    wanted = reference.peel(hash_, union, elems)[1]
    marked = np.zeros(blocks(elems), np.uint32)
    scratch = np.zeros(kernels.scratch_words(elems, rows), np.uint32)
    left = kernels.check(hash_, union, elems, marked, scratch)
    assert np.array_equal(marked, wanted)
    assert 1000 < left < 0.9 * 32 * crowded.sum()


def test_a_codec_by_the_reference_is_the_codec_by_the_kernels(variant):
    rng = np.random.default_rng(6)
    x = drawn(rng, KINDS["shared"](rng, 5000, 0.1, 2))
    mixed = [LhcCodec(2, Params(SEED)), LhcCodec(2, Params(SEED), machine=by_reference())]
    for permille in (1300, 1000):
        mixed = [
            LhcCodec(2, Params(SEED, permille)),
            LhcCodec(2, Params(SEED, permille), machine=by_reference()),
        ]
        got = reduce_chunk(mixed, x)
        assert [inexact(values, dense(x)) for values in got.values] == [0, 0]


def test_the_kernels_keep_ieee_arithmetic_whatever_the_thread_has_chosen(variant):
    """Denormals are numbers: as the C kernels of thc."""
    import torch

    values = np.full(64, 1e-40, np.float32)
    hash_ = Hash(SEED, 0, 0, 4)
    tables = []
    for flush in (False, True):
        torch.set_flush_denormal(flush)
        tables.append(np.zeros(buckets(4), np.int32))
        kernels.sketch(hash_, values, (2.0**126, 2.0**20), None, tables[-1])
    torch.set_flush_denormal(False)
    assert tables[0].any() and np.array_equal(*tables)


def test_wrong_arrays_are_refused():
    values, table = np.zeros(64, np.float32), np.zeros(96, np.int32)
    with pytest.raises(UnsupportedTensor, match=r"table is int32 with 95 elements.*need int32 with 96"):
        kernels.sketch(Hash(1, 0, 0, 1), values, FACTORS, None, table[:95])
    with pytest.raises(UnsupportedTensor, match="values is float64"):
        kernels.sketch(Hash(1, 0, 0, 1), values.astype(np.float64), FACTORS, None, table)
    with pytest.raises(ConfigurationError, match="take 1 to"):
        kernels.sketch(Hash(1, 0, 0, 0), values, FACTORS, None, table)
