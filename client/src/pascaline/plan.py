"""Plan: an array's elements -> chunks -> lanes, a round -> its remote address. Pure integers, no tensors, no bytes.

All ranks compute the same plan from the same numbers, never from local readiness: that is rule 8, same order
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pascaline.contract import wire

SCALE_BYTES = 4
"""Scales are float32."""
_ROUND_MASK = (1 << (wire.VA_WINDOW_SHIFT - wire.VA_ROUND_SHIFT)) - 1


class Chunk(NamedTuple):
    """Part of an array that fits a slot."""

    number: int
    begin: int
    """First element."""
    end: int
    """One past the last element."""


def chunks(elems: int, chunk_elems: int) -> Iterator[Chunk]:
    """All chunks of an array, in order; only the last may be short."""
    for index, begin in enumerate(range(0, elems, chunk_elems)):
        yield Chunk(index, begin, min(begin + chunk_elems, elems))


def lane_chunks(sequence: int, chunks: int, lane: int, lanes: int) -> range:
    """Numbers of the chunks that lane `lane` of `lanes` carries, in order: chunk c of collective s goes over lane
    (s + c) mod lanes, so that many small collectives spread, too.
    """
    return range((lane - sequence) % lanes, chunks, lanes)


def remote_address(va_base: int, op_window: int, round_: int) -> int:
    """Where a contribution is written: op window and round above the bytes of a slot (psc_wire.def.h)."""
    return va_base + (op_window << wire.VA_WINDOW_SHIFT | (round_ & _ROUND_MASK) << wire.VA_ROUND_SHIFT)
