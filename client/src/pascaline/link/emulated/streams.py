"""Streams of sub-blocks (docs/expand-sum.md) in numpy: taken apart with the appliance's checks, added, made again.

Floats are added in the order of ranks, as in `ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pascaline.contract import wire

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
SUB_BLOCK = wire.SUB_BLOCK_ELEMS["expand_sum_f32"]


class StreamFault(Exception):
    """A stream that is none: the message names both values; `fault` as in enum psc_fault, `rank` whose it is."""

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(message)
        self.fault = fault
        self.rank = 0


class _Reader:
    """A stream, from its beginning on."""

    def __init__(self, stream: Bytes) -> None:
        self.words: Words = stream.view("<u4")
        self.at = 0

    def take(self, count: int) -> Words:
        """The next `count` words."""
        begin, self.at = self.at, self.at + count
        if self.at > self.words.size:
            raise StreamFault(
                "stream_length",
                f"{4 * self.words.size} bytes whose sub-blocks take {4 * self.at} or more",
            )
        return self.words[begin : self.at]

    def mask(self, size: int) -> NDArray[np.bool_]:
        """(size,): which elements of the next sub-block are there."""
        count = int(self.take(1)[0])
        if count > size:
            raise StreamFault("sub_block", f"a sub-block of {size} elements of which {count} are there")
        if count in (0, size):
            return np.full(size, count > 0)
        bits = np.unpackbits(self.take(-(-size // 32)).view(np.uint8), bitorder="little").view(np.bool_)
        if bits[size:].any():
            last = int(np.flatnonzero(bits)[-1]) + 1
            raise StreamFault("sub_block", f"a sub-block of {size} elements whose bitmap has {last}")
        if int(bits.sum()) != count:
            raise StreamFault(
                "sub_block", f"a sub-block of {count} values whose bitmap has {int(bits.sum())}"
            )
        return bits[:size]


def decode(stream: Bytes, elements_max: int) -> tuple[NDArray[np.bool_], Words]:
    """(elements,) which are there and (elements,) their 4 bytes, 0 where nothing is. Raises StreamFault."""
    reader = _Reader(stream)
    elements = int(reader.take(1)[0])
    if not 0 < elements <= elements_max:
        raise StreamFault(
            "elements_range", f"a stream of {elements} elements, a slot takes 1 to {elements_max}"
        )
    there, values = np.zeros(elements, np.bool_), np.zeros(elements, np.uint32)
    for begin in range(0, elements, SUB_BLOCK):
        part = slice(begin, min(begin + SUB_BLOCK, elements))
        there[part] = reader.mask(part.stop - begin)
        values[part][there[part]] = reader.take(int(there[part].sum()))
    if reader.at != reader.words.size:
        raise StreamFault(
            "stream_length", f"{4 * reader.words.size} bytes whose sub-blocks take {4 * reader.at}"
        )
    return there, values


def encode(there: NDArray[np.bool_], values: NDArray[Any]) -> Bytes:
    """The stream of those of `values` (elements,) of 4 bytes that are `there` (elements,)."""
    words = values.view(np.uint32)
    parts: list[NDArray[Any]] = [np.array([there.size], "<u4")]
    for begin in range(0, there.size, SUB_BLOCK):
        mask = there[begin : begin + SUB_BLOCK]
        count = int(mask.sum())
        parts.append(np.array([count], "<u4"))
        if 0 < count < mask.size:
            bits = np.zeros(-(-mask.size // 32) * 32, np.bool_)
            bits[: mask.size] = mask
            parts.append(np.packbits(bits, bitorder="little").view("<u4"))
        parts.append(words[begin : begin + SUB_BLOCK][mask].astype("<u4"))
    return np.concatenate(parts).view(np.uint8)


def _of_rank(rank: int, stream: Bytes, chunk_bytes: int) -> tuple[NDArray[np.bool_], Words]:
    try:
        return decode(stream, wire.sub_block_elems_max(chunk_bytes))
    except StreamFault as fault:
        fault.rank = rank
        raise


def add(dtype: str, contributions: Sequence[Bytes], chunk_bytes: int) -> Bytes:
    """The result of these streams, in rank order: the first value of an element is stored, later ones are added.

    Raises StreamFault; of streams that disagree about the number of elements too.
    """
    decoded = [_of_rank(rank, stream, chunk_bytes) for rank, stream in enumerate(contributions)]
    united, total = decoded[0]
    for rank, (there, words) in enumerate(decoded[1:], start=1):
        if there.size != united.size:
            fault = StreamFault(
                "elements_mismatch", f"a stream of {there.size} elements, rank 0 one of {united.size}"
            )
            fault.rank = rank
            raise fault
        both, new = there & united, there & ~united
        sums = total.view(dtype)
        sums[both] += words.view(dtype)[both]
        total[new] = words[new]
        united |= there
    return encode(united, total)
