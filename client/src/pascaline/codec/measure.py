"""What a codec has sent and how well it said it: bits per element, and the error of this rank's own encodings.

Of each reduction one chunk is measured, in turn, so that the cost stays a small share of encoding.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from pascaline.codec.base import Array, Bytes, Carry, Codec, Floats, Place


class CodecStats(TypedDict):
    """Of one codec since its session began."""

    elements: int
    """That were reduced."""
    kept: int
    """Of them, those that a sparse codec sent; all of them otherwise."""
    bits_up: float
    """Sent per element, scales included; 0 without elements."""
    bits_down: float
    """Received per element."""
    nmse: float
    """Sum of (x - own)^2 over sum of x^2, where own is what the others were given for this rank's x; NaN if nothing was
    measured."""
    measured: int
    """Elements that the nmse is of."""


class Measure:
    """Counts of one codec on one rank; the progress thread writes, anyone reads."""

    def __init__(self) -> None:
        self._elems = self._kept = self._sent_bytes = self._received_bytes = self._measured = 0
        self._error = self._energy = 0.0
        self._scratch = np.empty(0, np.float32)

    def count(self, sent_bytes: int, received_bytes: int, elems: int = 0, kept: int = 0) -> None:
        """A chunk of data (or, with no elements, of scales) has been reduced."""
        self._elems += elems
        self._kept += kept
        self._sent_bytes += sent_bytes
        self._received_bytes += received_bytes

    def encode(
        self, codec: Codec, place: Place, values: Array, carry: Carry, scales: Floats, encoded: Bytes
    ) -> None:
        """Let `codec` encode, and add up the squares of what it was given and of what it left out."""
        missed = self._scratch_for(values.size) if carry.pending is None else carry.pending
        codec.encode(place, values, carry._replace(pending=missed), scales, encoded)
        x = carry.x(values)
        energy, error = float(np.dot(x, x)), float(np.dot(missed, missed)) * carry.loss_scale**2
        if np.isfinite(energy) and np.isfinite(error):
            self._energy += energy
            self._error += error
            self._measured += values.size

    def _scratch_for(self, elems: int) -> Floats:
        if self._scratch.size < elems:
            self._scratch = np.empty(elems, np.float32)
        return self._scratch[:elems]

    def stats(self) -> CodecStats:
        """All of it."""
        elems = max(self._elems, 1)
        return {
            "elements": self._elems,
            "kept": self._kept,
            "bits_up": 8 * self._sent_bytes / elems,
            "bits_down": 8 * self._received_bytes / elems,
            "nmse": self._error / self._energy if self._energy else float("nan"),
            "measured": self._measured,
        }
