"""What the aggregator does to the contributions of a round, in numpy: the same bytes as dpdk_c/arith makes.

Float sums are added in the order of ranks; the appliance's order is that of arrival, so those agree where every
partial sum is exact, and all other ops always do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pascaline.contract import wire
from pascaline.link.emulated import streams

Bytes = NDArray[np.uint8]
Table = Sequence[int]
UNIT_BYTES = 64
"""Indices are packed in units of 64 bytes: index i of a byte is coordinate 64 * i + (number of the byte in its
unit).
"""


def combine(
    op: str, contributions: Sequence[Bytes], table: Table = (), chunk_bytes: int = wire.MAX_CHUNK_BYTES
) -> Bytes:
    """(result bytes,) of the ranks' (contribution bytes,), in rank order; `table` for ops that look indices up.

    Contributions of ops with sub-blocks have lengths of their own, and the slot's `chunk_bytes` bounds them; raises
    streams.StreamFault.
    """
    with np.errstate(all="ignore"):  # an overflow to Inf is a result, and int32 wraps
        if op in STREAMS:
            return streams.add(STREAMS[op], contributions, chunk_bytes)
        return _OPS[op](contributions, table).view(np.uint8)


def _sum(dtype: str, contributions: Sequence[Bytes], _table: Table) -> NDArray[Any]:
    total = contributions[0].view(dtype).copy()
    for other in contributions[1:]:
        total += other.view(dtype)
    return total


def _max(contributions: Sequence[Bytes], _table: Table) -> NDArray[Any]:
    """As u32 with the sign cleared: NaN > Inf > finite."""
    total = np.zeros(contributions[0].size // 4, np.uint32)
    for one in contributions:
        np.maximum(total, one.view("<u4") & np.uint32(0x7FFFFFFF), out=total)
    return total


def _or(contributions: Sequence[Bytes], _table: Table) -> NDArray[Any]:
    total = contributions[0].view("<u4").copy()
    for other in contributions[1:]:
        total |= other.view("<u4")
    return total


def _sum_f16(contributions: Sequence[Bytes], _table: Table) -> NDArray[Any]:
    """In float32, and left there."""
    total = contributions[0].view("<f2").astype(np.float32)
    for other in contributions[1:]:
        total += other.view("<f2").astype(np.float32)
    return total


def _sum_bf16(contributions: Sequence[Bytes], _table: Table) -> NDArray[Any]:
    """In float32, and left there."""
    total = _from_bf16(contributions[0])
    for other in contributions[1:]:
        total += _from_bf16(other)
    return total


def _from_bf16(words: Bytes) -> NDArray[np.float32]:
    values: NDArray[np.float32] = (words.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def _look_up(bits: int, dtype: str, contributions: Sequence[Bytes], table: Table) -> NDArray[Any]:
    """Sums of table values in the order of coordinates."""
    places, of_index = 8 // bits, np.zeros(1 << bits, dtype)
    of_index[: len(table)] = table
    every_byte = np.arange(256)
    of_byte = [of_index[every_byte >> bits * i & (1 << bits) - 1] for i in range(places)]
    total = np.zeros((contributions[0].size // UNIT_BYTES, places, UNIT_BYTES), dtype)
    for one in contributions:
        units = one.reshape(-1, UNIT_BYTES)
        for i in range(places):
            total[:, i] += of_byte[i][units]
    return total.reshape(-1)


_OPS: dict[str, Callable[[Sequence[Bytes], Table], NDArray[Any]]] = {
    "sum_i32": partial(_sum, "<i4"),
    "sum_f32": partial(_sum, "<f4"),
    "max_f32": _max,
    "sum_f16": _sum_f16,
    "sum_bf16": _sum_bf16,
    "or_u32": _or,
    "lut4_u8": partial(_look_up, 4, "<u1"),
    "lut4_u16": partial(_look_up, 4, "<u2"),
    "lut2_u8": partial(_look_up, 2, "<u1"),
    "lut2_u16": partial(_look_up, 2, "<u2"),
    "lut8_u16": partial(_look_up, 8, "<u2"),
}
STREAMS = {"expand_sum_i32": "<i4", "expand_sum_f32": "<f4"}
"""Ops whose contributions are streams of sub-blocks, and of what."""
NAMES = frozenset(_OPS) | frozenset(STREAMS)
