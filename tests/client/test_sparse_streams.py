"""The C kernels of streams write, refuse and take apart what the reference does, bit for bit, in every variant that
this CPU runs, wherever a stream and its values lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pascaline.codec.sparse import reference, stream, stream_kernels
from pascaline.errors import EpochEnded, UnsupportedTensor

from .test_sparse_kernels import guarded, intact, sparse, variant

__all__ = ["variant"]
SUB_BLOCK = stream.SUB_BLOCK
SUPPORTS = (
    "1 %",
    "30 %",
    "one in each sub-block",
    "all but one in each sub-block",
    "all in one",
    "empty",
    "full",
)


def support(kind: str, elems: int, seed: int) -> np.ndarray:
    """(elems,) bool."""
    rng = np.random.default_rng([seed, elems])
    there = np.zeros(elems, np.bool_)
    if "%" in kind:
        there = rng.random(elems) < float(kind[:-1]) / 100
    elif "each" in kind:
        begins = np.arange(0, elems, SUB_BLOCK)
        there[begins + rng.integers(0, np.minimum(SUB_BLOCK, elems - begins))] = True
        there ^= kind.startswith("all but")
    elif kind != "empty":
        there[0 if kind == "full" else (elems - 1) // SUB_BLOCK * SUB_BLOCK :] = True
    return there


def bytes_at(size: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """(size,) u8 between guards, `offset` words from where it would lie otherwise."""
    whole, inner = guarded(size // 4, np.uint32, offset)
    return whole, inner.view(np.uint8)


def alike(elems: int, kind: str, offset: int) -> None:
    """Everything about one stream, by the kernels and by the reference."""
    there = support(kind, elems, offset)
    bitmap, count = reference.bitmap_of(there), int(there.sum())
    x = np.random.default_rng(elems).integers(0, 1 << 32, elems, np.uint32)
    packed = x[there]
    length = stream.length_bytes(elems, bitmap)
    assert stream_kernels.length_bytes(elems, bitmap) == length
    expected = np.empty(length, np.uint8)
    stream.write(x, None, bitmap, elems, expected)
    for source in ((x, None), (None, packed)):
        whole, made = bytes_at(length, offset)
        stream_kernels.write(*source, bitmap, elems, made)
        assert made.tobytes() == expected.tobytes() and intact(whole, made.view(np.uint32))
    assert stream_kernels.check(elems, made) == stream.check(elems, expected) == count
    whole, values = guarded(count, np.uint32, offset)
    stream_kernels.values_of(elems, made, values)
    assert values.tobytes() == packed.tobytes() and intact(whole, values)
    others = ~packed
    for own in (None, others):
        back = np.empty(elems, np.float32)
        stream.unpack(elems, expected, own, back)
        whole, values = guarded(elems, np.uint32, offset)
        stream_kernels.unpack(elems, made, own, values.view(np.float32))
        assert values.tobytes() == back.tobytes() and intact(whole, values)


@pytest.mark.parametrize("kind", SUPPORTS)
def test_every_length_is_the_reference_s(variant: str, kind: str) -> None:
    for elems in range(1, 2101):
        alike(elems, kind, elems % 16)


@pytest.mark.parametrize("kind", SUPPORTS)
@pytest.mark.parametrize("elems", [2 * SUB_BLOCK, 3 * SUB_BLOCK + 1, 9 * SUB_BLOCK - 31, 62 * SUB_BLOCK])
def test_several_sub_blocks_wherever_they_lie(variant: str, kind: str, elems: int) -> None:
    for offset in (0, 1, 7, 15):
        alike(elems, kind, offset)


def test_values_are_written_past_the_cache_where_they_may_be(variant: str) -> None:
    elems = 9 * SUB_BLOCK + 33
    for kind in SUPPORTS:
        there = support(kind, elems, 0)
        x = np.where(there, np.arange(1, elems + 1), 0).astype(np.uint32)
        bitmap = reference.bitmap_of(there)
        made = np.empty(stream_kernels.length_bytes(elems, bitmap), np.uint8)
        stream_kernels.write(x, None, bitmap, elems, made)
        room = np.full(elems + 32, 0xA5A5A5A5, np.uint32)
        begin = -room.ctypes.data % 64 // 4
        stream_kernels.unpack(elems, made, None, room[begin : begin + elems])
        assert room[begin : begin + elems].tobytes() == x.tobytes()
        assert (room[:begin] == 0xA5A5A5A5).all() and (room[begin + elems :] == 0xA5A5A5A5).all()


def outcome(machine: ModuleType, elems: int, made: np.ndarray) -> Any:
    try:
        return machine.check(elems, made)
    except EpochEnded as refused:
        return refused.fault, str(refused)


def wrong_streams(elems: int, count: int) -> Iterator[np.ndarray]:
    """Whole ones, and such with a word that is another, cut off, or longer."""
    rng = np.random.default_rng(elems)
    for number in range(count):
        there = support(SUPPORTS[number % len(SUPPORTS)], elems, number)
        bitmap = reference.bitmap_of(there)
        made = np.empty(stream.length_bytes(elems, bitmap), np.uint8)
        stream.write(np.arange(elems, dtype=np.uint32), None, bitmap, elems, made)
        words = made.view(np.uint32)
        yield made
        heads = np.flatnonzero(words == np.uint32(there[:SUB_BLOCK].sum()))[:2]
        for place in {0, *heads.tolist(), *rng.integers(0, words.size, 3).tolist()}:
            for other in (
                0,
                1,
                SUB_BLOCK,
                SUB_BLOCK + 1,
                0xFFFFFFFF,
                int(words[place]) ^ 1 << int(rng.integers(32)),
            ):
                changed = words.copy()
                changed[place] = other
                yield changed.view(np.uint8)
        yield made[: 4 * int(rng.integers(0, words.size))]
        yield np.concatenate([made, made[:4]])


@pytest.mark.parametrize("elems", [1, 40, SUB_BLOCK, SUB_BLOCK + 40, 5 * SUB_BLOCK + 77])
def test_what_is_no_stream_is_refused_with_the_same_words(variant: str, elems: int) -> None:
    found = set()
    for made in wrong_streams(elems, 70):
        got = outcome(stream_kernels, elems, made)
        assert got == outcome(stream, elems, made)
        found.add(got[0] if isinstance(got, tuple) else "good")
    assert found == {"good", "elements_mismatch", "sub_block", "stream_length"}


def test_gradients_with_everything_in_them(variant: str) -> None:
    """NaN, Inf, denormals and -0.0 as bits: what is marked is what travels."""
    x = sparse(5 * SUB_BLOCK + 3, 0.1)
    bitmap = np.empty(reference.words_of(x.size), np.uint32)
    reference.mark(x, 1, bitmap)
    made = np.empty(stream_kernels.length_bytes(x.size, bitmap), np.uint8)
    stream_kernels.write(x, None, bitmap, x.size, made)
    back = np.empty_like(x)
    stream_kernels.unpack(x.size, made, None, back)
    marked = reference.bits_of(bitmap, x.size)
    assert np.where(marked, x, np.float32(0)).tobytes() == back.tobytes()


def test_an_array_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedTensor, match="bitmap is uint32 with 1 elements"):
        stream_kernels.length_bytes(33, np.zeros(1, np.uint32))
    with pytest.raises(UnsupportedTensor, match="values is uint32 with 3 elements"):
        stream_kernels.unpack(4, np.zeros(8, np.uint8), None, np.zeros(3, np.float32))
