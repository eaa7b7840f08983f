"""lhc-paper: the published scheme (arXiv 2402.07529, and its release), to compare with; no job travels by it.

What differs from docs/lhc.md: blocks of 1024 lanes that are never rotated, float32 sketches whose size is a fixed share
of the tensor's, and no repair. Its sketches and its peeling are those of `reference`, by this hash.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.lhc.params import TABLES
from pascaline.codec.lhc.reference import STREAM_PLACES, Hash, Integers
from pascaline.codec.thc import philox

LANES = 1024


class PaperHash(NamedTuple):
    """As reference.Hash."""

    seed: int
    sequence: int
    chunk: int
    rows: int

    @property
    def size(self) -> int:
        """Buckets."""
        return TABLES * LANES * self.rows

    def buckets(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """(TABLES, n): a block's row in each sub-table, its own lane in the row."""
        counter = (elements // LANES, self.chunk, self.sequence, STREAM_PLACES)
        words = philox.philox4x32(counter, philox.key_of(self.seed))
        rows = [(words[j].astype(np.uint64) * np.uint64(self.rows)) >> np.uint64(32) for j in range(TABLES)]
        return np.stack(
            [(j * self.rows + rows[j].astype(np.int64)) * LANES + elements % LANES for j in range(TABLES)]
        )

    def signs(self, elements: NDArray[np.int64]) -> Integers:
        """As reference.Hash."""
        return Hash(self.seed, self.sequence, self.chunk, self.rows).signs(elements)


def rows(elems: int, ratio: float) -> int:
    """Rows of each sub-table of a sketch of `ratio` buckets for each element of the tensor."""
    return max(1, round(elems * ratio / (TABLES * LANES)))
