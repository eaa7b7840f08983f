"""Streams of sub-blocks (docs/expand-sum.md) out of a bitmap and packed values, and back, with the page's checks.

One step for each sub-block of 2048 elements; what is done for each element is done by the kernels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.base import Bytes
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


def counts_of(bitmap: Words) -> Counts:
    """(sub-blocks,) elements that are there of each."""
    begins = np.arange(0, 4 * bitmap.size, 4 * _WORDS)
    counts: Counts = np.add.reduceat(_OF_BYTE[bitmap.view(np.uint8)], begins, dtype=np.int64)
    return counts


def length_bytes(elems: int, counts: Counts) -> int:
    """Of the stream of `elems` of which each sub-block has `counts`."""
    words = 1 + counts.size + int(counts.sum())
    for block in np.flatnonzero((counts > 0) & (counts < _sizes(elems))):
        words += words_of(min(SUB_BLOCK, elems - SUB_BLOCK * int(block)))
    return 4 * words


def _sizes(elems: int) -> Counts:
    """(sub-blocks,) elements of each."""
    sizes = np.full(-(-elems // SUB_BLOCK), SUB_BLOCK, np.int64)
    sizes[-1] = elems - SUB_BLOCK * (sizes.size - 1)
    return sizes


def write(elems: int, bitmap: Words, counts: Counts, packed: Words, stream: Bytes) -> None:
    """Write to `stream`, (length_bytes,), those of `elems` that are in `bitmap`; `packed`: their values in order."""
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


def read(elems: int, stream: Bytes) -> tuple[Words, Words]:
    """The bitmap (words,) and the packed values of a stream of `elems`. Raises EpochEnded if it is none."""
    words = stream.view("<u4")
    if words.size == 0 or words[0] != elems:
        raise _fault("elements_mismatch", f"of {words[0] if words.size else 0} elements, {elems} were due")
    bitmap, packed = np.zeros(words_of(elems), np.uint32), np.empty(words.size, np.uint32)
    sizes, at, taken = _sizes(elems), 1, 0
    counts = np.empty(sizes.size, np.int64)
    for block, size in enumerate(sizes.tolist()):
        if at >= words.size:
            raise _length(words.size, at + sizes.size - block)
        count = counts[block] = int(words[at])
        if count > size:
            raise _fault("sub_block", f"with a sub-block of {size} elements of which {count} are there")
        at += 1
        index = words_of(size) if 0 < count < size else 0
        if at + index + count > words.size:
            raise _length(words.size, at + index + count + sizes.size - block - 1)
        if count:
            part = bitmap[block * _WORDS : block * _WORDS + words_of(size)]
            part[:] = words[at : at + index] if index else 0xFFFFFFFF
            if size % 32 and not index:
                part[-1] = (1 << size % 32) - 1
        at += index
        packed[taken : taken + count] = words[at : at + count]
        at, taken = at + count, taken + count
    if at != words.size:
        raise _length(words.size, at)
    _check(elems, bitmap, counts)
    return bitmap, packed[:taken]


def _check(elems: int, bitmap: Words, counts: Counts) -> None:
    """Bitmaps have as many bits as their counts say, and none beyond the last element."""
    if elems % 32 and bitmap[-1] >> np.uint32(elems % 32):
        last = SUB_BLOCK * (counts.size - 1)
        place = elems // 32 * 32 + int(bitmap[-1]).bit_length() - last
        raise _fault("sub_block", f"with a sub-block of {elems - last} elements whose bitmap has {place}")
    found = counts_of(bitmap)
    wrong = np.flatnonzero(found != counts)
    if wrong.size:
        block = wrong[0]
        raise _fault(
            "sub_block", f"with a sub-block of {counts[block]} values whose bitmap has {found[block]}"
        )


def _length(words: int, least: int) -> EpochEnded:
    return _fault("stream_length", f"of {4 * words} bytes whose sub-blocks take {4 * least}")


def _fault(fault: str, what: str) -> EpochEnded:
    return EpochEnded(f"a result came that is a stream {what}", fault)
