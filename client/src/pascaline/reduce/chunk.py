"""A part of an array on its way: its codec's rounds, one message each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pascaline.codec import Array, Bytes, Carry, Codec, Floats, Measure, Place, Round, Rounds
from pascaline.contract import wire
from pascaline.errors import EpochEnded
from pascaline.link import Result

_NUMBER_SHIFT = 24
"""Above a chunk's number, in what an immediate is made of: which of the chunk's rounds this is."""


class Message(NamedTuple):
    """One round's contribution as the link sees it; its immediate is the same on all ranks."""

    op: int
    immediate: int
    length_bytes: int
    """Of the contribution: a stream's is this rank's own."""
    result_bytes: int
    """Of the result: of a stream, the most that it may have."""
    is_stream: bool = False

    def check(self, result: Result | None) -> int:
        """Bytes of its result. A result that answers another message must never be decoded: raises EpochEnded."""
        if result is None or result.immediate != self.immediate or not self._fits(result.length_bytes):
            what = (
                f"{result.length_bytes} bytes with immediate {result.immediate:#x}"
                if result
                else "no message"
            )
            raise EpochEnded(
                f"a result of {what} came where {'up to ' * self.is_stream}{self.result_bytes} bytes with "
                f"{self.immediate:#x} were due",
                "imm_mismatch",
            )
        return result.length_bytes

    def _fits(self, length_bytes: int) -> bool:
        if self.is_stream:  # which says its own length, in whole words
            return length_bytes <= self.result_bytes and length_bytes % 4 == 0
        return length_bytes == self.result_bytes


class Chunk:
    """A part of an array that is reduced by itself, in one message or in several."""

    def __init__(
        self,
        values: Array,
        codec: Codec,
        place: Place,
        scales: Floats,
        carry: Carry,
        measure: Measure | None,
        is_data: bool = True,
        is_lead: bool = False,
    ) -> None:
        self.values = values
        self.flying = self.ended = False
        """Whether a message of it is on the wire; whether its sum is there."""
        self.more = False
        """Whether a message may follow the one that is or was on the wire."""
        self._codec, self._place, self._scales, self._carry = codec, place, scales, carry
        self._measure, self._is_data = measure, is_data and not is_lead
        self._begin = codec.lead if is_lead else codec.rounds
        self._look = False
        self._energy: float | None = None
        """Sum of x^2, from the first encoding to the last."""
        self._round = 0
        self._rounds: Rounds | None = None

    def begin(self) -> Round | None:
        """What it contributes first; None: nothing needs to be sent."""
        if self._measure and self._is_data:
            self._look = self._measure.begins(self.values.size) and self._codec.lossy
            if self._look:
                self._carry = self._measure.carry(self.values, self._carry)
        self._rounds = self._begin(self._place, self.values, self._carry, self._scales)
        return self._next(None)

    def go_on(self, combined: Bytes) -> Round | None:
        """Decode a result; what it contributes next, if the sum is not there yet."""
        if self._measure:
            self._measure.received(combined.size)
        return self._next(combined)

    def _next(self, combined: Bytes | None) -> Round | None:
        assert self._rounds is not None
        try:
            round_ = self._rounds.send(combined)  # type: ignore[arg-type]  # None begins it
        except StopIteration as end:
            self.more = False
            self._tell_what_is_left_out()
            if self._measure and self._is_data:
                self._measure.ends(end.value)
            return None
        if combined is not None and not self.more:
            raise RuntimeError(f"codec {self._codec.name} takes a round after one that it called the last")
        self.more = round_.more
        return round_

    def message(self, round_: Round) -> Message:
        """The round as the link sees it."""
        op = wire.OPS[round_.op]
        number = self._round << _NUMBER_SHIFT | self._place.chunk
        self._round += 1
        is_stream = round_.op in wire.SUB_BLOCK_ELEMS
        in_common = 4 * round_.stream_elems if is_stream else round_.length_bytes
        sequence, _, elems, _, codec = self._place
        immediate = wire.immediate(sequence, number, op, in_common, elems, codec)
        return Message(op, immediate, round_.length_bytes, round_.result_bytes, is_stream)

    def encode(self, round_: Round, encoded: Bytes) -> None:
        """The contribution to one round."""
        round_.encode(encoded)
        if self._measure:
            self._measure.sent(round_.length_bytes)
            if self._look:  # before any result takes the values' place
                x = self._carry.x(self.values)
                self._energy, self._look = float(np.dot(x, x)), False
            if not round_.more:
                self._tell_what_is_left_out()

    def _tell_what_is_left_out(self) -> None:
        """Once: when the last round has been encoded, or none follows one that might not have been the last."""
        if self._measure and self._energy is not None:
            self._measure.left_out(self._energy, self._carry)
            self._energy = None
