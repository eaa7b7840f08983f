"""The codec thc's laws, on the reference: what it decodes, what it leaves behind, and what it does with odd values."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from pascaline.codec.thc import NAMES, Params, philox, reference, setting, table

from .thc_rack import decoded_alone, exchange, nmse, normal

SETTINGS = [(name, None) for name in NAMES] + [("thc", bits) for bits in (2, 3, 8)] + [("thc-uniform", 8)]
IDS = [f"{name}-{bits or ''}" for name, bits in SETTINGS]


def made(name_bits, n, seed=11, **changes) -> Params:
    return dataclasses.replace(setting(name_bits[0], n, seed, name_bits[1]), **changes)


# ---- Law ----


@pytest.mark.parametrize("which", SETTINGS, ids=IDS)
def test_the_sum_decodes_to_the_sum_of_what_each_rank_sent(which):
    params = made(which, 5)
    grads = normal(1500, 3, ranks=5, correlation=0.5)
    one = exchange(params, grads, sequence=9, chunk=2)
    apart = sum(decoded_alone(params, one, rank, 9, 2).double() for rank in range(5))
    assert torch.allclose(one.values.double(), apart, rtol=0, atol=2e-6 * float(one.scales.max()))


@pytest.mark.parametrize("which", SETTINGS, ids=IDS)
def test_no_coordinate_misses_by_more_than_its_cell(which):
    """Rotated back, the error of each rank's unclipped coordinate is below the widest step."""
    params = made(which, 3, t=1.0 if which[0] in ("terngrad", "thc-uniform-max") else 9.0)
    grads = normal(2048, 4, ranks=3)
    one = exchange(params, grads)
    error = (one.values - torch.stack(grads).sum(0)).reshape(2, 1024) / one.scales[:, None]
    if params.rotate:
        kappa = float(params.kappa(2048, 1024))
        error = reference.rotate(reference._flip(params, 0, 0, 0, error)) * kappa
    widest = (
        max(b - a for a, b in zip(params.table, params.table[1:], strict=False)) * 2 * params.t / params.g
    )
    assert float(error.abs().max()) < 3 * widest * (1 + 1e-5)
    assert float(error.abs().max()) > 0.5 * widest  # and the bound is one that rounding comes near


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("name", "n"),
    [("thc", 1), ("thc", 2), ("thc", 8), ("thc-uniform", 8), ("thc-paper", 8), ("thc-release", 8)],
)
def test_error_is_what_the_model_predicts(name, n, correlation):
    params = setting(name, n, 21)
    solution = table.Solution.of(params.table, params.t)
    measured = nmse(
        exchange(params, normal(1 << 16, 5, n, correlation)).values, normal(1 << 16, 5, n, correlation)
    )
    assert measured == pytest.approx(
        table.predicted_nmse(solution, n, correlation, params.rounding), rel=0.08
    )


@pytest.mark.parametrize("rounding", ["stratified", "independent", "shared"])
@pytest.mark.parametrize("name", ["thc", "thc-uniform-max", "terngrad"])
def test_rounding_is_unbiased(name, rounding):
    """One block of values, 256 draws: the sum of squared z scores lies in chi-square's 99.9 % interval."""
    params = made((name, None), 4, rounding=rounding)
    if params.rotate:
        params = dataclasses.replace(params, t=6.0)
    block = normal(1024, 6, ranks=4, correlation=0.5)
    exact = torch.stack(block).double().sum(0)
    grads = [x.repeat(128) for x in block]
    values = torch.cat([exchange(params, grads, sequence=s).values for s in range(2)])
    draws = values.reshape(256, 1024).double() - exact
    scores = draws.mean(0) / (draws.std(0) / math.sqrt(256))
    scores = scores[draws.std(0) > 1e-6]  # the largest of all is sent exactly where the norm is the maximum
    assert len(scores) >= 1020
    deviation = math.sqrt(2 * len(scores))  # of chi-square, nearly normal; 3.29 of them are 99.9 %
    assert abs(float(scores.square().sum()) - len(scores)) < 3.29 * deviation
    assert abs(float(scores.sum())) < 3.29 * math.sqrt(len(scores))


def test_debias_repays_clipping_on_average():
    plain = dataclasses.replace(setting("thc-paper", 1, 3), scale_per="block")
    repaid = dataclasses.replace(plain, debias=1 / (1 - 1 / 32))
    x = normal(1 << 16, 8)[0]

    def slope(params):
        values = exchange(params, [x]).values
        return float(values.double() @ x.double() / (x.double() @ x.double()))

    assert slope(plain) == pytest.approx(1 - 1 / 32, abs=2e-3)
    assert slope(repaid) == pytest.approx(1, abs=2e-3)


# ---- Stratified rounding ----


@pytest.mark.parametrize("n", [1, 2, 3, 8, 64, 100])
def test_every_rank_has_a_stratum_of_its_own(n):
    params = setting("thc-uniform", n, 5)
    strata = (
        torch.stack([(reference._draws(params, r, 1, 2, 0, 512) * n).floor() for r in range(n)])
        .sort(0)
        .values
    )
    assert torch.equal(strata, torch.arange(n, dtype=torch.float32)[:, None].expand(n, 512))


def test_like_gradients_are_summed_within_one_step():
    """With equal values n strata leave one rank in doubt: the sum is within a step of exact. Independent is not."""
    n = 16
    params = Params(4, tuple(range(16)), 1.0, n, 5, norm="max", rotate=False)
    x = normal(4096, 9)[0]
    for rounding, within in (("stratified", True), ("independent", False)):
        one = exchange(dataclasses.replace(params, rounding=rounding), [x] * n)
        exact = n * (x / one.scales.repeat_interleave(1024) + 1) * 7.5
        assert bool(((one.sums.to(torch.float32) - exact).abs() <= 1 + 1e-3).all()) == within


def test_shared_rounding_draws_one_stream_and_independent_does_not():
    params = setting("thc-release", 2, 5)
    assert torch.equal(*(reference._draws(params, r, 1, 2, 0, 128) for r in (0, 1)))
    apart = dataclasses.replace(params, rounding="independent")
    assert not torch.equal(*(reference._draws(apart, r, 1, 2, 0, 128) for r in (0, 1)))


def test_signs_are_those_of_the_coordinates_of_the_chunk():
    params = setting("thc", 2, 5)
    for first, shape in ((0, (2, 1024)), (2048, (1, 256))):
        negated = reference._flip(params, 3, 1, first, torch.ones(shape)) < 0
        expected = philox.signs(5, 3, 1, first, shape[0] * shape[1])
        assert np.array_equal(negated.numpy().reshape(-1), expected)


def test_rotation_is_fresh_for_each_sequence_and_chunk_or_never():
    params = setting("thc", 2, 5)
    places = [(0, 0), (0, 1), (1, 0)]
    ones = torch.ones(2, 1024)
    fresh = [reference._flip(params, s, c, 0, ones) for s, c in places]
    assert not torch.equal(fresh[0], fresh[1]) and not torch.equal(fresh[0], fresh[2])
    assert not torch.equal(fresh[0][0], fresh[0][1])
    fixed = dataclasses.replace(params, fresh_rotation=False)
    still = [reference._flip(fixed, s, c, 0, ones) for s, c in places]
    assert torch.equal(still[0], still[1]) and torch.equal(still[0], still[2])
    assert torch.equal(still[0][0], still[0][1])


# ---- Residual ----


@pytest.mark.parametrize("which", SETTINGS, ids=IDS)
@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_what_was_sent_and_what_is_left_make_x(which, loss_scale):
    params = made(which, 3, debias=1.03)
    grads = [x * loss_scale for x in normal(1300, 12, ranks=3)]
    old = [e * 0.3 for e in normal(1300, 13, ranks=3)]
    one = exchange(params, grads, old, loss_scale, sequence=4, chunk=1)
    for rank in range(3):
        x = grads[rank] + old[rank] * loss_scale
        own = decoded_alone(params, one, rank, 4, 1)
        assert torch.equal(one.residuals[rank], (x - own) / loss_scale)
        assert torch.allclose(own / loss_scale + one.residuals[rank], x / loss_scale, rtol=1e-6, atol=1e-6)


def test_error_feedback_repays_clipping():
    """A quarter of the mass is clipped each time; what arrives over many steps is still x."""
    params = Params(4, tuple(range(16)), table.half_range(1 / 4), 2, 3)
    x = normal(1024, 14, ranks=2)
    residuals, total = [torch.zeros(1024)] * 2, torch.zeros(1024, dtype=torch.float64)
    for step in range(60):
        one = exchange(params, x, residuals, sequence=step)
        residuals, total = one.residuals, total + one.values
    assert nmse(total / 60, x) < 1e-3
    assert nmse(exchange(params, x).values, x) > 0.03


# ---- Odd values ----


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("odd", [float("inf"), float("-inf"), float("nan")])
def test_inf_and_nan_survive_and_leave_the_residual(name, odd):
    params = setting(name, 3, 1)
    grads = normal(3000, 15, ranks=3)
    grads[1][1500] = odd
    old = normal(3000, 16, ranks=3)
    one = exchange(params, grads, old)
    hit = slice(1024, 2048) if params.scale_per == "block" else slice(0, 3000)
    expected = torch.isnan if math.isnan(odd) else torch.isposinf
    assert bool(expected(one.values[hit]).all())
    for rank in range(3):
        assert torch.equal(one.residuals[rank][hit], old[rank][hit])
    if params.scale_per == "block":
        assert bool(torch.isfinite(one.values[:1024]).all()) and bool(torch.isfinite(one.values[2048:]).all())


@pytest.mark.parametrize("name", NAMES)
def test_zeros_decode_to_positive_zeros(name):
    one = exchange(setting(name, 3, 1), [torch.zeros(1100)] * 3)
    assert torch.equal(one.values.view(torch.int32), torch.zeros(1100, dtype=torch.int32))
    assert all(not packed.any() for packed in one.packed)


def test_a_rank_of_zeros_beside_one_that_is_not():
    params = setting("thc", 2, 1)
    x = normal(2048, 17)[0]
    assert nmse(exchange(params, [x, torch.zeros(2048)]).values, [x, torch.zeros(2048)]) < 0.03


@pytest.mark.parametrize("name", NAMES)
def test_denormals_send_nothing_and_stay_behind(name):
    x = torch.full((700,), 1e-40)
    one = exchange(setting(name, 2, 1), [x, -x])
    assert torch.equal(one.values, torch.zeros(700))
    assert torch.equal(one.residuals[0], x) and torch.equal(one.residuals[1], -x)


def test_norms_are_correctly_rounded_roots():
    """The bits of a norm: float32 partial sums as prescribed, and the root of their sum rounded once."""
    x = normal(64 * 1024, 23)[0]
    squares = reference._sum_of_squares(x.reshape(-1, 1024)).numpy()
    rounded = np.sqrt(squares.astype(np.float64)).astype(np.float32)
    assert np.array_equal(reference.norms(setting("thc", 1, 1), x).numpy(), rounded)


@pytest.mark.parametrize(
    "magnitude", [2.0**-90, 2.0**-70, 2.0**-50, 1.0, 2.0**60, 2.0**66, 2.0**100, 2.0**115]
)
def test_norms_beyond_the_range_of_squares(magnitude):
    """Equal up to the power of two, so exact scaling is seen in the last bit."""
    params = setting("thc", 2, 1)
    x = normal(1800, 18)[0]
    expected = reference.norms(params, x)
    exact = torch.stack([x[:1024].double().norm(), x[1024:].double().norm()])
    assert torch.allclose(expected.double(), exact, rtol=1e-6)
    scaled = reference.norms(params, x * magnitude)
    assert torch.allclose(scaled, expected * magnitude, rtol=2e-7, atol=0)
    one = exchange(params, [x * magnitude] * 2)
    assert nmse(one.values, [x * magnitude] * 2) < 0.03


def test_a_norm_that_overflows_is_infinite_on_all():
    one = exchange(setting("thc", 2, 1), [torch.full((2048,), 3e38), torch.zeros(2048)])
    assert bool(torch.isposinf(one.values).all())
    assert float(reference.norms(setting("thc", 2, 1), torch.full((1,), 3e38))) == pytest.approx(
        3e38, rel=1e-6
    )


def test_one_scale_for_a_tensor_of_very_different_blocks():
    params = setting("thc-paper", 1, 1)
    norms = torch.tensor([3.0] * 130 + [4e30, 0.0])
    assert float(reference.tensor_norm(params, norms)) == pytest.approx(4e30, rel=1e-6)
    assert float(reference.tensor_norm(params, torch.tensor([3.0, 4.0]))) == 5
    assert math.isnan(float(reference.tensor_norm(params, torch.tensor([3.0, math.inf, math.nan]))))
    assert float(reference.tensor_norm(setting("terngrad", 1, 1), torch.tensor([3.0, 4.0]))) == 4


@pytest.mark.parametrize("which", SETTINGS, ids=IDS)
def test_one_rank_one_element(which):
    params = made(which, 1)
    one = exchange(params, [torch.tensor([-0.625])])
    assert one.values.shape == (1,)
    assert float(one.values) == pytest.approx(-0.625, abs=0.7)
    if params.norm == "max":
        assert float(one.values) == -0.625


def test_every_length_comes_back():
    """All lengths to 2100, with 4 bits; the error of each stays that of the codec."""
    params = setting("thc", 1, 2)
    x = normal(2100, 19)[0]
    worst = 0.0
    for elems in range(1, 2101):
        one = exchange(params, [x[:elems]], sequence=elems)
        assert one.values.shape == (elems,) and one.packed[0].numel() == params.packed_bytes(elems)
        worst = max(worst, nmse(one.values, [x[:elems]]) if elems >= 64 else 0.0)
    assert worst < 0.06


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("elems", [1, 63, 64, 65, 129, 256, 257, 511, 1023, 1024, 1025, 1153, 2049])
def test_widths_and_lengths(bits, elems):
    params = setting("thc", 2, 2, bits)
    grads = normal(elems, 20, ranks=2)
    one = exchange(params, grads)
    size = min(elems, 64)
    assert nmse(one.values, grads) < (0.6 if size < 64 else {2: 0.3, 3: 0.12, 4: 0.03, 8: 0.001}[bits])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_packing_is_where_the_document_says(bits):
    params = setting("thc-uniform-max", 1, 0, bits)
    indices = torch.randint(0, 2**bits, (4 * params.unit,), generator=torch.Generator().manual_seed(1))
    packed = reference.pack(params, indices)
    assert torch.equal(reference.unpack(params, packed), indices)
    per_byte = 8 // params.wire_bits
    for byte in (0, 1, 63, 64, 130):
        unit, j = divmod(byte, 64)
        parts = [int(indices[unit * params.unit + 64 * i + j]) for i in range(per_byte)]
        assert int(packed[byte]) == sum(part << params.wire_bits * i for i, part in enumerate(parts))


def test_sums_are_those_of_the_ranks_that_came():
    """Partial aggregation: decode takes the number of contributors, not n."""
    params = setting("thc", 4, 2)
    grads = normal(1024, 22, ranks=4)
    one = exchange(params, grads)
    values = torch.empty(1024)
    reference.decode(params, 0, 0, 3, reference.table_sum(params, one.packed[:3]), one.scales, 1024, values)
    assert nmse(values, grads[:3]) < 0.03


def test_streams_do_not_repeat():
    """No draw of one (stream, sequence, chunk) is that of another."""
    rows = {
        tuple(philox.halves(1, sequence, chunk, stream, 0, 128).tolist())
        for sequence in range(3)
        for chunk in range(3)
        for stream in range(4)
    }
    assert len(rows) == 36
