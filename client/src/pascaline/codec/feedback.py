"""Error feedback: what a lossy codec could not say in one step is added to the next (Karimireddy et al., arXiv
1901.09847).

Two buffers for one tensor, of which one holds the residual and the other takes the pending one; committing swaps them,
so nothing is copied and a step that fails leaves the residual as it was.
"""

from __future__ import annotations

import numpy as np

from pascaline.codec.base import Carry, Floats


class ErrorFeedback:
    """Residual of one flat tensor of `elems` elements on this rank, from one reduction to the next.

    With `hold` the pending residual waits for `commit`; without, a reduction that succeeds commits it. One reduction at
    a time may use it.
    """

    def __init__(self, elems: int, hold: bool = False) -> None:
        self._buffers = np.zeros((2, elems), np.float32)
        self._current = 0
        self._pending_is_whole = False
        self.memory: dict[int, int] = {}
        """What the codec remembers of this tensor's chunks (`Carry.memory`): no part of the residual, and lost without
        harm."""
        self.hold = hold
        self.loss_scale = 1.0
        """What the next reduction's values are multiplied by, a power of two; residuals are kept without it."""

    @property
    def elems(self) -> int:
        """Of the tensor."""
        return self._buffers.shape[1]

    @property
    def residual(self) -> Floats:
        """(elems,), unscaled; a view that holds until the next commit."""
        residual: Floats = self._buffers[self._current]
        return residual

    def carry(self, begin: int, end: int) -> Carry:
        """Of the elements from `begin` to `end`."""
        pending = self._buffers[1 - self._current]
        return Carry(self.residual[begin:end], pending[begin:end], self.loss_scale, self.memory)

    def accepted(self) -> None:
        """Every result of a reduction has come: the pending residual is whole."""
        self._pending_is_whole = True
        if not self.hold:
            self.commit()

    def commit(self) -> None:
        """The pending residual of a reduction that was accepted takes the old one's place; without one, nothing."""
        if self._pending_is_whole:
            self._current = 1 - self._current
        self._pending_is_whole = False

    def discard(self) -> None:
        """The step is void: the residual stays as it was."""
        self._pending_is_whole = False
