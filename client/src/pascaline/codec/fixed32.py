"""fixed32: float32 as 32-bit fixed point with one power-of-two scale per chunk (SwitchML, arXiv 1903.06701,
section 3.7).

value_i = round(x_i * 2^k), the aggregator sums modulo 2^32, the sum times 2^-k is the result. Integer sums
are order-free, so a result has the same bits on every rank and in every run. k comes from the maximum M of
|x| over all ranks. Law: |result - sum(x_i)| <= n * 2^-(k+1) + 2^-24 * |sum(x_i)|.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.base import Array, Bytes, Carry, Floats, OneRound, Place
from pascaline.contract import wire
from pascaline.errors import ConfigurationError

_MAX_EXPONENT = 126
"""2^126 and 2^-126 are normal float32 numbers: a product with one of them loses nothing that rounding would keep."""


def exponent(maximum: float, world_size: int) -> int:
    """The k of a chunk whose largest |x| over `world_size` ranks is `maximum` (finite, above 0).

    M < 2^e gives |value_i| <= 2^(e+k); with k = 30 - ceil(log2 n) - e the sum of n values is at most 2^30 in
    size: it cannot wrap. k reaches 178 for one rank and the smallest denormal, where 2^k itself overflows
    float32.
    """
    _, e = np.frexp(np.float32(maximum))
    return 30 - (world_size - 1).bit_length() - int(e)


def factors(k: int) -> tuple[float, float]:
    """2^k as the product of two float32 numbers, the second 1 where the first suffices."""
    first = max(-_MAX_EXPONENT, min(_MAX_EXPONENT, k))
    return 2.0**first, 2.0 ** (k - first)


def scale(values: Array, k: int, out: Floats) -> None:
    """Write values * 2^k to `out`, in two steps where 2^k is no float32 (a third of the time of ldexp)."""
    first, rest = factors(k)
    np.multiply(values, np.float32(first), out=out)
    if rest != 1:
        np.multiply(out, np.float32(rest), out=out)


def integers(values: Floats, k: int) -> NDArray[np.int32]:
    """round(values * 2^k), ties to even; |values| is at most the M that k is made of."""
    scaled = np.empty(values.size, np.float32)
    scale(values, k, scaled)
    return np.rint(scaled, out=scaled).astype(np.int32)


def largest(values: Floats) -> np.float32:
    """Largest |x|, in the aggregator's own order: NaN > Inf > finite, compared as u32 with the sign cleared."""
    bits: np.uint32 = (values.view(np.uint32) & np.uint32(0x7FFFFFFF)).max()
    largest_: np.float32 = bits.view(np.float32)
    return largest_


class Fixed32(OneRound):
    """The codec for one world size. Not thread-safe: it keeps one scratch array."""

    name, op = "fixed32", "sum_i32"

    def __init__(self, world_size: int) -> None:
        if not 1 <= world_size <= wire.MAX_RANKS:
            raise ConfigurationError(f"fixed32 sums 1 to {wire.MAX_RANKS} ranks, not {world_size}")
        self.world_size = world_size
        self._scratch = np.empty(0, np.float32)

    def chunk_elems(self, slot_bytes: int) -> int:
        """Four bytes each."""
        return slot_bytes // 4

    def contribution_bytes(self, elems: int) -> int:
        """Four bytes each."""
        return elems * 4

    result_bytes = contribution_bytes

    def scale_count(self, _elems: int) -> int:
        """One for a chunk."""
        return 1

    def norms(self, values: Floats, _carry: Carry, norms: Floats) -> None:
        """The chunk's largest |x|."""
        norms[0] = largest(values)

    def _scratch_for(self, elems: int) -> Floats:
        if self._scratch.size < elems:
            self._scratch = np.empty(elems, np.float32)
        return self._scratch[:elems]

    def encode(self, _place: Place, values: Array, _carry: Carry, scales: Floats, encoded: Bytes) -> None:
        """Write round(values * 2^k) as int32; zeros where nothing can be said: M = 0, Inf or NaN."""
        maximum = scales[0]
        if maximum == 0 or not np.isfinite(maximum):
            encoded[:] = 0
            return
        scaled = self._scratch_for(values.size)
        scale(values, exponent(float(maximum), self.world_size), scaled)
        np.rint(scaled, out=scaled)
        encoded.view("<i4")[:] = scaled

    def decode(self, _place: Place, combined: Bytes, _carry: Carry, scales: Floats, values: Array) -> None:
        """Write combined * 2^-k to `values`. M = Inf or NaN on any rank makes the whole chunk Inf or NaN: never a
        finite wrong sum.
        """
        maximum = scales[0]
        if maximum == 0 or not np.isfinite(maximum):
            values[:] = maximum
            return
        values[:] = combined.view("<i4")
        scale(values, -exponent(float(maximum), self.world_size), values)
