"""Streams of sub-blocks as docs/expand-sum.md has them, by numpy and from that page's words alone.

`encode` makes one, `decode` takes a whole one apart, and `fault_of` says what is the matter with the beginning of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUB_BLOCK = 2048
SPARE_BYTES = 64

Words = NDArray[np.uint32]


def elements_max(chunk_bytes: int) -> int:
    """The most elements that a slot of so many bytes takes: counted, not solved."""
    elements = chunk_bytes // 4
    while 4 * (elements + -(-elements // 32)) + SPARE_BYTES > chunk_bytes:
        elements -= 1
    return elements


def encode(there: NDArray[np.bool_], values: NDArray[Any]) -> bytes:
    """The stream of the 4-byte `values` that are `there`: arrays of one length."""
    words = values.view(np.uint32)
    parts = [np.array([there.size], np.uint32)]
    for begin in range(0, there.size, SUB_BLOCK):
        mask = there[begin : begin + SUB_BLOCK]
        parts.append(np.array([mask.sum()], np.uint32))
        if 0 < mask.sum() < mask.size:
            bits = np.zeros(-(-mask.size // 32) * 32, np.uint8)
            bits[: mask.size] = mask
            parts.append(np.packbits(bits, bitorder="little").view(np.uint32))
        parts.append(words[begin : begin + SUB_BLOCK][mask])
    return np.concatenate(parts).astype("<u4").tobytes()


def decode(stream: bytes) -> tuple[NDArray[np.bool_], Words]:
    """What is there, and the values as words, 0 where nothing is."""
    walk = _Walk(stream)
    assert walk.fault(len(stream), 1 << 24, None) is None and walk.at == len(stream)
    return walk.there, walk.values


def add(parts: list[bytes], dtype: type) -> bytes:
    """The result of these contributions, added in this order; the first value of an element is stored."""
    decoded = [decode(part) for part in parts]
    united, total = decoded[0][0].copy(), decoded[0][1].copy()
    for there, words in decoded[1:]:
        with np.errstate(all="ignore"):
            both, new = there & united, there & ~united
            total.view(dtype)[both] += words.view(dtype)[both]
            total[new] = words[new]
        united |= there
    return encode(united, total)


@dataclass(frozen=True)
class Fault:
    name: str
    expected: int
    got: int


class _Walk:
    """One stream, or its beginning, word by word."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.there = np.zeros(0, bool)
        self.values = np.zeros(0, np.uint32)

    def take(self, words: int) -> Words | None:
        """The next ones; None: they have not come yet."""
        end = self.at + 4 * words
        if end > len(self.data):
            return None
        taken = np.frombuffer(self.data[self.at : end], "<u4")
        self.at = end
        return taken

    def fault(self, length: int, most: int, agreed: int | None) -> Fault | None:
        """The first thing that is wrong; `length`: bytes of its message."""
        whole = length == len(self.data)
        head = self.take(1)
        if head is None:
            return Fault("stream_length", self.at + 8, length) if whole else None
        elements = int(head[0])
        if not 0 < elements <= most:
            return Fault("elements_range", most, elements)
        if agreed is not None and elements != agreed:
            return Fault("elements_mismatch", agreed, elements)
        self.there, self.values = np.zeros(elements, bool), np.zeros(elements, np.uint32)
        for begin in range(0, elements, SUB_BLOCK):
            later = -(-elements // SUB_BLOCK) - begin // SUB_BLOCK - 1
            found = self.sub_block(begin, min(SUB_BLOCK, elements - begin))
            if isinstance(found, Fault):
                return found
            if found > 0:  # bytes that are still to come
                least = len(self.data) + found + 4 * later
                return Fault("stream_length", least, length) if whole else None
        return None if self.at == length else Fault("stream_length", self.at, length)

    def sub_block(self, begin: int, size: int) -> Fault | int:
        """0: it is whole; else the least bytes that it lacks, or what is wrong with it."""
        head = self.take(1)
        if head is None:
            return 4
        count = int(head[0])
        if count > size:
            return Fault("sub_block", size, count)
        bits = np.ones(size, np.uint8) if count == size else np.zeros(size, np.uint8)
        if 0 < count < size:
            words = -(-size // 32)
            bitmap = self.take(words)
            if bitmap is None:
                return 4 * (words + count) - (len(self.data) - self.at)
            bits = np.unpackbits(bitmap.astype("<u4").view(np.uint8), bitorder="little")
            if bits[size:].any():
                return Fault("sub_block", size, int(np.flatnonzero(bits)[-1]) + 1)
            if bits.sum() != count:
                return Fault("sub_block", count, int(bits.sum()))
        mask = bits[:size].astype(bool)
        values = self.take(count)
        if values is None:
            return 4 * count - (len(self.data) - self.at)
        self.there[begin : begin + size] = mask
        self.values[begin : begin + size][mask] = values
        return 0


def fault_of(data: bytes, length: int, most: int, agreed: int | None = None) -> Fault | None:
    """What is wrong with a message of `length` bytes of which `data` has come, if that shows by now.

    `most`: elements that the slot takes; `agreed`: of the round's first contribution.
    """
    return _Walk(data).fault(length, most, agreed)
