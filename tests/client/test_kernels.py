"""The C kernels of thc compute what the reference computes, bit for bit, in every variant that this CPU runs."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from pascaline.codec.thc import Params, kernels, reference, setting
from pascaline.errors import ConfigurationError, UnsupportedTensor

from . import thc_vectors

GOLDEN = json.loads(thc_vectors.PATH.read_text())
SEED, SEQUENCE, CHUNK = 0xFEDCBA9876543210, 0x9ABCDEF0, 0x80000007
LENGTHS = (1, 63, 64, 65, 127, 129, 300, 512, 513, 1023, 1024, 1025, 2048, 2111)
STREAMED = 20 * 1024 + 5
"""Elements of a chunk whose values are written past the cache, where the array's address allows it."""


@pytest.fixture(autouse=True)
def own_choice():
    before = kernels.variant()
    yield
    kernels.use(before)


@pytest.fixture(params=kernels.VARIANTS)
def variant(request):
    if request.param not in kernels.variants():
        pytest.skip(f"this CPU does not run {request.param}")
    kernels.use(request.param)
    return request.param


def identity(bits: int, n: int, **others) -> Params:
    return Params(bits, tuple(range(2**bits)), 2.5, n, SEED, **others)


def spread(bits: int, n: int, g: int, **others) -> Params:
    """A table of 2^bits entries that is not even, up to g, with repeated entries where g is small."""
    steps = np.sqrt(np.linspace(0, 1, 2**bits)) * g
    return Params(bits, tuple(int(step) for step in steps), 2.25, n, SEED, **others)


def settings() -> dict[str, Params]:
    thc = setting("thc", 8, SEED)
    replace = dataclasses.replace
    found = {name: setting(name, 8, SEED) for name in ("thc-paper", "thc-release", "thc-uniform", "terngrad")}
    found |= {"thc": thc, "thc-1": setting("thc", 1, SEED), "thc-16": setting("thc", 16, SEED)}
    found |= {f"thc-{bits}-bits": setting("thc", 3, SEED, bits) for bits in (2, 3, 8)}
    found["fixed-rotation"] = replace(thc, fresh_rotation=False, debias=1.03125)
    found["not-rotated"] = replace(thc, rotate=False)
    found["max-norm"] = replace(thc, norm="max", rounding="independent", scale_per="tensor")
    found["tensor-scale-stratified"] = replace(thc, scale_per="tensor", debias=1.25)
    found["tensor-scale-not-rotated"] = replace(thc, scale_per="tensor", rotate=False, norm="max")
    found |= {f"g-{g}": spread(4, 2, g) for g in (1, 3, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255)}
    found |= {f"8-bits-g-{g}": spread(8, 7, g, rounding="shared") for g in (1, 200, 255)}
    found["8-bits-not-rotated"] = identity(8, 5, rotate=False, norm="max")
    found["2-bits-wide"] = spread(2, 100, 200, rounding="independent")
    found |= {f"n-{n}": spread(4, n, 1) for n in (127, 128, 129, 1000, 32767, 32768, 65535)}
    return found


SETTINGS = settings()


def gradient(elems: int, seed: int = 1) -> np.ndarray:
    """Normal, with a scale of its own in every stretch of 512: some blocks' squares overflow, or vanish, or are 0."""
    generator = np.random.default_rng(seed)
    scales = np.array([1, 1e-3, 1e-19, 1e-26, 1e-44, 0, 1e18, 1e25, 3e38, 1e-30], np.float64)
    scale = np.repeat(scales[generator.integers(0, scales.size, elems // 512 + 1)], 512)[:elems]
    return np.clip(generator.standard_normal(elems) * scale, -3e38, 3e38).astype(np.float32)


def placed(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy that begins `offset` elements after an address that divides by 64."""
    room = np.empty(array.size + offset + 64 // array.itemsize, array.dtype)
    start = -room.ctypes.data % 64 // array.itemsize + offset
    result = room[start : start + array.size]
    result[:] = array
    return result


def unhex(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), np.float32)


def short(array: np.ndarray) -> str:
    return thc_vectors.short(torch.from_numpy(array))


def same(a: np.ndarray, b: np.ndarray | torch.Tensor) -> bool:
    b = np.asarray(b)
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@dataclasses.dataclass
class Expected:
    """What the reference makes of one chunk."""

    grad: np.ndarray
    residual: np.ndarray | None
    norms: np.ndarray
    scales: np.ndarray
    packed: np.ndarray
    residual_out: np.ndarray
    sums: np.ndarray
    values: np.ndarray


LOSS_SCALE = 16.0


def expected(
    params: Params, grad: np.ndarray, residual: np.ndarray | None, rank: int, louder: float
) -> Expected:
    """`louder`: the scale, in norms of this rank: other ranks' may be larger."""
    x, old = torch.from_numpy(grad), None if residual is None else torch.from_numpy(residual)
    norms = reference.norms(params, x, old, LOSS_SCALE)
    own = (
        reference.tensor_norm(params, norms).expand(norms.numel()) if params.scale_per == "tensor" else norms
    )
    scales = own * louder
    coordinates = params.coordinates(grad.size) + 4096
    packed = torch.zeros(params.packed_bytes(grad.size), dtype=torch.uint8)
    left, values = torch.zeros(grad.size), torch.zeros(grad.size)
    where = (params, rank, SEQUENCE, CHUNK)
    reference.encode(*where, x, old, left, LOSS_SCALE, scales, coordinates, packed)
    generator = np.random.default_rng(grad.size)
    dtype = np.uint8 if params.sum_bits == 8 else np.uint16
    sums = generator.integers(0, params.g * params.n + 1, params.coordinates(grad.size)).astype(dtype)
    reference.decode(params, SEQUENCE, CHUNK, params.n, torch.from_numpy(sums), scales, coordinates, values)
    return Expected(
        grad, residual, *(one.numpy() for one in (norms, scales, packed, left)), sums, values.numpy()
    )


@cache
def expected_of(name: str, elems: int, with_residual: bool) -> Expected:
    params = SETTINGS[name]
    residual = gradient(elems, 2) * np.float32(0.25) if with_residual else None
    return expected(params, gradient(elems), residual, (elems + 1) % params.n, 1.0 if with_residual else 1.75)


def check(params: Params, one: Expected, rank: int, offset: int, both: bool = True) -> None:
    grad = placed(one.grad, offset)
    residual = None if one.residual is None else placed(one.residual, offset + 3)
    scales, elems = placed(one.scales, 1), one.grad.size
    coordinates = params.coordinates(elems) + 4096
    norms = placed(np.zeros_like(one.norms), 1)
    assert kernels.norms(params, grad, residual, LOSS_SCALE, norms) is norms
    assert same(norms, one.norms)
    left = placed(np.full(elems, 7, np.float32), offset + 1)
    packed = placed(np.full(one.packed.size, 0xEE, np.uint8), offset)
    for residual_out in (left, None):
        packed[:] = 0xEE
        kernels.encode(
            params,
            rank,
            SEQUENCE,
            CHUNK,
            grad,
            residual,
            residual_out,
            LOSS_SCALE,
            scales,
            coordinates,
            packed,
        )
        assert same(packed, one.packed)
    assert same(left, one.residual_out)
    values = placed(np.full(elems, 7, np.float32), offset)
    kernels.decode(params, SEQUENCE, CHUNK, params.n, placed(one.sums, offset), scales, coordinates, values)
    assert same(values, one.values)


def lengths(name: str) -> tuple[int, ...]:
    """All lengths for one setting of each width; for the others whole blocks and a short one."""
    return LENGTHS if name in ("thc", "terngrad", "thc-8-bits") else (2 * 1024 + 77,)


@pytest.mark.parametrize("with_residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("name", SETTINGS)
def test_equals_the_reference(variant, name, with_residual):
    params = SETTINGS[name]
    for elems in lengths(name):
        check(params, expected_of(name, elems, with_residual), (elems + 1) % params.n, elems % 5)


@pytest.mark.parametrize("offset", [0, 8, 1], ids=lambda offset: f"{4 * offset}-bytes-off")
@pytest.mark.parametrize("name", ["thc", "thc-16", "not-rotated"])
def test_what_is_written_past_the_cache(variant, name, offset):
    params = SETTINGS[name]
    check(params, expected_of(name, STREAMED, True), (STREAMED + 1) % params.n, offset)
    left = placed(expected_of(name, STREAMED, True).residual, offset)
    one = expected_of(name, STREAMED, True)
    packed = np.empty(one.packed.size, np.uint8)
    coordinates = params.coordinates(STREAMED) + 4096
    rank = (STREAMED + 1) % params.n
    kernels.encode(
        params, rank, SEQUENCE, CHUNK, one.grad, left, left, LOSS_SCALE, one.scales, coordinates, packed
    )
    assert same(left, one.residual_out), "the new residual may take the old one's place"


@pytest.mark.parametrize("name", ["thc", "max-norm", "thc-paper"])
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan], ids=str)
def test_inf_and_nan_stop_their_block_only(variant, name, odd):
    params = SETTINGS[name]
    grad, residual = gradient(5000, 3), gradient(5000, 4)
    grad[1500], grad[4999] = odd, -odd
    for old in (None, residual):
        check(params, expected(params, grad, old, 1 % params.n, 1.0), 1 % params.n, 2)


def test_a_norm_that_overflows(variant):
    """1024 values of 3e38 have no finite l2 norm: the block decodes to Inf, and keeps its residual."""
    grad = np.full(2048, 3e38, np.float32)
    grad[:1024] = 1
    params = SETTINGS["thc"]
    one = expected(params, grad, gradient(2048, 5) * np.float32(1e-3), 0, 1.0)
    assert one.norms[0] > 0 and np.isinf(one.norms[1])
    check(params, one, 0, 0)


@pytest.mark.parametrize("name", ["thc", "max-norm"])
@pytest.mark.parametrize("exponent", [-99, -100, -50, 64])
def test_norms_where_they_become_0_or_need_care(variant, name, exponent):
    for value in (2.0**exponent, np.nextafter(np.float32(2.0**exponent), np.float32(0))):
        grad = np.zeros(1024, np.float32)
        grad[300] = value
        wanted = reference.norms(SETTINGS[name], torch.from_numpy(grad))
        assert same(kernels.norms(SETTINGS[name], grad), wanted)
        assert bool(wanted[0] == 0) == (float(value) < 2.0**-100)


def test_below_which_sum_of_squares_a_norm_needs_care(variant):
    """One partial sum of four squares, 1.125 * 2^-101: half a unit of its last place, and a tiny one beyond that.

    The tiny one is 1.2 * 2^-149, which only care sees whole: else it is cut to 2^-149 and rounds away.
    """
    grad = np.zeros(1024, np.float32)
    grad[[0, 64]] = 2.0**-63
    grad[128] = np.sqrt(1.2 * 2.0**-149)
    grad[192] = 1.5 * 2.0**-51
    wanted = reference.norms(SETTINGS["thc"], torch.from_numpy(grad))
    assert same(kernels.norms(SETTINGS["thc"], grad), wanted)
    assert float(wanted[0]) == np.nextafter(grad[192], np.float32(1))


@pytest.mark.parametrize("params", [SETTINGS["thc"], SETTINGS["max-norm"]], ids=["l2", "max"])
@pytest.mark.parametrize("blocks", [1, 63, 64, 65, 1000])
def test_tensor_norm(params, blocks):
    for scale in (1, 1e-25, 1e25, 3e37, 0):
        norms = np.abs(gradient(blocks, blocks)) * np.float32(0) + np.float32(scale)
        norms[-1] *= 3
        assert same(
            kernels.tensor_norm(params, norms), reference.tensor_norm(params, torch.from_numpy(norms))
        )


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
@pytest.mark.parametrize("sequence,chunk", [(0, 0), (1, 0), (0, 1), (2**32 - 1, 2**32 - 1)])
def test_every_word_of_the_counter_counts(variant, seed, sequence, chunk):
    params = dataclasses.replace(SETTINGS["thc"], seed=seed)
    grad, scales = gradient(2048), np.full(2, 40, np.float32)
    packed, expected_packed = np.empty(1024, np.uint8), torch.empty(1024, dtype=torch.uint8)
    where = (params, 7, sequence, chunk)
    kernels.encode(*where, grad, None, None, 1.0, scales, 2048, packed)
    x, scale = torch.from_numpy(grad), torch.from_numpy(scales)
    reference.encode(*where, x, None, None, 1.0, scale, 2048, expected_packed)
    assert same(packed, expected_packed)


LARGEST_N = (1, 8, 127, 128, 129, 1000, 32767, 32768, 65535)


@pytest.mark.parametrize(
    "rounding,n", [("independent", 8), ("shared", 8), *(("stratified", n) for n in LARGEST_N)]
)
def test_a_draw_is_the_reference_s_to_its_last_bit(variant, rounding, n):
    """Coordinates whose positions are their own draws are rounded down, those one float32 above are rounded up.

    A draw of one rounding too few is another number where 16 bits and a stratum have more than 24 bits, n > 128.
    """
    params = Params(4, (0,) * 15 + (1,), 0.5, n, SEED, norm="max", rotate=False, rounding=rounding)
    ones, packed = np.ones(8, np.float32), np.empty(4096, np.uint8)
    for rank in {0, n // 2, n - 1}:
        draws = reference._draws(params, rank, SEQUENCE, CHUNK, 0, 8192).numpy()
        exact = (draws >= 0.25) & (draws < 1)  # so that position - 1/2 + 1/2 is the position
        assert exact.sum() > 4000 or n == 1
        for position, index in ((draws, 14), (np.nextafter(draws, np.float32(2)), 15)):
            grad = np.where(exact, position - np.float32(0.5), np.float32(0))
            kernels.encode(params, rank, SEQUENCE, CHUNK, grad, None, None, 1.0, ones, 8192, packed)
            indices = reference.unpack(params, torch.from_numpy(packed)).numpy()
            assert (indices[exact] == index).all()


@pytest.mark.parametrize("scale", [0, 2.0**-99], ids=["nothing-sent", "sent"])
def test_a_thread_that_flushes_denormals_gets_the_same_bits(variant, scale):
    """Residuals that are denormal numbers count, and stay what they are."""
    generator = np.random.default_rng(1)
    grad, residual = (generator.standard_normal((2, 1024)) * 2.0**-130).astype(np.float32)
    left, packed = [np.empty(1024, np.float32) for _ in range(2)], np.empty(512, np.uint8)
    scales = np.full(1, scale, np.float32)
    for flush in (False, True):
        torch.set_flush_denormal(flush)
        try:
            kernels.encode(SETTINGS["thc"], 0, 0, 0, grad, residual, left[flush], 0.5, scales, 1024, packed)
        finally:
            torch.set_flush_denormal(False)
    assert left[0].tobytes() == left[1].tobytes()
    assert scale or same(left[0], (grad + residual * np.float32(0.5)) * 2)


def test_contributors_below_n(variant):
    params = SETTINGS["thc"]
    sums = np.random.default_rng(1).integers(0, 3 * params.g + 1, 2048).astype(np.uint8)
    scales, values, expected_values = (
        np.array([2, 3], np.float32),
        np.empty(1900, np.float32),
        torch.empty(1900),
    )
    kernels.decode(params, 1, 2, 3, sums, scales, 2048, values)
    reference.decode(params, 1, 2, 3, torch.from_numpy(sums), torch.from_numpy(scales), 2048, expected_values)
    assert same(values, expected_values)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_golden_vectors(variant, case):
    params, where = Params(**case["params"]), (GOLDEN["sequence"], GOLDEN["chunk"])
    for given, wanted in zip(GOLDEN["inputs"], case["outputs"], strict=True):
        grads, residuals = ([unhex(one) for one in given[name]] for name in ("grads", "residuals"))
        elems, scales = given["elems"], unhex(wanted["scales"])
        coordinates, contributions = params.coordinates(elems), []
        for rank, (grad, residual) in enumerate(zip(grads, residuals, strict=True)):
            left, packed = np.empty(elems, np.float32), np.empty(params.packed_bytes(elems), np.uint8)
            outs = (GOLDEN["loss_scale"], scales, coordinates, packed)
            kernels.encode(params, rank, *where, grad, residual, left, *outs)
            assert short(packed) == wanted["packed"][rank]
            assert short(left) == wanted["residuals"][rank]
            contributions.append(torch.from_numpy(packed))
        sums, values = reference.table_sum(params, contributions).numpy(), np.empty(elems, np.float32)
        kernels.decode(params, *where, params.n, sums, scales, coordinates, values)
        assert short(values) == wanted["values"]


# ---- The door ----


def test_this_cpu_runs_what_it_says():
    assert kernels.available()
    flags = Path("/proc/cpuinfo").read_text()
    assert kernels.variants()[0] == "scalar"
    assert ("avx2" in kernels.variants()) == (" avx2" in flags and " fma" in flags)
    assert ("avx512" in kernels.variants()) == (" avx512_vnni" in flags and " avx512vbmi" in flags)


def test_the_best_variant_runs_unless_one_is_forced():
    program = "from pascaline.codec.thc import kernels; print(kernels.variant())"
    plain = {name: value for name, value in os.environ.items() if name != kernels.VARIABLE}
    for forced, wanted in (({}, kernels.variants()[-1]), ({kernels.VARIABLE: "scalar"}, "scalar")):
        run = subprocess.run(
            [sys.executable, "-c", program], env=plain | forced, capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == wanted


def test_a_variant_that_does_not_exist_is_refused():
    with pytest.raises(ConfigurationError, match=r"'sse9'.*scalar"):
        kernels.use("sse9")


ARRAYS = {
    "grad": np.ones(300, np.float32),
    "residual": np.ones(300, np.float32),
    "residual_out": np.ones(300, np.float32),
    "scales": np.ones(1, np.float32),
    "packed": np.ones(256, np.uint8),
}


@pytest.mark.parametrize(
    "change",
    [
        {"grad": np.ones(300)},
        {"grad": np.ones(600, np.float32)[::2]},
        {"grad": np.frombuffer(bytes(1201), np.uint8)[1:].view(np.float32)},
        {"residual": np.ones(299, np.float32)},
        {"residual_out": np.frombuffer(bytes(1200), np.float32)},
        {"scales": np.ones(2, np.float32)},
        {"packed": np.ones(255, np.uint8)},
        {"packed": np.ones(256, np.int8)},
    ],
    ids=lambda change: (
        f"{next(iter(change))}-{next(iter(change.values())).dtype}-{next(iter(change.values())).size}"
    ),
)
def test_an_array_that_does_not_fit_is_refused(change):
    def run(grad, residual, residual_out, scales, packed):
        kernels.encode(SETTINGS["thc"], 0, 0, 0, grad, residual, residual_out, 1.0, scales, 512, packed)

    run(**ARRAYS)
    with pytest.raises(UnsupportedTensor, match=next(iter(change))):
        run(**ARRAYS | change)


def test_sums_of_the_wrong_width_are_refused():
    for name, dtype in (("thc", np.uint16), ("thc-16", np.uint8)):
        with pytest.raises(UnsupportedTensor, match="sums"):
            kernels.decode(
                SETTINGS[name],
                0,
                0,
                1,
                np.ones(1024, dtype),
                np.ones(1, np.float32),
                1024,
                np.ones(1024, np.float32),
            )


def test_ranks_and_contributors_beyond_n_are_refused():
    arrays = (ARRAYS["grad"], None, None, 1.0, ARRAYS["scales"], 512, ARRAYS["packed"])
    for rank in (-1, 8):
        with pytest.raises(ConfigurationError, match=rf"rank {rank}.*8"):
            kernels.encode(SETTINGS["thc"], rank, 0, 0, *arrays)
    with pytest.raises(ConfigurationError, match=r"9 contributors.*8"):
        kernels.decode(
            SETTINGS["thc"], 0, 0, 9, np.ones(512, np.uint8), ARRAYS["scales"], 512, np.ones(300, np.float32)
        )
