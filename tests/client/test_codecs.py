"""The laws of the codecs: decode(op(encode(x_1) .. encode(x_n))) against the exact sum."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pascaline import codec as codecs
from pascaline.codec.dense import from_bf16, to_bf16
from pascaline.codec.fixed32 import Fixed32, exponent, largest
from pascaline.errors import ConfigurationError
from pascaline.link.emulated.ops import combine

NO_SCALES = np.empty(0, np.float32)
F32_MAX = float(np.finfo(np.float32).max)
DENORMAL = float(np.finfo(np.float32).smallest_subnormal)


def reduce_by(codec: codecs.Codec, contributions: list[np.ndarray]) -> np.ndarray:
    """All ranks' encodings combined and decoded."""
    elems = contributions[0].size
    place, scales = codecs.Place(0, 0, elems), np.zeros(codec.scale_count(elems), np.float32)
    with np.errstate(all="ignore"):
        if scales.size:
            norms = np.zeros((len(contributions), scales.size), np.float32)
            for x, row in zip(contributions, norms, strict=True):
                codec.norms(x, codecs.NOTHING, row)
            scales = combine("max_f32", [row.view(np.uint8) for row in norms]).view(np.float32)
        encodings = []
        for x in contributions:
            encodings.append(np.full(codec.contribution_bytes(elems), 0x55, np.uint8))
            codec.encode(place, x, codecs.NOTHING, scales, encodings[-1])
        out = np.full_like(contributions[0], 77)
        combined = combine(codec.op, encodings, codec.table or ())
        assert combined.size == codec.result_bytes(elems)
        codec.decode(place, combined, codecs.NOTHING, scales, out)
    return out


def exact_sum(contributions: list[np.ndarray]) -> list[Fraction]:
    return [
        sum((Fraction(float(v)) for v in column), Fraction(0)) for column in zip(*contributions, strict=True)
    ]


finite = st.floats(-F32_MAX, F32_MAX, width=32)
ranks_and_values = st.tuples(st.integers(1, 64), st.integers(1, 12)).flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=finite)
)


@given(ranks_and_values)
@settings(max_examples=200)
def test_fixed32_is_within_its_bound(x: np.ndarray) -> None:
    n = len(x)
    contributions = list(x)
    result = reduce_by(Fixed32(n), contributions)
    maximum = max(float(largest(c)) for c in contributions)
    step = Fraction(0) if maximum == 0 else Fraction(1, 2) * n / Fraction(2) ** exponent(maximum, n)
    for got, want in zip(result, exact_sum(contributions), strict=True):
        if np.isinf(got):
            assert abs(want) + step > Fraction(F32_MAX)
        else:
            assert abs(Fraction(float(got)) - want) <= step + Fraction(1, 1 << 24) * (
                abs(want) + step
            ) + Fraction(DENORMAL)


@given(ranks_and_values, st.randoms(use_true_random=False))
def test_fixed32_does_not_depend_on_the_order_of_ranks(x: np.ndarray, random: object) -> None:
    contributions = list(x)
    first = reduce_by(Fixed32(len(x)), contributions)
    random.shuffle(contributions)  # type: ignore[attr-defined]
    assert first.tobytes() == reduce_by(Fixed32(len(x)), contributions).tobytes()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 63, 64])
@pytest.mark.parametrize("maximum", [DENORMAL, 2.0**-126, 0.75, 1.0, 2.0**31, F32_MAX])
def test_fixed32_cannot_wrap(n: int, maximum: float) -> None:
    encoded = np.zeros(2, np.int32)
    x, scales = np.array([maximum, -maximum], np.float32), np.array([maximum], np.float32)
    Fixed32(n).encode(codecs.Place(0, 0, 2), x, codecs.NOTHING, scales, encoded.view(np.uint8))
    assert 0 < n * int(encoded[0]) <= 2**30
    assert int(encoded[1]) == -int(encoded[0])


@pytest.mark.parametrize("n, k", [(1, 178), (2, 177), (64, 172)])
def test_the_smallest_denormal_is_exact(n: int, k: int) -> None:
    assert exponent(DENORMAL, n) == k
    x = [np.array([DENORMAL, 0, -DENORMAL], np.float32)] * n
    assert reduce_by(Fixed32(n), x).tolist() == [n * DENORMAL, 0, -n * DENORMAL]


def test_the_largest_number_survives() -> None:
    x = [np.array([F32_MAX, 1.0], np.float32), np.array([-F32_MAX, 1.0], np.float32)]
    assert reduce_by(Fixed32(2), x).tolist() == [0.0, 0.0]  # 1.0 is below the step of a chunk that holds 3e38


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_fixed32_never_turns_inf_or_nan_into_a_number(bad: float, rank: int) -> None:
    x = [np.ones(5, np.float32) for _ in range(3)]
    x[rank][3] = bad
    result = reduce_by(Fixed32(3), x)
    assert np.isnan(result).all() if math.isnan(bad) else np.isinf(result).all()


def test_nan_wins_over_inf() -> None:
    x = [np.array([math.inf, 0], np.float32), np.array([math.nan, 0], np.float32)]
    assert np.isnan(reduce_by(Fixed32(2), x)).all()


def test_zeros_stay_zeros() -> None:
    zeros = np.array([0.0, -0.0], np.float32)
    assert reduce_by(Fixed32(4), [zeros] * 4).tolist() == [0, 0]


def test_fixed32_rounds_to_nearest_and_ties_to_even() -> None:
    step = 2.0**-29  # of a chunk whose maximum is 1, for one rank
    assert exponent(1.0, 1) == 29
    x = np.array([1.0, 0.3 * step, 0.5 * step, 0.7 * step, 1.5 * step, -1.7 * step], np.float32)
    assert reduce_by(Fixed32(1), [x]).tolist() == [1.0, 0.0, 0.0, step, 2 * step, -2 * step]


def test_f32_is_exact_where_sums_are_representable() -> None:
    x = [np.arange(-50, 50, dtype=np.float32) * rank for rank in range(1, 9)]
    assert reduce_by(codecs.SUM_F32, x).tolist() == [36.0 * v for v in range(-50, 50)]


def test_f32_carries_inf_and_nan_per_element() -> None:
    x = [np.array([math.inf, math.inf, 1, math.nan], np.float32), np.array([1, -math.inf, 1, 1], np.float32)]
    result = reduce_by(codecs.SUM_F32, x)
    assert np.isinf(result[0])
    assert np.isnan(result[1])
    assert result[2] == 2
    assert np.isnan(result[3])


def test_int32_wraps() -> None:
    x = [np.array([2**31 - 1, -(2**31)], np.int32), np.array([1, -1], np.int32)]
    codec = codecs.for_array(np.dtype(np.int32), "fixed32", 0, 2)
    assert codec is codecs.SUM_I32
    assert reduce_by(codec, x).tolist() == [-(2**31), 2**31 - 1]


def test_an_unknown_codec_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"no codec 'zip'.*f32, .*thc, .*topk"):
        codecs.for_array(np.dtype(np.float32), "zip", 0, 2)


def test_fixed32_refuses_more_ranks_than_the_contract() -> None:
    with pytest.raises(ConfigurationError, match=r"1 to 64 ranks, not 65"):
        Fixed32(65)


# ---- 16 bits ----


def test_bf16_is_rounded_as_pytorch_does() -> None:
    rng = np.random.default_rng(0)
    bits = np.concatenate(
        [rng.integers(0, 2**32, 100_000, np.uint64), [0, 2**31, 0x7F7FFFFF, 0x7F800000, 1, 0x8000]]
    )
    x = bits.astype(np.uint32).view(np.float32)
    ours, theirs = to_bf16(x), torch.from_numpy(x).to(torch.bfloat16)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(ours[number], theirs.view(torch.int16).numpy().view(np.uint16)[number])
    assert np.isnan(from_bf16(ours[~number])).all()


@pytest.mark.parametrize("name, bits, largest_", [("f16", 11, 65504.0), ("bf16", 8, F32_MAX)])
@given(x=ranks_and_values)
@settings(deadline=None, max_examples=50)
def test_16_bits_are_within_their_bound(name: str, bits: int, largest_: float, x: np.ndarray) -> None:
    x = np.clip(x, -largest_ / 4, largest_ / 4)
    result = reduce_by(codecs.for_array(x.dtype, name, 0, len(x)), list(x))
    for got, want, column in zip(result, exact_sum(list(x)), x.T, strict=True):
        if not np.isfinite(got):
            assert abs(want) > Fraction(F32_MAX) / 2
            continue
        size = sum(abs(Fraction(float(v))) for v in column)
        bound = size * (Fraction(1, 1 << bits) + Fraction(len(x), 1 << 23)) + len(x) * Fraction(1, 1 << 25)
        assert abs(Fraction(float(got)) - want) <= bound


def test_an_f16_sum_does_not_overflow_where_its_terms_do_not() -> None:
    x = [np.array([60000.0, 70000.0, 1.0], np.float32)] * 4
    assert reduce_by(codecs.for_array(x[0].dtype, "f16", 0, 4), x).tolist() == [240000.0, math.inf, 4.0]


# ---- What is left out ----


@pytest.mark.parametrize("name", ["f16", "bf16", "thc", "terngrad"])
@pytest.mark.parametrize("loss_scale", [1.0, 256.0])
def test_what_is_sent_and_what_is_pending_are_x(name: str, loss_scale: float) -> None:
    rng = np.random.default_rng(3)
    values, residual, pending = rng.normal(size=(3, 1501)).astype(np.float32)
    codec = codecs.resolve(name).build(0, 1, 0)
    carry = codecs.Carry(residual, pending, loss_scale)
    scales, place = np.zeros(codec.scale_count(1501), np.float32), codecs.Place(0, 0, 1501)
    encoded, own = np.zeros(codec.contribution_bytes(1501), np.uint8), np.zeros(1501, np.float32)
    if scales.size:
        codec.norms(values, carry, scales)
    codec.encode(place, values, carry, scales, encoded)
    codec.decode(place, combine(codec.op, [encoded], codec.table or ()), carry, scales, own)
    assert pending.any()
    x = values + residual * np.float32(loss_scale)
    np.testing.assert_allclose(own + pending * loss_scale, x, rtol=0, atol=4e-6 * np.abs(x).max())


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_an_element_that_is_no_number_owes_what_it_owed(name: str) -> None:
    """Its own overflow, another rank's Inf and its own NaN; the fourth is a number."""
    codec, place = codecs.for_array(np.dtype("f4"), name, 0, 2), codecs.Place(0, 0, 4)
    values = np.array([F32_MAX, 1, math.nan, 1 + 2**-12], np.float32)
    residual, pending = np.full(4, 0.125, np.float32), np.full(4, 77, np.float32)
    carry = codecs.Carry(residual, pending)
    encoded = np.empty(codec.contribution_bytes(4), np.uint8)
    with np.errstate(all="ignore"):
        codec.encode(place, values, carry, NO_SCALES, encoded)
        sums = combine(codec.op, [encoded]).view(np.float32)
    sums[1] = math.inf
    codec.decode(place, sums.view(np.uint8), carry, NO_SCALES, np.empty(4, np.float32))
    assert pending[:3].tolist() == [0.125] * 3
    assert pending[3] == 2**-12
    codec.decode(place, sums.view(np.uint8), codecs.Carry(None, pending), NO_SCALES, np.empty(4, np.float32))
    assert pending.tolist() == [0, 0, 0, 2**-12]


def test_a_table_may_be_any_sequence() -> None:
    """Options are keys and are compared by content."""
    listed = codecs.Thc(table=list(range(16)), t=2.0)  # type: ignore[arg-type]
    assert {listed: 1}[codecs.Thc(table=tuple(range(16)), t=2.0)] == 1
    for bits in (0, 5):
        with pytest.raises(ConfigurationError, match=f"one of 2, 3, 4, 8, not {bits}"):
            codecs.Thc(bits=bits, g=60, p=0.01)


def test_options_that_need_each_other() -> None:
    with pytest.raises(ConfigurationError, match="g and p together, or neither: g is 30 and p None"):
        codecs.Thc(g=30)
    with pytest.raises(ConfigurationError, match="table and t together"):
        codecs.Thc(table=(0, 1, 2, 2))
    ternary = codecs.Thc(bits=2, table=(0, 1, 2, 2), t=1.0, norm="max", rotate=False, rounding="independent")
    assert ternary.params(3, 9) == codecs.Thc(name="terngrad").params(3, 9)
    assert codecs.describe(ternary, 9) != codecs.describe(ternary, 8)
