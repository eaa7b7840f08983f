"""A collective's scales: exchanged on the small pool, message by message, while earlier chunks travel."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from pascaline.codec import Array, Carry, Codec, Floats
from pascaline.reduce.chunk import Chunk


class Scales:
    """A collective's scales: norms of this rank first, and in their place, as messages come back, the ranks' maxima.

    Data need not wait for all of them: a chunk may be written when its own have come.
    """

    def __init__(self, codec: Codec, chunk_elems: list[int]) -> None:
        self._codec = codec
        ends = np.cumsum([codec.scale_count(elems) for elems in chunk_elems])
        self._ends: list[int] = ends.tolist()
        self._norms = np.zeros(self._ends[-1], np.float32)
        self.values = np.zeros(1, np.float32) if codec.one_scale else self._norms
        self.computed = 0
        """Chunks whose norms are there."""
        self._come = 0
        """Values that are scales."""

    def missing(self, end: int) -> bool:
        """Whether the first `end` values cannot be sent yet."""
        needed = len(self._ends) if self._codec.one_scale else bisect_left(self._ends, end) + 1
        return self.computed < needed

    def compute(self, values: Array, carry: Carry) -> None:
        """The next chunk's norms, and after the last the tensor's if that has one scale."""
        begin, end = self._bounds(self.computed)
        self._codec.norms(values, carry, self._norms[begin:end])
        self.computed += 1
        if self._codec.one_scale and self.computed == len(self._ends):
            self.values[0] = self._codec.fold(self._norms)

    def came(self, message: Chunk) -> None:
        """A message's maxima are in place; they come in order."""
        self._come += message.values.size

    def there(self, chunk: int) -> bool:
        """Whether chunk number `chunk` may be encoded; so may the one behind the last, which is none."""
        last = self.values.size if self._codec.one_scale or chunk >= len(self._ends) else self._ends[chunk]
        return self._come >= last

    def of(self, chunk: int) -> Floats:
        """A chunk's."""
        if self._codec.one_scale:
            return self.values
        begin, end = self._bounds(chunk)
        return self.values[begin:end]

    def _bounds(self, chunk: int) -> tuple[int, int]:
        return self._ends[chunk - 1] if chunk else 0, self._ends[chunk]
