"""Codecs without a scale: f32 and int32 travel as they are, f16 and bf16 rounded to nearest even; and the maximum that
scales are made of.

Laws: int32 is exact modulo 2^32. f32 is a sum of IEEE additions in arrival order, identical on all ranks
because it is made once, within (n-1) * 2^-24 * sum|x_i| of the exact sum, and exact where every partial sum
is representable. f16 and bf16: the same of the rounded values, each within 2^-11 (above 2^-14, and 65504 is the
largest) and 2^-8 of its own: the aggregator adds in float32 and answers in it, so the sum overflows no sooner than
its terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pascaline.codec.base import Array, Bytes, Carry, Floats, OneRound, Place

_UNIT_BYTES = 4
"""Contributions are whole 4-byte words."""


class Dense(OneRound):
    """Identity: values travel as they are."""

    def __init__(self, name: str, op: str, dtype: str) -> None:
        self.name, self.op = name, op
        self._dtype: np.dtype[Any] = np.dtype(dtype)

    def chunk_elems(self, slot_bytes: int) -> int:
        """Four bytes each."""
        return slot_bytes // 4

    def contribution_bytes(self, elems: int) -> int:
        """Four bytes each."""
        return elems * 4

    result_bytes = contribution_bytes

    def encode(self, _place: Place, values: Array, _carry: Carry, _scales: Floats, encoded: Bytes) -> None:
        """Encoded = values."""
        encoded.view(self._dtype)[:] = values

    def decode(self, _place: Place, combined: Bytes, _carry: Carry, _scales: Floats, values: Array) -> None:
        """Values = combined."""
        values[:] = combined.view(self._dtype)


class Half(OneRound):
    """Sixteen bits up, float32 down. An element beyond the type's largest becomes Inf, as in a cast."""

    lossy = True

    def __init__(self, name: str, op: str) -> None:
        self.name, self.op = name, op

    def chunk_elems(self, slot_bytes: int) -> int:
        """A result has four bytes for each; even, since contributions are whole words."""
        return slot_bytes // 8 * 2

    def contribution_bytes(self, elems: int) -> int:
        """Two bytes each, and two more after an odd number."""
        return -(-elems * 2 // _UNIT_BYTES) * _UNIT_BYTES

    def result_bytes(self, elems: int) -> int:
        """Twice the contribution."""
        return 2 * self.contribution_bytes(elems)

    def encode(self, _place: Place, values: Array, carry: Carry, _scales: Floats, encoded: Bytes) -> None:
        """Encoded = values, rounded."""
        x = carry.x(values)
        words = encoded.view("<u2")
        words[x.size :] = 0
        words[: x.size] = x.astype("<f2").view("<u2") if self.name == "f16" else to_bf16(x)
        if carry.pending is not None:
            kept = words[: x.size]
            own = kept.view("<f2").astype(np.float32) if self.name == "f16" else from_bf16(kept)
            np.multiply(x - own, np.float32(1 / carry.loss_scale), out=carry.pending)

    def decode(self, _place: Place, combined: Bytes, carry: Carry, _scales: Floats, values: Array) -> None:
        """Values = combined. An element that is no number leaves its residual as it was."""
        values[:] = combined.view("<f4")[: values.size]
        if carry.pending is not None:
            carry.void(~np.isfinite(values))


def to_bf16(x: Floats) -> Array:
    """(elems,) uint16: the upper halves, rounded to nearest even; a NaN stays one, and quiet."""
    bits = x.view(np.uint32)
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    words: Array = np.where(np.isnan(x), quiet, rounded).astype(np.uint16)
    return words


def from_bf16(words: Array) -> Floats:
    """(elems,) float32 of upper halves."""
    values: Floats = (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


SUM_F32 = Dense("f32", "sum_f32", "<f4")
SUM_I32 = Dense("int32", "sum_i32", "<i4")
MAX_F32 = Dense("max_f32", "max_f32", "<f4")
