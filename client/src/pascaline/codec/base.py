"""What every codec offers, and what a chunk brings to it. Arrays only: a chunk's place is a number here, never an
address.

A chunk's way: `norms` on every rank, MAX_F32 of them over all ranks makes the scales; then by those round after round,
each an encoding, the aggregator's op, and what all ranks learn from the result. Most codecs take one round, `encode`
and `decode`; in others the length of a later round depends on what an earlier one has told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Place(NamedTuple):
    """Which chunk this is, alike on all ranks: what random streams are keyed by."""

    sequence: int
    """Of the collective in its session, from 0."""
    chunk: int
    """Of the collective, from 0."""
    elems: int
    """Of the whole tensor."""
    name: str = ""
    """Of the tensor, where its user has given it one."""
    codec: int = 0
    """CRC of the codec's words, where it is not the session's own: ranks that have chosen others must not meet."""


class Carry(NamedTuple):
    """What one rank carries from step to step beside a chunk's values, if anything: error feedback.

    x = values + residual * loss_scale is what is encoded; pending takes (x - what the others were given) / loss_scale.
    """

    residual: Floats | None = None
    """(elems,) of earlier steps, unscaled; read only."""
    pending: Floats | None = None
    """(elems,) to be written."""
    loss_scale: float = 1.0
    """A power of two that the values are multiplied by and residuals are not."""
    memory: dict[int, int] | None = None
    """What a codec may remember of the tensor that this is a part of, by the numbers of chunks: never of another one,
    since chunks of several tensors are asked in an order that differs from run to run where there are several lanes."""

    def x(self, values: Floats) -> Floats:
        """What is to be encoded: `values` itself where there is no residual."""
        if self.residual is None:
            return values
        return values + self.residual * np.float32(self.loss_scale)

    def void(self, where: NDArray[np.bool_]) -> None:
        """Nothing was said of the elements `where` (elems,): what they owe is what they owed, 0 without a residual."""
        if self.pending is not None:
            np.copyto(self.pending, 0 if self.residual is None else self.residual, where=where)


NOTHING = Carry()


class Round(NamedTuple):
    """What a chunk contributes to one round, and how long the answer is: alike on all ranks, but for the bytes, and for
    the length of a stream.
    """

    op: str
    """What the aggregator does to these encodings: a key of contract.wire.OPS."""
    length_bytes: int
    """Of `encoded`."""
    result_bytes: int
    """Of `combined`; of a stream, the most that it may have."""
    encode: Callable[[Bytes], None]
    """Writes `encoded`, (length_bytes,), when it is this round's turn."""
    more: bool = False
    """Whether another round of this chunk may follow, which then waits for this one's result."""
    stream_elems: int = 0
    """Of an op with sub-blocks (wire.SUB_BLOCK_ELEMS): elements of the streams, which is what the ranks' have in
    common; lengths are each rank's own."""


class Outcome(NamedTuple):
    """What there is to say of a chunk when its sum is there."""

    kept: int
    """How many of its values this rank has spoken of at all."""
    encoding: str = ""
    """Which of several it travelled by."""


Rounds = Generator[Round, Bytes, Outcome]
"""A chunk's rounds: each yield waits for that round's `combined`, (result_bytes,) or a stream, which holds until the
next one.
"""


class Codec(ABC):
    """What a rank of a job says of a chunk, and what it makes of the answers.

    `values`: (elems,) float32 (or int32 where that is summed as it is). `encoded`, `combined`: (bytes,) uint8,
    little-endian. `scales`: (scale_count,) float32.
    """

    name: str
    """As users say it."""
    ops: tuple[str, ...]
    """Of all its rounds."""
    lossy: bool = False
    """Whether it writes a carry's pending, what it could not say: whole when the last round has been encoded."""
    table: tuple[int, ...] | None = None
    """What the aggregator looks indices up in, for ops that do."""
    advice: str = ""
    """A sentence, once it has turned out that another codec would be better."""
    one_scale: bool = False
    """Whether a whole tensor has one scale, made of its norms by `fold`, instead of each chunk's own."""
    leads: bool = False
    """Whether a message of `lead` travels right before the first of a chunk's rounds, which does not wait for it."""

    @abstractmethod
    def chunk_elems(self, slot_bytes: int) -> int:
        """Elements of a chunk whose results each fit a slot; 0: none does. May raise ConfigurationError instead."""

    @abstractmethod
    def rounds(self, place: Place, values: Array, carry: Carry, scales: Floats) -> Rounds:
        """Reduce one chunk: at the end `values` is the sum over the ranks.

        Rule 8: how many rounds there are, their ops and their lengths (of a stream: its elements) come from what all
        ranks know: `elems`, scales, and earlier results of this chunk or, once it is `ready`, of this tensor. `values`
        is written no sooner than the last result has come.
        """

    def opens(self, place: Place, chunks: int) -> None:  # noqa: B027  # most have nothing to remember
        """A tensor's reduction takes its place in the order of the calls, which is the same on all ranks."""

    def ready(self, _place: Place) -> bool:
        """Whether a chunk may begin. Rule 8: where its lengths come from an earlier reduction's results, it waits until
        they are here, as it waits for its scales: what is not here yet may be on another rank.
        """
        return True

    def lead(self, place: Place, values: Array, carry: Carry, scales: Floats) -> Rounds:
        """Of a codec that `leads`: one round or none, whose result comes before those of `rounds`."""
        raise NotImplementedError(f"{self.name} has nothing that leads")

    def scale_count(self, _elems: int) -> int:
        """Scales of a chunk of `elems`; 0: this codec needs none."""
        return 0

    def norms(self, values: Floats, carry: Carry, norms: Floats) -> None:
        """Write this rank's share of the scales, (scale_count,), to `norms`."""
        raise NotImplementedError(f"{self.name} has no scales")

    def fold(self, norms: Floats) -> np.float32:
        """A whole tensor's one scale from the norms of all its chunks in order."""
        raise NotImplementedError(f"{self.name} has no scale for a tensor")


class OneRound(Codec):
    """Encode, the aggregator's op, decode; every length is known beforehand."""

    op: str
    """What the aggregator does to these encodings: a key of contract.wire.OPS."""

    @property
    def ops(self) -> tuple[str, ...]:  # type: ignore[override]
        """The one."""
        return (self.op,)

    @abstractmethod
    def contribution_bytes(self, elems: int) -> int:
        """Length of `encoded` for a chunk of `elems`; only a tensor's last chunk is shorter than the others."""

    @abstractmethod
    def result_bytes(self, elems: int) -> int:
        """Length of `combined`."""

    @abstractmethod
    def encode(self, place: Place, values: Array, carry: Carry, scales: Floats, encoded: Bytes) -> None:
        """Write the encoding of the carry's x to `encoded`, and what it leaves out to the carry's pending."""

    @abstractmethod
    def decode(self, place: Place, combined: Bytes, carry: Carry, scales: Floats, values: Array) -> None:
        """Write what `combined` stands for, a sum over the ranks, to `values`.

        Where that is no number because some rank's x is none, the carry's pending becomes its residual again.
        """

    def rounds(self, place: Place, values: Array, carry: Carry, scales: Floats) -> Rounds:
        """There and back."""
        encode = partial(self.encode, place, values, carry, scales)
        combined = yield Round(
            self.op, self.contribution_bytes(values.size), self.result_bytes(values.size), encode
        )
        self.decode(place, combined, carry, scales, values)
        return Outcome(values.size)
