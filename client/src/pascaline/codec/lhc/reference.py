"""The codec lhc as docs/lhc.md says it: slow, obvious, in numpy. The C and Triton kernels give these bits.

Bitmaps are uint32 (blocks,), bit l of word b for element 32 * b + l.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.lhc.params import CROWDED, LANES, TABLES, buckets
from pascaline.codec.sparse.reference import Words, bitmap_of
from pascaline.codec.thc import philox

STREAM_PLACES, STREAM_SIGNS = 0x40000000, 0x40000001
"""Of Philox: far above the streams that thc has for ranks."""

Integers = NDArray[np.int32]


class Buckets(Protocol):
    """Where elements go."""

    @property
    def size(self) -> int:
        """Buckets of all sub-tables."""
        ...

    def buckets(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """(TABLES, n): each element's bucket in each sub-table."""
        ...

    def signs(self, elements: NDArray[np.int64]) -> Integers:
        """(TABLES, n): 1 or -1."""
        ...


class Hash(NamedTuple):
    """Where a chunk's elements go; alike on all ranks."""

    seed: int
    sequence: int
    """Of the collective, 32 bits of it."""
    chunk: int
    rows: int
    """Of each sub-table."""

    @property
    def size(self) -> int:
        """Buckets of the three sub-tables together."""
        return buckets(self.rows)

    def buckets(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """(TABLES, n): each element's bucket in each sub-table."""
        words = self._words(elements, STREAM_PLACES)
        lane = elements % LANES
        rows = [(words[j].astype(np.uint64) * np.uint64(self.rows)) >> np.uint64(32) for j in range(TABLES)]
        rotations = [words[3] >> np.uint32(5 * j) & np.uint32(31) for j in range(TABLES)]
        return np.stack(
            [
                (j * self.rows + rows[j].astype(np.int64)) * LANES + (lane + rotations[j]) % LANES
                for j in range(TABLES)
            ]
        )

    def signs(self, elements: NDArray[np.int64]) -> Integers:
        """(TABLES, n): 1 or -1."""
        words = self._words(elements, STREAM_SIGNS)[:TABLES]
        negative = words >> (elements % LANES).astype(np.uint32) & np.uint32(1)
        return np.where(negative == 1, -1, 1).astype(np.int32)

    def _words(self, elements: NDArray[np.int64], stream: int) -> Words:
        counter: tuple[Any, ...] = (elements // LANES, self.chunk, self.sequence, stream)
        return philox.philox4x32(counter, philox.key_of(self.seed))


def integers(values: NDArray[np.float32], factors: tuple[float, float]) -> Integers:
    """round(values * factors), ties to even, one rounding for each product."""
    first, rest = np.float32(factors[0]), np.float32(factors[1])
    rounded: Integers = np.rint(values * first * rest).astype(np.int32)
    return rounded


def floats(integers_: Integers, factors: tuple[float, float]) -> NDArray[np.float32]:
    """The way back."""
    first, rest = np.float32(factors[0]), np.float32(factors[1])
    return integers_.astype(np.float32) * first * rest


def elements_of(words: Words) -> NDArray[np.int64]:
    """Numbers of the elements whose bit is 1, ascending."""
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def sketch(hash_: Buckets, values: NDArray[Any], left_out: Words | None = None) -> NDArray[Any]:
    """(buckets,) of the values, (elems,), but for those of the bitmap `left_out`; int32, which wraps, or `paper`'s."""
    elements = np.flatnonzero(values)
    if left_out is not None:
        elements = np.setdiff1d(elements, elements_of(left_out))
    table = np.zeros(hash_.size, values.dtype)
    np.add.at(table, hash_.buckets(elements), hash_.signs(elements).astype(table.dtype) * values[elements])
    return table


def peel(
    hash_: Buckets, union: Words, elems: int, table: NDArray[Any] | None = None
) -> tuple[NDArray[Any], Words]:
    """(elems,), the values of what peels and 0 elsewhere, and the bitmap of what does not; without a table the values
    are all 0.
    """
    table = np.zeros(hash_.size, np.int32) if table is None else table.copy()
    values, left = np.zeros(elems, table.dtype), elements_of(union)
    left = left[left < elems]
    places, signs = hash_.buckets(left), hash_.signs(left).astype(table.dtype)
    counts = np.bincount(places.reshape(-1), minlength=table.size)
    crowded = counts >= CROWDED
    while left.size:
        alone = (counts == 1)[places] & ~crowded[places]
        peels = alone.any(0)
        if not peels.any():
            break
        each = np.arange(left.size)
        first = alone.argmax(0)
        found = signs[first, each] * table[places[first, each]]
        values[left[peels]] = found[peels]
        np.subtract.at(table, places[:, peels], signs[:, peels] * found[peels])
        np.subtract.at(counts, places[:, peels], 1)
        left, places, signs = left[~peels], places[:, ~peels], signs[:, ~peels]
    unpeeled = np.zeros(elems, np.bool_)
    unpeeled[left] = True
    return values, bitmap_of(unpeeled)
