"""Reduce: the story "tensor in -> tensor out". encode -> write -> wait -> decode, chunk by chunk.

`reduce_chunk` is the story; `Collective` says which chunks a tensor needs, `Line` whose turn it is on a pool.
Everything here runs in the session's progress thread, so there is no lock. May touch plan, codec, link.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pascaline import plan
from pascaline.codec import (
    MAX_F32,
    NOTHING,
    Array,
    Bytes,
    Carry,
    Codec,
    ErrorFeedback,
    Floats,
    Measure,
    Place,
)
from pascaline.contract import wire
from pascaline.errors import EpochEnded
from pascaline.link import Pool, Result

_ROUND_MASK = (1 << 32) - 1
_NO_SCALES = np.empty(0, np.float32)
Step = Generator[None, Result, None]
"""A chunk that has been written and waits for its result."""


def reduce_chunk(chunk: Chunk, line: Line) -> Step:
    """One chunk's way through the appliance. It starts when the window has room; `yield` is the only wait."""
    slot = line.next_slot()
    chunk.encode(line.contribution(slot, chunk))  # what it leaves out is pending until the sum is accepted
    line.write(chunk)
    result = yield  # rule 4: the slot's bytes are undefined until the completion of this immediate
    chunk.check(result)
    chunk.decode(line.result(slot, chunk))
    line.drained()  # rule 5: only now may round r + W be written


class Chunk(NamedTuple):
    """A part of an array that travels as one message; its immediate is the same on all ranks."""

    values: Array
    codec: Codec
    place: Place
    scales: Floats
    carry: Carry
    measure: Measure | None
    """Where its error is added up, if it is this chunk's turn."""
    op: int
    immediate: int
    length_bytes: int
    """Of the contribution."""
    result_bytes: int

    def encode(self, encoded: Bytes) -> None:
        """The chunk's contribution."""
        if self.measure:
            self.measure.encode(self.codec, self.place, self.values, self.carry, self.scales, encoded)
        else:
            self.codec.encode(self.place, self.values, self.carry, self.scales, encoded)

    def check(self, result: Result) -> None:
        """A result that answers another message must never be decoded."""
        if result.immediate != self.immediate or result.length_bytes != self.result_bytes:
            raise EpochEnded(
                f"a result of {result.length_bytes} bytes with immediate {result.immediate:#x} came where "
                f"{self.result_bytes} bytes with {self.immediate:#x} were due",
                "imm_mismatch",
            )

    def decode(self, combined: Bytes) -> None:
        """The sum over all ranks, in the place of this rank's values."""
        self.codec.decode(self.place, combined, self.carry, self.scales, self.values)


class Collective:
    """One all_reduce of `values` (flat, in place): the scales on the small pool if its codec needs them, then the
    data.
    """

    def __init__(
        self,
        values: Array,
        codec: Codec,
        sequence: int,
        done: Callable[[], None],
        feedback: ErrorFeedback | None = None,
        measure: Measure | None = None,
    ) -> None:
        self._values, self._codec, self._sequence, self._done = values, codec, sequence, done
        self._feedback, self._measure = feedback, measure
        self._parts: list[plan.Chunk] = []
        self._unfinished = 0
        """Lanes whose share of the data is not all summed."""

    def streams(self, data: Sequence[Line], small: Line) -> list[tuple[Line, Stream]]:
        """What enters which line. Every line is entered in the order of the calls, which is the same on all ranks.

        `data` are the lines over the data pools, of one size, in the order of the offer.
        """
        self._parts = list(plan.chunks(self._values.size, self._codec.chunk_elems(data[0].pool.chunk_bytes)))
        if not self._codec.scale_count(self._values.size):
            return self._over_lanes(data, None)
        scales = Scales(self._codec, [part.end - part.begin for part in self._parts])
        messages = Stream(
            self._norms(scales, small.pool.chunk_bytes // plan.SCALE_BYTES), _nothing, scales.came
        )
        return [(small, messages), *self._over_lanes(data, scales)]

    def _over_lanes(self, data: Sequence[Line], scales: Scales | None) -> list[tuple[Line, Stream]]:
        """Each lane's share of the chunks."""
        shares = [
            (line, plan.lane_chunks(self._sequence, len(self._parts), lane, len(data)))
            for lane, line in enumerate(data)
        ]
        busy = [(line, share) for line, share in shares if share]
        self._unfinished = len(busy)
        return [
            (line, Stream(self._data(scales, share), self._finish, ready=_scales_there(scales, share)))
            for line, share in busy
        ]

    def _norms(self, scales: Scales, small_elems: int) -> Iterator[Chunk]:
        """The scales, message by message; norms are computed no sooner than a message needs them."""
        for message in plan.chunks(scales.values.size, small_elems):
            while scales.missing(message.end):
                part = self._parts[scales.computed]
                scales.compute(self._values[part.begin : part.end], self._carry(part))
            values = scales.values[message.begin : message.end]
            yield self._chunk(message.number, values, MAX_F32, _NO_SCALES, NOTHING)

    def _data(self, scales: Scales | None, numbers: Sequence[int]) -> Iterator[Chunk]:
        for number in numbers:
            part = self._parts[number]
            values = self._values[part.begin : part.end]
            of_chunk = _NO_SCALES if scales is None else scales.of(part.number)
            yield self._chunk(part.number, values, self._codec, of_chunk, self._carry(part))

    def _carry(self, part: plan.Chunk) -> Carry:
        return self._feedback.carry(part.begin, part.end) if self._feedback else NOTHING

    def _chunk(self, number: int, values: Array, codec: Codec, scales: Floats, carry: Carry) -> Chunk:
        place = Place(self._sequence, number, self._values.size)
        op = wire.OPS[codec.op]
        length, back = codec.contribution_bytes(values.size), codec.result_bytes(values.size)
        immediate = wire.immediate(self._sequence, number, op, length)
        measure = self._counted(codec, values.size, length, back)
        return Chunk(values, codec, place, scales, carry, measure, op, immediate, length, back)

    def _counted(self, codec: Codec, elems: int, length: int, back: int) -> Measure | None:
        """What a chunk is counted by, if it is its turn to be measured."""
        if self._measure is None:
            return None
        if codec is not self._codec:
            self._measure.count_scales(length, back)
            return None
        turn = self._measure.count(elems, codec.kept(elems), length, back)
        return self._measure if turn and codec.lossy else None

    def _finish(self) -> None:
        """One lane's share is done."""
        self._unfinished -= 1
        if self._unfinished:
            return
        if self._feedback:
            self._feedback.accepted()
        self._done()


def _scales_there(scales: Scales | None, numbers: Sequence[int]) -> Callable[[int], bool]:
    """Whether the scales of a share's place-th chunk have come."""
    if scales is None:
        return _always
    return lambda place: place >= len(numbers) or scales.there(numbers[place])


class Scales:
    """A collective's scales: norms of this rank first, and in their place, as messages come back, the ranks' maxima.

    Data need not wait for all of them: a chunk may be written when its own have come.
    """

    def __init__(self, codec: Codec, chunk_elems: list[int]) -> None:
        self._codec = codec
        ends = np.cumsum([codec.scale_count(elems) for elems in chunk_elems])
        self._ends: list[int] = ends.tolist()
        self._norms = np.zeros(self._ends[-1], np.float32)
        self.values = np.zeros(1, np.float32) if codec.one_scale else self._norms
        self.computed = 0
        """Chunks whose norms are there."""
        self._come = 0
        """Values that are scales."""

    def missing(self, end: int) -> bool:
        """Whether the first `end` values cannot be sent yet."""
        needed = len(self._ends) if self._codec.one_scale else bisect_left(self._ends, end) + 1
        return self.computed < needed

    def compute(self, values: Array, carry: Carry) -> None:
        """The next chunk's norms, and after the last the tensor's if that has one scale."""
        begin, end = self._bounds(self.computed)
        self._codec.norms(values, carry, self._norms[begin:end])
        self.computed += 1
        if self._codec.one_scale and self.computed == len(self._ends):
            self.values[0] = self._codec.fold(self._norms)

    def came(self, message: Chunk) -> None:
        """A message's maxima are in place; they come in order."""
        self._come += message.values.size

    def there(self, chunk: int) -> bool:
        """Whether chunk number `chunk` may be encoded; so may the one behind the last, which is none."""
        last = self.values.size if self._codec.one_scale or chunk >= len(self._ends) else self._ends[chunk]
        return self._come >= last

    def of(self, chunk: int) -> Floats:
        """A chunk's."""
        if self._codec.one_scale:
            return self.values
        begin, end = self._bounds(chunk)
        return self.values[begin:end]

    def _bounds(self, chunk: int) -> tuple[int, int]:
        return self._ends[chunk - 1] if chunk else 0, self._ends[chunk]


def _nothing() -> None:
    """Nobody waits for scales but their data."""


def _always(_chunk: int) -> bool:
    return True


def _not_told(_chunk: Chunk) -> None:
    pass


class Stream:
    """A collective's chunks on one line, and whether all of them have been written and drained."""

    def __init__(
        self,
        chunks: Iterator[Chunk],
        done: Callable[[], None],
        drained: Callable[[Chunk], None] = _not_told,
        ready: Callable[[int], bool] = _always,
    ) -> None:
        self._chunks, self._done, self._told, self._ready = chunks, done, drained, ready
        self._begun = self._undrained = 0
        self._written = False

    def may_go_on(self) -> bool:
        """Data waits for its scales."""
        return self._ready(self._begun)

    def next(self) -> Chunk | None:
        """The next chunk to write; None: that was all."""
        chunk = next(self._chunks, None)
        if chunk is None:
            self._written = True
            self._finish()
        else:
            self._begun += 1
            self._undrained += 1
        return chunk

    def chunk_drained(self, chunk: Chunk) -> None:
        """One chunk's result is in place."""
        self._undrained -= 1
        self._told(chunk)
        self._finish()

    def _finish(self) -> None:
        if self._written and not self._undrained:
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
        self._contributions = [np.frombuffer(c, np.uint8) for c in pool.contributions]
        self._results = [np.frombuffer(r, np.uint8) for r in pool.results]
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

    def advance(self) -> bool:
        """Write one chunk, if the window has room and the head of the queue is ready; whether one was written."""
        while self._queue and self._queue[0].may_go_on() and self._has_room():
            stream = self._queue[0]
            chunk = stream.next()
            if chunk is not None:
                step = reduce_chunk(chunk, self)
                next(step)
                self._flying.append(Flight(step, stream, chunk))
                return True
            self._queue.popleft()
        return False

    def arrived(self, result: Result) -> None:
        """The oldest chunk on the wire has its result: a queue pair delivers in order."""
        if not self._flying:
            raise EpochEnded(f"pool {result.pool} got a result that nothing waits for", "round_mismatch")
        step, stream, chunk = self._flying.popleft()
        self.bytes_received += result.length_bytes
        try:
            step.send(result)
        except StopIteration:
            stream.chunk_drained(chunk)

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

    def contribution(self, slot: int, chunk: Chunk) -> Bytes:
        """Where a chunk's encoding goes."""
        return self._contributions[slot][: chunk.length_bytes]

    def result(self, slot: int, chunk: Chunk) -> Bytes:
        """Where its result has landed."""
        return self._results[slot][: chunk.result_bytes]

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
