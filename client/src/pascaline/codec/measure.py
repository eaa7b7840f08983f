"""What a codec has sent and how well it said it: bits per element, and the error of this rank's own encodings.

One chunk in a few is measured, so that the cost stays a small share of encoding.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from pascaline.codec.base import Array, Bytes, Carry, Codec, Floats, Place

_EVERY = 7
"""Chunks of which one is measured: measuring adds two fifths to an encoding of thc, so a twentieth in all. A prime,
so that tensors of 8 or 10 chunks have all of theirs measured in turn."""


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
        self._chunks = 0
        self._error = self._energy = 0.0
        self._scratch = np.empty(0, np.float32)

    def count_scales(self, sent_bytes: int, received_bytes: int) -> None:
        """A message of scales travels."""
        self._sent_bytes += sent_bytes
        self._received_bytes += received_bytes

    def count(self, elems: int, kept: int, sent_bytes: int, received_bytes: int) -> bool:
        """A chunk of data travels; whether it is its turn to be measured."""
        self._elems += elems
        self._kept += kept
        self._sent_bytes += sent_bytes
        self._received_bytes += received_bytes
        self._chunks += 1
        return self._chunks % _EVERY == 1

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
