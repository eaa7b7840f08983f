"""The three operations of docs/sparse.md on numpy arrays: the definition, and what runs where the C kernels are not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Bits = NDArray[np.bool_]
_MAGNITUDE = np.uint32(0x7FFFFFFF)


def words_of(elems: int) -> int:
    """32-bit words of a bitmap of `elems` elements."""
    return -(-elems // 32)


def bits_of(bitmap: Words, elems: int) -> Bits:
    """(elems,) bool of a bitmap, u32 (words,)."""
    bits: Bits = np.unpackbits(bitmap.astype("<u4", copy=False).view(np.uint8), bitorder="little")[
        :elems
    ].view(np.bool_)
    return bits


def bitmap_of(bits: Bits) -> Words:
    """u32 (words,) of (elems,) bool; bits beyond the last element are 0."""
    padded = np.zeros(words_of(bits.size) * 4, np.uint8)
    packed = np.packbits(bits, bitorder="little")
    padded[: packed.size] = packed
    bitmap: Words = padded.view("<u4").astype(np.uint32, copy=False)
    return bitmap


def count(bitmap: Words) -> int:
    """How many bits are set."""
    return int(_OF_BYTE[bitmap.view(np.uint8)].sum(dtype=np.int64))


_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


def mark(x: NDArray[Any], least: int, bitmap: Words) -> int:
    """Write to `bitmap`, u32 (words,), which of x, f32 (elems,), have |x| >= `least` as u32; returns how many."""
    bits: Bits = (x.view(np.uint32) & _MAGNITUDE) >= np.uint32(least)
    bitmap[:] = bitmap_of(bits)
    return int(bits.sum())


def pack(x: NDArray[Any], chosen: Words, packed: Words) -> None:
    """Write to `packed`, u32 (bits of chosen,), x's 4-byte elements where `chosen` is 1."""
    packed[:] = x.view(np.uint32)[bits_of(chosen, x.size)]


def unpack(packed: Words, chosen: Words, values: NDArray[Any]) -> None:
    """Write to `values`, 4 bytes each (elems,), `packed` where `chosen` is 1, and 0 elsewhere."""
    words = values.view(np.uint32)
    words[:] = 0
    words[bits_of(chosen, values.size)] = packed
