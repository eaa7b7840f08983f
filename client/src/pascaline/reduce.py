"""Reduce: the story "tensor in -> tensor out". encode -> write -> wait -> decode, chunk by chunk.

`reduce_chunk` is the story; `Collective` says which chunks a tensor needs, `Line` whose turn it is on a pool.
Everything here runs in the session's progress thread, so there is no lock. May touch plan, codec, link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

import numpy as np

from pascaline import plan
from pascaline.codec import MAX_F32, Array, Codec
from pascaline.codec.fixed32 import largest
from pascaline.contract import wire
from pascaline.errors import EpochEnded
from pascaline.link import Pool, Result

_ROUND_MASK = (1 << 32) - 1
Step = Generator[None, Result, None]
"""A chunk that has been written and waits for its result."""


def reduce_chunk(chunk: Chunk, line: Line) -> Step:
    """One chunk's way through the appliance. It starts when the window has room; `yield` is the only wait."""
    slot = line.next_slot()
    chunk.codec.encode(chunk.values, chunk.maximum, line.contribution(slot, chunk))
    line.write(chunk)
    result = yield  # rule 4: the slot's bytes are undefined until the completion of this immediate
    chunk.check(result)
    chunk.codec.decode(line.result(slot, chunk), chunk.maximum, chunk.values)
    line.drained()  # rule 5: only now may round r + W be written


class Chunk(NamedTuple):
    """A part of an array that travels as one message; its immediate is the same on all ranks."""

    values: Array
    codec: Codec
    maximum: np.float32
    op: int
    immediate: int
    length_bytes: int

    def check(self, result: Result) -> None:
        """A result that answers another message must never be decoded."""
        if result.immediate != self.immediate or result.length_bytes != self.length_bytes:
            raise EpochEnded(
                f"a result of {result.length_bytes} bytes with immediate {result.immediate:#x} came where "
                f"{self.length_bytes} bytes with {self.immediate:#x} were due",
                "imm_mismatch",
            )


class Collective:
    """One all_reduce of `values` (flat, in place): the maxima on the small pool if its codec needs them,
    then the data.
    """

    def __init__(self, values: Array, codec: Codec, sequence: int, done: Callable[[], None]) -> None:
        self._values, self._codec, self._sequence, self._done = values, codec, sequence, done
        self._maxima: Array | None = None

    def streams(self, data: Line, small: Line) -> list[tuple[Line, Stream]]:
        """What enters which line. Every line is entered in the order of the calls, which is the same on all ranks."""
        elems = data.pool.chunk_bytes // plan.ELEM_BYTES
        if not self._codec.scaled:
            return [(data, Stream(self._data(elems), self._done))]
        scales = Stream(self._scales(elems, small.pool.chunk_bytes // plan.ELEM_BYTES), _nothing)
        return [(small, scales), (data, Stream(self._data(elems), self._done, after=scales))]

    def _scales(self, elems: int, small_elems: int) -> Iterator[Chunk]:
        """Every chunk's largest |x|, which become the maxima over all ranks in place."""
        parts = plan.chunks(self._values.size, elems)
        self._maxima = np.array([largest(self._values[p.begin : p.end]) for p in parts], np.float32)
        for part in plan.chunks(self._maxima.size, small_elems):
            yield self._chunk(part, self._maxima[part.begin : part.end], MAX_F32, np.float32(0))

    def _data(self, elems: int) -> Iterator[Chunk]:
        for part in plan.chunks(self._values.size, elems):
            maximum = np.float32(0) if self._maxima is None else self._maxima[part.number]
            yield self._chunk(part, self._values[part.begin : part.end], self._codec, maximum)

    def _chunk(self, part: plan.Chunk, values: Array, codec: Codec, maximum: np.float32) -> Chunk:
        op, length_bytes = wire.OPS[codec.op], values.size * plan.ELEM_BYTES
        immediate = wire.immediate(self._sequence, part.number, op, length_bytes)
        return Chunk(values, codec, maximum, op, immediate, length_bytes)


def _nothing() -> None:
    """Nobody waits for scales but their data."""


class Stream:
    """A collective's chunks on one line, and whether all of them have been written and drained."""

    def __init__(
        self, chunks: Iterator[Chunk], done: Callable[[], None], after: Stream | None = None
    ) -> None:
        self._chunks, self._done, self._after = chunks, done, after
        self._undrained = 0
        self.written = self.drained = False

    def may_begin(self) -> bool:
        """Data waits for its scales."""
        return self._after is None or self._after.drained

    def next(self) -> Chunk | None:
        """The next chunk to write; None: that was all."""
        chunk = next(self._chunks, None)
        if chunk is None:
            self.written = True
            self._finish()
        else:
            self._undrained += 1
        return chunk

    def chunk_drained(self) -> None:
        """One chunk's result is in place."""
        self._undrained -= 1
        self._finish()

    def _finish(self) -> None:
        if self.written and not self._undrained and not self.drained:
            self.drained = True
            self._done()


class Flight(NamedTuple):
    """A chunk on the wire. Its contribution stays in its slot until its result is drained (rule 5)."""

    step: Step
    stream: Stream
    chunk: Chunk


class Line:
    """One pool's turn-taking: chunks in the order of the calls, at most `window` of them on the wire.

    Rule 8: the head of the line waits for its scales rather than be overtaken, since another rank's may be
    there.
    """

    def __init__(self, pool: Pool, op_windows: dict[int, int]) -> None:
        self.pool = pool
        self._op_windows = op_windows
        self._views = {
            dtype: [
                (np.frombuffer(c, dtype), np.frombuffer(r, dtype))
                for c, r in zip(pool.contributions, pool.results, strict=True)
            ]
            for dtype in (np.dtype("<f4"), np.dtype("<i4"))
        }
        self._queue: deque[Stream] = deque()
        self._flying: deque[Flight] = deque()
        """Rounds from rounds_drained to rounds_written."""
        self.rounds_written = self.rounds_drained = 0
        self.bytes_sent = self.bytes_received = 0

    def enter(self, stream: Stream) -> None:
        """Take the last place."""
        self._queue.append(stream)

    def busy(self) -> bool:
        """Whether anything is queued or on the wire."""
        return bool(self._queue or self._flying)

    def advance(self) -> None:
        """Write whatever the window lets through."""
        while self._queue and self._queue[0].may_begin() and self._has_room():
            stream = self._queue[0]
            chunk = stream.next()
            if chunk is None:
                self._queue.popleft()
                continue
            step = reduce_chunk(chunk, self)
            next(step)
            self._flying.append(Flight(step, stream, chunk))

    def arrived(self, result: Result) -> None:
        """The oldest chunk on the wire has its result: a queue pair delivers in order."""
        if not self._flying:
            raise EpochEnded(f"pool {result.pool} got a result that nothing waits for", "round_mismatch")
        step, stream, _ = self._flying.popleft()
        self.bytes_received += result.length_bytes
        try:
            step.send(result)
        except StopIteration:
            stream.chunk_drained()

    def write_again(self, complete: int) -> None:
        """A new epoch's queue pair: the stored contributions from round `complete` on (modulo 2^32) were void.

        Earlier results are delivered again, so those are not written again. The steps go on as if nothing had been.
        """
        kept = (complete - self.rounds_drained) & _ROUND_MASK
        if kept > len(self._flying):
            raise EpochEnded(
                f"the appliance has {complete} complete rounds of pool {self.pool.index}, this worker has written "
                f"{self.rounds_written}",
                "round_mismatch",
            )
        for place in range(kept, len(self._flying)):
            self._post(self.rounds_drained + place, self._flying[place].chunk)

    def _has_room(self) -> bool:
        return self.rounds_written - self.rounds_drained < self.pool.window and self.pool.can_write()

    # The steps of reduce_chunk.

    def next_slot(self) -> int:
        """Slot of the next round, in the contribution buffer and in the result buffer."""
        return self.rounds_written % self.pool.window

    def contribution(self, slot: int, chunk: Chunk) -> Array:
        """Where a chunk's encoding goes."""
        return self._views[chunk.codec.wire_dtype][slot][0][: chunk.values.size]

    def result(self, slot: int, chunk: Chunk) -> Array:
        """Where its result has landed."""
        return self._views[chunk.codec.wire_dtype][slot][1][: chunk.values.size]

    def write(self, chunk: Chunk) -> None:
        """Post the next round's contribution."""
        self._post(self.rounds_written, chunk)
        self.rounds_written += 1
        self.bytes_sent += chunk.length_bytes

    def _post(self, round_: int, chunk: Chunk) -> None:
        address = plan.remote_address(self.pool.va_base, self._op_windows[chunk.op], round_)
        self.pool.write(round_ % self.pool.window, chunk.length_bytes, address, chunk.immediate)

    def drained(self) -> None:
        """The oldest round's result has been copied out: its receive is posted again before its successor is."""
        self.pool.post_receive()
        self.rounds_drained += 1


def op_windows(ops: list[str]) -> dict[int, int]:
    """Op window of each op of a join: its place in the list, from 1; window 0 is the probe's."""
    return {wire.OPS[name]: place for place, name in enumerate(ops, start=1)}
