"""topk: the largest share of a chunk's values, the rest waits for its turn in the residual (Lin et al., arXiv
1712.01887).

On the wire it is dense float32 with zeros for now; what a sparse encoding would have sent is in the statistics. Law: as
f32's, of the values that were kept.
"""

from __future__ import annotations

import numpy as np

from pascaline.codec.base import Array, Bytes, Carry, Floats, OneRound, Outcome, Place, Rounds


class TopKCodec(OneRound):
    """ceil(share * elems) values of each chunk, by |x|; NaN counts as the largest."""

    name, op, lossy = "topk", "sum_f32", True

    def __init__(self, share: float) -> None:
        self.share = share

    def chunk_elems(self, slot_bytes: int) -> int:
        """Four bytes each."""
        return slot_bytes // 4

    def contribution_bytes(self, elems: int) -> int:
        """Four bytes each."""
        return elems * 4

    result_bytes = contribution_bytes

    def kept(self, elems: int) -> int:
        """How many of a chunk's values are sent."""
        return max(1, int(np.ceil(self.share * elems)))

    def rounds(self, place: Place, values: Array, carry: Carry, scales: Floats) -> Rounds:
        """Dense, for now."""
        yield from super().rounds(place, values, carry, scales)
        return Outcome(self.kept(values.size))

    def encode(self, _place: Place, values: Array, carry: Carry, _scales: Floats, encoded: Bytes) -> None:
        """Encoded = x where it is among the largest, else 0; pending is the rest."""
        x, k = carry.x(values), self.kept(values.size)
        sent = encoded.view("<f4")
        places = np.argpartition(np.abs(x), x.size - k)[x.size - k :]
        sent[:] = 0
        sent[places] = x[places]
        if carry.pending is not None:
            np.multiply(x, np.float32(1 / carry.loss_scale), out=carry.pending)
            carry.pending[places] = 0

    def decode(self, _place: Place, combined: Bytes, carry: Carry, _scales: Floats, values: Array) -> None:
        """Values = combined. Is one of them no number, then the step is void: everything is kept for the next."""
        values[:] = combined.view("<f4")
        if carry.pending is not None and not np.isfinite(values).all():
            carry.void(np.ones(values.size, np.bool_))
