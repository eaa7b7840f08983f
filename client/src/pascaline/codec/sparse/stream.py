"""Streams of sub-blocks (docs/expand-sum.md) in numpy, with the page's checks: the definition, and what runs where the
C kernels (stream_kernels.py) are not. One step for each sub-block of 2048 elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.base import Bytes
from pascaline.codec.sparse import reference
from pascaline.codec.sparse.reference import Words, words_of
from pascaline.contract import wire
from pascaline.errors import EpochEnded

SUB_BLOCK = wire.SUB_BLOCK_ELEMS["expand_sum_f32"]
_WORDS = SUB_BLOCK // 32
_OF_BYTE = np.array([byte.bit_count() for byte in range(256)], np.uint8)
Counts = NDArray[np.int64]


def chunk_elems(slot_bytes: int) -> int:
    """Elements whose streams all fit a slot, whole sub-blocks if it holds one; 0: none does."""
    most = max(wire.sub_block_elems_max(slot_bytes), 0)
    return most // SUB_BLOCK * SUB_BLOCK or most


def longest_bytes(elems: int) -> int:
    """No stream of `elems` is longer."""
    return 4 * (1 + elems + words_of(elems))


def length_bytes(elems: int, bitmap: Words) -> int:
    """Of the stream of those of `elems` that are in `bitmap`, u32 (words,)."""
    counts = _counts_of(bitmap)
    words = 1 + counts.size + int(counts.sum())
    for block in np.flatnonzero((counts > 0) & (counts < _sizes(elems))):
        words += words_of(min(SUB_BLOCK, elems - SUB_BLOCK * int(block)))
    return 4 * words


def write(x: NDArray[Any] | None, packed: Words | None, bitmap: Words, elems: int, stream: Bytes) -> None:
    """Write to `stream`, (length_bytes,), those of `elems` that are in `bitmap`: 4-byte values of x, (elems,); or,
    where there is none, `packed`, u32 in their order.
    """
    counts = _counts_of(bitmap)
    if packed is None:
        assert x is not None
        packed = np.empty(int(counts.sum()), np.uint32)
        reference.pack(x, bitmap, packed)
    words = stream.view("<u4")
    words[0], at, taken = elems, 1, 0
    for block, (size, count) in enumerate(zip(_sizes(elems).tolist(), counts.tolist(), strict=True)):
        words[at] = count
        at += 1
        if 0 < count < size:
            own = bitmap[block * _WORDS : block * _WORDS + words_of(size)]
            words[at : at + own.size] = own
            at += own.size
        words[at : at + count] = packed[taken : taken + count]
        at, taken = at + count, taken + count


def check(elems: int, stream: Bytes) -> int:
    """How many values a stream of `elems` has. Raises EpochEnded if it is none."""
    return read(elems, stream)[1].size


def values_of(elems: int, stream: Bytes, packed: Words) -> None:
    """Write the values of a stream that has been checked to `packed`, u32 (check,)."""
    packed[:] = read(elems, stream)[1]


def unpack(elems: int, stream: Bytes, packed: Words | None, values: NDArray[Any]) -> None:
    """Write to `values`, 4 bytes each (elems,), what is in a stream that has been checked, and 0 elsewhere; `packed`,
    if given, instead of the stream's own.
    """
    bitmap, own = read(elems, stream)
    reference.unpack(own if packed is None else packed, bitmap, values)


def read(elems: int, stream: Bytes) -> tuple[Words, Words]:
    """The bitmap (words,) and the packed values of a stream of `elems`. Raises EpochEnded if it is none."""
    words = stream.view("<u4")
    if words.size == 0 or words[0] != elems:
        raise another_length(elems, int(words[0]) if words.size else 0)
    bitmap, packed = np.zeros(words_of(elems), np.uint32), np.empty(words.size, np.uint32)
    sizes, at, taken = _sizes(elems), 1, 0
    counts = np.empty(sizes.size, np.int64)
    for block, size in enumerate(sizes.tolist()):
        if at >= words.size:
            raise broken_off(at + sizes.size - block, words.size)
        count = counts[block] = int(words[at])
        if count > size:
            raise too_many(size, count)
        at += 1
        index = words_of(size) if 0 < count < size else 0
        if at + index + count > words.size:
            raise broken_off(at + index + count + sizes.size - block - 1, words.size)
        if count:
            part = bitmap[block * _WORDS : block * _WORDS + words_of(size)]
            part[:] = words[at : at + index] if index else 0xFFFFFFFF
            if size % 32 and not index:
                part[-1] = (1 << size % 32) - 1
        at += index
        packed[taken : taken + count] = words[at : at + count]
        at, taken = at + count, taken + count
    if at != words.size:
        raise broken_off(at, words.size)
    _check(elems, bitmap, counts)
    return bitmap, packed[:taken]


def _check(elems: int, bitmap: Words, counts: Counts) -> None:
    """Bitmaps have as many bits as their counts say, and none beyond the last element."""
    if elems % 32 and bitmap[-1] >> np.uint32(elems % 32):
        last = SUB_BLOCK * (counts.size - 1)
        raise beyond(elems - last, elems // 32 * 32 + int(bitmap[-1]).bit_length() - last)
    found = _counts_of(bitmap)
    wrong = np.flatnonzero(found != counts)
    if wrong.size:
        raise another_count(int(counts[wrong[0]]), int(found[wrong[0]]))


def _counts_of(bitmap: Words) -> Counts:
    """(sub-blocks,) elements that are there of each."""
    begins = np.arange(0, 4 * bitmap.size, 4 * _WORDS)
    counts: Counts = np.add.reduceat(_OF_BYTE[bitmap.view(np.uint8)], begins, dtype=np.int64)
    return counts


def _sizes(elems: int) -> Counts:
    """(sub-blocks,) elements of each."""
    sizes = np.full(-(-elems // SUB_BLOCK), SUB_BLOCK, np.int64)
    sizes[-1] = elems - SUB_BLOCK * (sizes.size - 1)
    return sizes


# ---- What a stream is refused for: what was due, and what came ----


def another_length(elems: int, said: int) -> EpochEnded:
    """Elements; 0: it has not a word."""
    return _fault("elements_mismatch", f"of {said} elements, {elems} were due")


def too_many(size: int, count: int) -> EpochEnded:
    """Elements of a sub-block, and its count."""
    return _fault("sub_block", f"with a sub-block of {size} elements of which {count} are there")


def another_count(count: int, bits: int) -> EpochEnded:
    """The count of a sub-block, and what its bitmap has."""
    return _fault("sub_block", f"with a sub-block of {count} values whose bitmap has {bits}")


def beyond(size: int, place: int) -> EpochEnded:
    """Elements of the last sub-block, and a later place, from 1, that its bitmap has."""
    return _fault("sub_block", f"with a sub-block of {size} elements whose bitmap has {place}")


def broken_off(least: int, words: int) -> EpochEnded:
    """Words that the sub-blocks take, and those that came."""
    return _fault("stream_length", f"of {4 * words} bytes whose sub-blocks take {4 * least}")


def _fault(fault: str, what: str) -> EpochEnded:
    return EpochEnded(f"a result came that is a stream {what}", fault)
