"""A collective's messages on one line, in the order that is the same on all ranks (rule 8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pascaline.reduce.chunk import Chunk


def _always(_chunk: int) -> bool:
    return True


def _not_told(_chunk: Chunk) -> None:
    pass


class Due(NamedTuple):
    """A chunk that may have another message, and the turn at which that travels."""

    turn: int
    chunk: Chunk


class Stream:
    """A collective's messages on one line, in an order that is the same on all ranks (rule 8), and whether all of them
    have been written and drained.

    Turn t: first the next messages of chunks whose last one travelled at turn t - A, older chunks first, then the first
    message of chunk t. So what a chunk waits for travels behind other chunks' messages, and a whole window of those is
    between: A = W // 2 + 1 leaves 2 (A - 1) >= W - 1 of them. A chunk of one round is never waited for.

    Where chunks come in two parts, the first of which is one message that leads (`parts`), turns are shorter and A is
    twice that.
    """

    def __init__(
        self,
        chunks: Iterator[Chunk],
        done: Callable[[], None],
        window: int,
        drained: Callable[[Chunk], None] = _not_told,
        ready: Callable[[int], bool] = _always,
        parts: int = 1,
    ) -> None:
        self._chunks, self._done, self._told, self._ready = chunks, done, drained, ready
        self._ahead = parts * (window // 2 + 1)
        self._begun = self._undrained = 0
        self._due: deque[Due] = deque()
        self._all_begun = False

    def may_go_on(self) -> bool:
        """Whether all that the next message waits for has come: its chunk's scales, or the result before it."""
        chunk = self._next_due()
        return self._ready(self._begun) if chunk is None else not chunk.flying

    def _next_due(self) -> Chunk | None:
        """The chunk whose next message is next, or None: a new chunk is. Those whose sum is there have no message."""
        while self._due and (self._all_begun or self._due[0].turn <= self._begun):
            if not self._due[0].chunk.ended:
                return self._due[0].chunk
            self._due.popleft()
        return None

    def next(self) -> Chunk | None:
        """The chunk that writes next; None: look again, or all is written."""
        chunk = self._next_due()
        if chunk is not None:
            self._due.popleft()
            return chunk
        chunk = next(self._chunks, None)
        if chunk is not None:
            self._begun += 1
            self._undrained += 1
        elif not self._all_begun:
            self._all_begun = True
            self._finish()
        return chunk

    def written(self, chunk: Chunk, is_new: bool) -> None:
        """A message of `chunk` is on its way: another may be due."""
        if chunk.more:
            self._due.append(Due(self._begun - is_new + self._ahead, chunk))

    def all_written(self) -> bool:
        """Whether nothing of it will be written any more."""
        return self._all_begun and self._next_due() is None

    def chunk_drained(self, chunk: Chunk) -> None:
        """One chunk's sum is in place."""
        chunk.ended = True
        self._undrained -= 1
        self._told(chunk)
        self._finish()

    def _finish(self) -> None:
        if self._all_begun and not self._undrained:
            self._done()
