"""Sparsifiers: which of a chunk's values are spoken of in this step; the others wait in the residual.

Each rank decides for itself: what the ranks must agree on is agreed on afterwards, by the union. So a sparsifier may
remember, as long as it is of the same tensor: over several lanes, chunks of different tensors are asked in any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import ModuleType

import numpy as np

from pascaline.codec.base import Carry, Floats, Place
from pascaline.codec.sparse.reference import Words

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_LARGEST = 0x7F800000
"""Inf: at this threshold Inf and NaN are spoken of, as they must be."""
_SAMPLE = 8192
"""Values that a threshold is estimated from: for a share of 1/100 those above it are 82, give or take a ninth."""
_WITHIN = (0.8, 1.25)
"""Of the wanted number: what a threshold that is used again may choose."""
_BEYOND = (0.6, 1.6)
"""Of the wanted number: where an estimate has failed (ties, values in a pattern) and all values are looked at."""


class Sparsifier(ABC):
    """A choice by |x|; NaN counts as the largest, and nothing that is zero is ever chosen."""

    @abstractmethod
    def choose(self, machine: ModuleType, place: Place, x: Floats, carry: Carry, own: Words) -> int:
        """Write which of x, f32 (elems,), are chosen to `own`, u32 (words,), by `machine.mark`; returns how many."""


class Threshold(Sparsifier):
    """All of a fixed size or above."""

    def __init__(self, threshold: float) -> None:
        self._least = max(int(np.float32(threshold).view(np.uint32)), 1)

    def choose(self, machine: ModuleType, place: Place, x: Floats, carry: Carry, own: Words) -> int:
        """One pass."""
        count: int = machine.mark(x, self._least, own)
        return count


class Share(Sparsifier):
    """The largest `share` of a chunk, and those that are equal to the smallest of them.

    Chunks of more than 8192 values by a threshold that is estimated from 8192 of them, and, where there is a residual
    that remembers it, used again for the same chunk of the next step while it chooses 0.8 to 1.25 of the wanted number:
    one pass instead of a selection.
    """

    def __init__(self, share: float) -> None:
        self.share = share

    def wanted(self, elems: int) -> int:
        """How many."""
        return max(1, int(np.ceil(self.share * elems)))

    def choose(self, machine: ModuleType, place: Place, x: Floats, carry: Carry, own: Words) -> int:
        """By the threshold of the last step, else by an estimate, else by all values."""
        wanted = self.wanted(x.size)
        if x.size <= _SAMPLE:
            return self._by(machine, self._least_of(x, wanted), x, own)
        memory = {} if carry.memory is None else carry.memory
        if place.chunk in memory:
            count = self._by(machine, memory[place.chunk], x, own)
            if _is_within(_WITHIN, count, wanted):
                return count
        stride = x.size // _SAMPLE | 1  # odd, so that it does not walk along a matrix's columns
        sample = x[place.sequence % stride :: stride]
        memory[place.chunk] = self._least_of(sample, self.wanted(sample.size))
        count = self._by(machine, memory[place.chunk], x, own)
        if not _is_within(_BEYOND, count, wanted):
            count = self._by(machine, self._least_of(x, wanted), x, own)
        return count

    def _least_of(self, x: Floats, wanted: int) -> int:
        sizes = (
            x.view(np.uint32) & _MAGNITUDE if x.flags.c_contiguous else x.copy().view(np.uint32) & _MAGNITUDE
        )
        return min(max(int(np.partition(sizes, x.size - wanted)[x.size - wanted]), 1), _LARGEST)

    @staticmethod
    def _by(machine: ModuleType, least: int, x: Floats, own: Words) -> int:
        count: int = machine.mark(x, least, own)
        return count


def _is_within(bounds: tuple[float, float], count: int, wanted: int) -> bool:
    return bounds[0] * wanted <= count <= bounds[1] * wanted
