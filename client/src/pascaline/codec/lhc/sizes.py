"""How many elements of a union a sketch is made for before that union is known: pure integers, alike on all ranks.

What a chunk's union was in the last reductions of the same tensor says what it will be, as round trip times say what
the next one may take (RFC 6298): a mean that moves half of the way, and twice the mean deviation above it. Never less
than the last union, so what has grown fits the next time, and it takes no more than one repair to follow a jump.
"""

from __future__ import annotations

from typing import NamedTuple

_UNITS = 16
"""Means are kept in sixteenths of an element."""


class Expected(NamedTuple):
    """Of one chunk, after one or more reductions of its tensor."""

    last: int
    """Elements of the union that came last."""
    mean: int
    """In sixteenths."""
    deviation: int
    """In sixteenths: how far unions were from what they had been on average."""

    @classmethod
    def first(cls, union: int) -> Expected:
        """After one: it may be an eighth off."""
        return cls(union, _UNITS * union, _UNITS * union // 8)

    def after(self, union: int) -> Expected:
        """After one more."""
        missed = _UNITS * union - self.mean
        return Expected(union, self.mean + missed // 2, self.deviation + (abs(missed) - self.deviation) // 4)

    @property
    def elems(self) -> int:
        """What the next sketch is made for."""
        return max(self.last, (self.mean + 2 * self.deviation) // _UNITS)


class Memory:
    """What one reduction of a tensor learns, chunk by chunk, and what it knows from the one before."""

    def __init__(self, chunks: int, before: Memory | None) -> None:
        self._before = before
        self._known: list[Expected | None] = [None] * chunks
        self._unfinished = chunks

    def ready(self, chunk: int) -> bool:
        """Whether the reduction before this one has learnt its part: on any rank, what that is is the same."""
        return self._before is None or self._before._known[chunk] is not None

    def expected(self, chunk: int) -> Expected | None:
        """From before; None: this is the tensor's first reduction."""
        return self._before._known[chunk] if self._before else None

    def learn(self, chunk: int, union: int | None) -> None:
        """All ranks know the chunk's union now; None: they know that there is nothing to be learnt."""
        before = self.expected(chunk)
        if union is None:
            self._known[chunk] = before or Expected.first(0)
        else:
            self._known[chunk] = before.after(union) if before else Expected.first(union)

    def finished(self) -> bool:
        """One more chunk's sum is there; whether it was the last."""
        self._unfinished -= 1
        if not self._unfinished:
            self._before = None  # memories are no chain
        return not self._unfinished
