"""What every op makes of contributions, by numpy and from the wire contract's words: nothing of arith/ is asked.

Units, expansions and tables' sizes are the contract's own enums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import streams
from .library import ffi, lib
from .worker import Array


def _by_op(enum: str, prefix: str) -> dict[int, int]:
    members: dict[str, int] = ffi.typeof(f"enum {enum}").relements
    return {
        getattr(lib, f"PSC_OP_{name.removeprefix(prefix)}"): value
        for name, value in members.items()
        if name.startswith(prefix)
    }


UNIT = _by_op("psc_op_unit", "PSC_UNIT_")
EXPANSION = _by_op("psc_op_expansion", "PSC_EXPANSION_")
TABLE = _by_op("psc_op_table", "PSC_TABLE_")
SUM_MAX = _by_op("psc_op_sum_max", "PSC_SUM_MAX_")
SUB_BLOCK = _by_op("psc_op_sub_block", "PSC_SUB_BLOCK_")
NAMES = {
    value: name.removeprefix("PSC_OP_").lower() for value, name in ffi.typeof("enum psc_op").elements.items()
}
ALL_OPS = list(range(lib.PSC_OP_SUM_I32, lib.PSC_OP_COUNT))
"""As op windows 1, 2, ... of a job, an op's window is its number."""
STREAMS = {lib.PSC_OP_EXPAND_SUM_I32: np.int32, lib.PSC_OP_EXPAND_SUM_F32: np.float32}
"""Ops whose contributions are streams of sub-blocks: a length is 4 bytes for each element, there or not."""
ARRAYS = [op for op in ALL_OPS if op not in STREAMS]
"""The others: one length for all ranks."""
INDEX_BITS = {
    lib.PSC_OP_LUT4_U8: 4,
    lib.PSC_OP_LUT4_U16: 4,
    lib.PSC_OP_LUT2_U8: 2,
    lib.PSC_OP_LUT2_U16: 2,
    lib.PSC_OP_LUT8_U16: 8,
}


def tables(world: int) -> dict[int, bytes]:
    """A table for every op that has one: not even, and as steep as the sums of so many ranks allow."""
    made = {}
    for op, entries in TABLE.items():
        greatest = min(SUM_MAX[op] // world, lib.PSC_MAX_TABLE_ENTRY)
        rise = np.linspace(0, 1, entries) ** 1.5 * greatest
        made[op] = bytes([*rise.astype(np.uint8).tolist()[:-1], greatest])
    return made


def contribution(op: int, rng: np.random.Generator, length: int) -> bytes:
    """`length` bytes that a rank may contribute; sums of floats are exact in any order.

    Of a stream: `length` / 4 elements, of which from sub-block to sub-block more or fewer are there.
    """
    if op in STREAMS:
        elements = length // 4
        of_sub_block = rng.choice([0, 0.01, 0.2, 0.99, 1], -(-elements // streams.SUB_BLOCK))
        there = rng.random(elements) < np.repeat(of_sub_block, streams.SUB_BLOCK)[:elements]
        return streams.encode(there, rng.integers(-1000, 1000, elements).astype(STREAMS[op]))
    if op in (lib.PSC_OP_SUM_F32, lib.PSC_OP_MAX_F32):
        return rng.integers(-1000, 1000, length // 4).astype(np.float32).tobytes()
    if op == lib.PSC_OP_SUM_F16:
        return rng.integers(-1000, 1000, length // 2).astype(np.float16).tobytes()
    if op == lib.PSC_OP_SUM_BF16:  # 8 bits of precision
        small = rng.integers(-100, 100, length // 2).astype(np.float32)
        return (small.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return rng.bytes(length)


def longest(op: int, chunk_bytes: int) -> int:
    """The greatest length that a slot of so many bytes takes."""
    if op in STREAMS:
        return 4 * streams.elements_max(chunk_bytes)
    return chunk_bytes // EXPANSION[op] // UNIT[op] * UNIT[op]


def indices(packed: bytes, bits: int) -> NDArray[np.uint8]:
    """A unit is 64 bytes; part p of its byte j is index 64 p + j."""
    units = np.frombuffer(packed, np.uint8).reshape(-1, 64)
    parts = [units >> bits * part & (1 << bits) - 1 for part in range(8 // bits)]
    return np.stack(parts, axis=1).reshape(-1)


def expected(op: int, parts: Sequence[bytes], table: bytes = b"") -> Array:
    """The result of these contributions."""
    if op in STREAMS:
        return np.frombuffer(streams.add(list(parts), STREAMS[op]), np.uint32)
    if op in INDEX_BITS:
        looked_up = np.frombuffer(table, np.uint8)
        sums = sum(looked_up[indices(part, INDEX_BITS[op])].astype(np.uint32) for part in parts)
        assert np.max(sums) <= SUM_MAX[op]
        return np.asarray(sums).astype(np.uint8 if SUM_MAX[op] == 255 else np.uint16)
    words = [np.frombuffer(part, np.uint32) for part in parts]
    if op == lib.PSC_OP_OR_U32:
        return np.asarray(np.bitwise_or.reduce(words))
    if op == lib.PSC_OP_SUM_I32:
        return np.asarray(np.add.reduce(words, dtype=np.uint32)).view(np.int32)
    floats = [_floats(op, part) for part in parts]
    if op == lib.PSC_OP_MAX_F32:
        return np.asarray(np.max(np.abs(floats), axis=0))
    with np.errstate(invalid="ignore"):  # Inf - Inf, signalling NaN
        return np.asarray(np.sum(floats, axis=0, dtype=np.float32))


def _floats(op: int, part: bytes) -> NDArray[np.float32]:
    if op == lib.PSC_OP_SUM_F16:
        return np.frombuffer(part, np.float16).astype(np.float32)
    if op == lib.PSC_OP_SUM_BF16:
        return (np.frombuffer(part, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(part, np.float32)
