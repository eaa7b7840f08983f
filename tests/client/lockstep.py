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


class _Rack:
    """Encodings of all ranks, combined round by round."""

    def __init__(self, codec: codecs.Codec, combined_by: Combine | None) -> None:
        self.codec, self.combined_by = codec, combined_by
        self.travelled: list[tuple[str, int]] = []
        self.bytes_down = 0

    def sent(self, rounds: list[codecs.Round]) -> tuple[codecs.Round, list[np.ndarray]]:
        """What one round's message is, of all ranks alike, and their encodings."""
        is_stream = rounds[0].op in STREAMS  # whose lengths are each rank's own
        alike = {one._replace(encode=None, length_bytes=is_stream or one.length_bytes) for one in rounds}  # type: ignore[arg-type]
        assert len(alike) == 1
        assert rounds[0].op in self.codec.ops
        encodings = []
        for one in rounds:
            encodings.append(np.full(one.length_bytes, 0x55, np.uint8))
            one.encode(encodings[-1])
        self.travelled.append((rounds[0].op, rounds[0].length_bytes))
        return rounds[0], encodings

    def combined(self, round_: codecs.Round, encodings: list[np.ndarray]) -> np.ndarray:
        by, most = self.combined_by, round_.result_bytes
        table = self.codec.table or ()
        combined = by(round_.op, encodings) if by else combine(round_.op, encodings, table)
        self.bytes_down += combined.size
        assert combined.size <= most if round_.op in STREAMS else combined.size == most
        return combined


def _next(
    steps: list[codecs.Rounds], combined: np.ndarray | None, outcomes: list[codecs.Outcome]
) -> list[codecs.Round]:
    """The next round of all ranks, or of none."""
    rounds = []
    for step in steps:
        try:
            # A view that is gone with the next round, as a slot is.
            rounds.append(step.send(None if combined is None else combined.copy()))  # type: ignore[arg-type]
        except StopIteration as end:
            outcomes.append(end.value)
    assert not (rounds and outcomes), "one rank is done and another is not"
    return rounds


def reduce_chunk(
    ranks: Sequence[codecs.Codec],
    xs: Sequence[np.ndarray],
    carries: Sequence[codecs.Carry] | None = None,
    sequence: int = 0,
    combined_by: Combine | None = None,
) -> Reduced:
    """One chunk that is a whole tensor; `xs` stay as they are. What does not wait for a result does without."""
    carries = carries or [codecs.NOTHING] * len(xs)
    place, rack = codecs.Place(sequence, 0, xs[0].size), _Rack(ranks[0], combined_by)
    outs, outcomes = [x.copy() for x in xs], []
    for codec in ranks:
        codec.opens(place, 1)
        assert codec.ready(place)
    with np.errstate(all="ignore"):
        scales = scales_of(ranks, xs, carries)
        of_rank = [(place, out, carry, scales.copy()) for out, carry in zip(outs, carries, strict=True)]
        leads = [codec.lead(*one) for codec, one in zip(ranks, of_rank, strict=True) if codec.leads]
        led = rack.sent(rounds) if (rounds := _next(leads, None, [])) else None
        steps = [codec.rounds(*one) for codec, one in zip(ranks, of_rank, strict=True)]
        rounds = _next(steps, None, outcomes)
        while rounds:
            sent = rack.sent(rounds)
            if led:
                assert not _next(leads, rack.combined(*led), [])
                led = None
            rounds = _next(steps, rack.combined(*sent), outcomes)
    assert not led
    return Reduced(outs, rack.travelled, outcomes, rack.bytes_down)
