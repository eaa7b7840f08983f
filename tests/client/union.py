"""A codec whose rounds depend on what came before, small enough to be its own specification: for the tests of reduce.

A bitmap of non-zeros is ORed; the values of the union are summed; and where their number is odd, the largest size of
the first of them is asked for again, in a third round. An empty union needs no second one.
"""

from __future__ import annotations

import numpy as np

from pascaline.codec import Array, Bytes, Carry, Codec, Floats, Outcome, Place, Round, Rounds


class Union(Codec):
    """Exact where every partial sum is."""

    name, ops = "union", ("or_u32", "sum_f32", "max_f32")

    def chunk_elems(self, slot_bytes: int) -> int:
        """So that the values of all of them fit."""
        return slot_bytes // 4

    def rounds(self, _place: Place, values: Array, _carry: Carry, _scales: Floats) -> Rounds:
        """One to three."""
        bitmap = np.zeros(-(-values.size // 32) * 4, np.uint8)
        own = np.packbits(values != 0, bitorder="little")
        bitmap[: own.size] = own
        combined = yield Round("or_u32", bitmap.size, bitmap.size, _copies(bitmap), more=True)
        union = np.unpackbits(combined, bitorder="little")[: values.size].astype(bool)
        if not union.any():
            values[:] = 0
            return Outcome(0, "nothing")
        packed = values[union].view(np.uint8)
        odd = bool(union.sum() % 2)
        combined = yield Round("sum_f32", packed.size, packed.size, _copies(packed), odd)
        sums = combined.view(np.float32).copy()
        if odd:
            first = np.abs(sums[:1])
            combined = yield Round("max_f32", 4, 4, _copies(first.view(np.uint8)))
            assert combined.tobytes() == first.tobytes()
        values[~union] = 0
        values[union] = sums
        return Outcome(packed.size // 4, "odd" if odd else "even")


def _copies(encoding: Bytes):
    def encode(encoded: Bytes) -> None:
        encoded[:] = encoding

    return encode
