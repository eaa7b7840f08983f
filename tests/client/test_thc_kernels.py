"""The C kernels of thc compute what the reference computes, bit for bit, in every variant that this CPU runs."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch

from pascaline.codec.thc import Params, kernels, reference, setting

SEED, SEQUENCE, CHUNK = 0xFEDCBA9876543210, 0x9ABCDEF0, 0x80000007
LENGTHS = (1, 63, 64, 65, 127, 300, 512, 1023, 1024, 1025, 2048, 2111, 5000)


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
    """A copy that begins `offset` elements after an address that divides by 64, with nothing behind it to spare."""
    room = np.empty(array.size + offset + 64 // array.itemsize, array.dtype)
    start = -room.ctypes.data % 64 // array.itemsize + offset
    result = room[start : start + array.size]
    result[:] = array
    return result


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


@pytest.mark.parametrize("with_residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("name", SETTINGS)
def test_equals_the_reference(variant, name, with_residual):
    params = SETTINGS[name]
    for elems in LENGTHS if name in ("thc", "terngrad", "thc-8-bits") else (1, 300, 5000):
        check(params, expected_of(name, elems, with_residual), (elems + 1) % params.n, elems % 5)
