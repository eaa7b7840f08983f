"""The C kernels of sparse compute what the reference computes, bit for bit, in every variant that this CPU runs."""

from __future__ import annotations

import numpy as np
import pytest

from pascaline.codec.sparse import kernels, reference
from pascaline.codec.thc import kernels as door
from pascaline.errors import UnsupportedTensor

LENGTHS = (1, 2, 31, 32, 33, 63, 64, 65, 100, 1000, 1023, 1025, 16384, 20 * 1024 + 5)
DENSITIES = (0.0, 0.01, 0.1, 0.3, 0.9, 1.0)


@pytest.fixture(params=door.VARIANTS)
def variant(request):
    if request.param not in door.variants():
        pytest.skip(f"this CPU does not run {request.param}")
    before = door.variant()
    door.use(request.param)
    yield request.param
    door.use(before)


def sparse(elems: int, density: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(1000 * seed + elems)
    x = np.where(rng.random(elems) < density, rng.standard_normal(elems), 0).astype(np.float32)
    x[:: max(elems // 7, 1)] = rng.choice(
        [np.nan, -np.inf, -0.0, 1e-45, -1.0, 3.4e38], x[:: max(elems // 7, 1)].size
    )
    return x


def guarded(size: int, dtype: type, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """An array inside a larger one, whose other elements show what was written beyond its ends."""
    whole = np.full(size + 64, 0xA5A5A5A5, np.uint32)
    return whole, whole[16 + offset : 16 + offset + size].view(dtype)


def intact(whole: np.ndarray, inner: np.ndarray) -> bool:
    outside = whole.size - inner.size
    return int((whole == 0xA5A5A5A5).sum()) >= outside and bool(
        (whole[:16] == 0xA5A5A5A5).all() and (whole[-32:] == 0xA5A5A5A5).all()
    )


@pytest.mark.parametrize("elems", LENGTHS)
def test_every_operation_is_the_reference_s(variant: str, elems: int) -> None:
    for seed, density in enumerate(DENSITIES):
        x, other = sparse(elems, density, seed), sparse(elems, density, seed + 100)
        words = reference.words_of(elems)
        for least in (1, int(np.float32(0.7).view(np.uint32)), 0x7F800000):
            expected, (whole, got) = np.empty(words, np.uint32), guarded(words, np.uint32)
            assert reference.mark(x, least, expected) == kernels.mark(x, least, got)
            assert got.tobytes() == expected.tobytes()
            assert intact(whole, got)
        own, theirs = np.empty(words, np.uint32), np.empty(words, np.uint32)
        reference.mark(x, 1, own)
        reference.mark(other, 1, theirs)
        chosen = own | theirs
        count = reference.count(chosen)
        assert kernels.count(chosen) == count == int(((x != 0) | (other != 0)).sum())
        expected, (whole, got) = np.empty(count, np.uint32), guarded(count, np.uint32)
        reference.pack(other, chosen, expected)
        kernels.pack(other, chosen, got)
        assert got.tobytes() == expected.tobytes()
        assert intact(whole, got)
        for offset in (0, 1):  # the second is written through the cache
            back, (whole, values) = np.empty(elems, np.float32), guarded(elems, np.float32, offset)
            reference.unpack(expected, chosen, back)
            kernels.unpack(expected, chosen, values)
            assert values.tobytes() == back.tobytes()
            assert intact(whole, values.view(np.uint32))


def test_values_are_written_past_the_cache_where_they_may_be(variant: str) -> None:
    elems = 1 << 15
    room = np.zeros(elems + 16, np.float32)
    begin = -room.ctypes.data % 64 // 4
    values = room[begin : begin + elems]
    chosen = np.full(elems // 32, 0x80000001, np.uint32)
    packed = np.arange(elems // 16, dtype=np.uint32)
    kernels.unpack(packed, chosen, values)
    assert values.view(np.uint32)[reference.bits_of(chosen, elems)].tobytes() == packed.tobytes()
    assert np.count_nonzero(values.view(np.uint32)) == packed.size - 1


def test_a_bitmap_of_words_is_read_and_written_alike() -> None:
    bits = np.random.default_rng(1).random(77) < 0.5
    bitmap = reference.bitmap_of(bits)
    assert bitmap.dtype == np.uint32 and bitmap.size == 3
    assert [int(bitmap[i // 32] >> (i % 32) & 1) for i in range(77)] == bits.astype(int).tolist()
    assert reference.bits_of(bitmap, 77).tolist() == bits.tolist()


def test_an_array_that_does_not_fit_is_refused_by_name() -> None:
    x, bitmap = np.ones(33, np.float32), np.zeros(1, np.uint32)
    with pytest.raises(UnsupportedTensor, match="bitmap is uint32 with 1 elements"):
        kernels.mark(x, 1, bitmap)
    with pytest.raises(UnsupportedTensor, match="x is float32 with 17 elements, not contiguous"):
        kernels.mark(x[::2], 1, bitmap)
