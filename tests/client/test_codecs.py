"""The laws of the codecs: decode(op(encode(x_1) .. encode(x_n))) against the exact sum."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pascaline import codec as codecs
from pascaline.codec.fixed32 import Fixed32, exponent, largest
from pascaline.errors import ConfigurationError
from pascaline.link.emulated.ops import combine

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
