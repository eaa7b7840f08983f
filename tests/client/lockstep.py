"""All ranks' rounds of one chunk, side by side: what they must agree on is compared, what they encode is combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pascaline import codec as codecs
from pascaline.link.emulated.ops import STREAMS, combine

Combine = Callable[[str, list[np.ndarray]], np.ndarray]


class Reduced(NamedTuple):
    """What a chunk has become."""

    values: list[np.ndarray]
    """By rank."""
    travelled: list[tuple[str, int]]
    """(op, bytes) of each round, alike on all ranks; of a stream, rank 0's."""
    outcomes: list[codecs.Outcome]
    """By rank."""
    bytes_down: int

    @property
    def bytes_up(self) -> int:
        return sum(length for _, length in self.travelled)


def scales_of(
    ranks: Sequence[codecs.Codec], xs: Sequence[np.ndarray], carries: Sequence[codecs.Carry]
) -> np.ndarray:
    """Of one chunk that is a whole tensor."""
    scales = np.zeros(ranks[0].scale_count(xs[0].size), np.float32)
    if not scales.size:
        return scales
    norms = np.zeros((len(xs), scales.size), np.float32)
    for codec, x, carry, row in zip(ranks, xs, carries, norms, strict=True):
        codec.norms(x, carry, row)
    return combine("max_f32", [row.view(np.uint8) for row in norms]).view(np.float32)


def reduce_chunk(
    ranks: Sequence[codecs.Codec],
    xs: Sequence[np.ndarray],
    carries: Sequence[codecs.Carry] | None = None,
    sequence: int = 0,
    combined_by: Combine | None = None,
) -> Reduced:
    """One chunk that is a whole tensor; `xs` stay as they are."""
    carries = carries or [codecs.NOTHING] * len(xs)
    place, table = codecs.Place(sequence, 0, xs[0].size), ranks[0].table or ()
    outs, travelled, outcomes, bytes_down = [x.copy() for x in xs], [], [], 0
    with np.errstate(all="ignore"):
        scales = scales_of(ranks, xs, carries)
        steps = [
            codec.rounds(place, out, carry, scales.copy())
            for codec, out, carry in zip(ranks, outs, carries, strict=True)
        ]
        combined: np.ndarray | None = None
        while True:
            rounds = []
            for step in steps:
                try:
                    # A view that is gone with the next round, as a slot is.
                    rounds.append(step.send(None if combined is None else combined.copy()))  # type: ignore[arg-type]
                except StopIteration as end:
                    outcomes.append(end.value)
            if not rounds:
                return Reduced(outs, travelled, outcomes, bytes_down)
            assert not outcomes, "one rank is done and another is not"
            is_stream = rounds[0].op in STREAMS  # whose lengths are each rank's own
            alike = {one._replace(encode=None, length_bytes=is_stream or one.length_bytes) for one in rounds}  # type: ignore[arg-type]
            assert len(alike) == 1
            op, length = rounds[0].op, rounds[0].length_bytes
            assert op in ranks[0].ops
            encodings = []
            for one in rounds:
                encodings.append(np.full(one.length_bytes, 0x55, np.uint8))
                one.encode(encodings[-1])
            travelled.append((op, length))
            combined = combined_by(op, encodings) if combined_by else combine(op, encodings, table)
            bytes_down += combined.size
            most = rounds[0].result_bytes
            assert combined.size <= most if is_stream else combined.size == most
