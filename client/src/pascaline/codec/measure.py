"""What a codec has sent and how well it said it: bits per element, and the error of this rank's own encodings.

One chunk in a few is measured, so that the cost stays a small share of encoding.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from pascaline.codec.base import Array, Carry, Outcome

_EVERY = 7
"""Chunks of which one is measured: measuring adds two fifths to an encoding of thc, so a twentieth in all. A prime,
so that tensors of 8 or 10 chunks have all of theirs measured in turn."""


class CodecStats(TypedDict):
    """Of one codec since its session began."""

    elements: int
    """That were reduced."""
    kept: int
    """Of them, those that a sparse codec has chosen on this rank; all of them otherwise."""
    bits_up: float
    """Sent per element, scales included; 0 without elements."""
    bits_down: float
    """Received per element."""
    nmse: float
    """Sum of (x - own)^2 over sum of x^2, where own is what the others were given for this rank's x; NaN if nothing was
    measured."""
    measured: int
    """Elements that the nmse is of."""
    encodings: dict[str, int]
    """Chunks by how they travelled, of a codec that chooses."""


class Measure:
    """Counts of one codec on one rank; the progress thread writes, anyone reads."""

    def __init__(self) -> None:
        self._elems = self._kept = self._sent_bytes = self._received_bytes = self._measured = 0
        self._chunks = 0
        self._encodings: dict[str, int] = {}
        self._error = self._energy = 0.0

    def sent(self, length_bytes: int) -> None:
        """A message of data or of scales travels."""
        self._sent_bytes += length_bytes

    def received(self, length_bytes: int) -> None:
        """Its result has come."""
        self._received_bytes += length_bytes

    def begins(self, elems: int) -> bool:
        """A chunk of data travels; whether it is its turn to be measured."""
        self._elems += elems
        self._chunks += 1
        return self._chunks % _EVERY == 1

    def ends(self, outcome: Outcome) -> None:
        """Its sum is there."""
        self._kept += outcome.kept
        if outcome.encoding:
            self._encodings[outcome.encoding] = self._encodings.get(outcome.encoding, 0) + 1

    def carry(self, values: Array, carry: Carry) -> Carry:
        """The carry of a chunk that is measured: its pending is written, whoever wants it."""
        if carry.pending is not None:
            return carry
        return carry._replace(pending=np.zeros(values.size, np.float32))

    def left_out(self, energy: float, carry: Carry) -> None:
        """Add up the squares of what the codec was given, `energy`, and of what it left out, which is whole."""
        missed = carry.pending
        if missed is None:
            return
        error = float(np.dot(missed, missed)) * carry.loss_scale**2
        if np.isfinite(energy) and np.isfinite(error):
            self._energy += energy
            self._error += error
            self._measured += missed.size

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
            "encodings": dict(self._encodings),
        }
