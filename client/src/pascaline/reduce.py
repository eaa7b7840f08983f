"""Reduce: the story "tensor in -> tensor out". encode -> write -> wait -> decode, chunk by chunk, round by round.

`reduce_chunk` is the story; `Collective` says which chunks a tensor needs, `Stream` in which order their messages
travel, `Line` whose turn it is on a pool. Everything here runs in the session's progress thread, so there is no lock.
May touch plan, codec, link.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator
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
    Round,
    Rounds,
)
from pascaline.contract import wire
from pascaline.errors import EpochEnded
from pascaline.link import Pool, Result

_ROUND_MASK = (1 << 32) - 1
_NO_SCALES = np.empty(0, np.float32)
_NUMBER_SHIFT = 24
"""Above a chunk's number, in what an immediate is made of: which of the chunk's rounds this is."""
Step = Generator["Message | None", Result | None, None]
"""A chunk on its way: it yields a message that waits for its result, then None until the turn of its next message."""


def reduce_chunk(chunk: Chunk, line: Line) -> Step:
    """One chunk's way through the appliance. It starts when the window has room; every `yield` waits."""
    round_ = chunk.begin()
    while round_ is not None:
        slot, message = line.next_slot(), chunk.message(round_)
        chunk.encode(
            round_, line.contribution(slot, message)
        )  # what it leaves out is pending until the sum is accepted
        line.write(message)
        result = yield message  # rule 4: the slot's bytes are undefined until the completion of this immediate
        message.check(result)
        round_ = chunk.go_on(line.result(slot, message))
        line.drained()  # rule 5: only now may round r + W be written
        if round_ is not None:
            yield None  # rule 8: until its turn, which is the same on all ranks


class Message(NamedTuple):
    """One round's contribution as the link sees it; its immediate is the same on all ranks."""

    op: int
    immediate: int
    length_bytes: int
    """Of the contribution."""
    result_bytes: int

    def check(self, result: Result | None) -> None:
        """A result that answers another message must never be decoded."""
        if result is None or result.immediate != self.immediate or result.length_bytes != self.result_bytes:
            what = (
                f"{result.length_bytes} bytes with immediate {result.immediate:#x}"
                if result
                else "no message"
            )
            raise EpochEnded(
                f"a result of {what} came where {self.result_bytes} bytes with {self.immediate:#x} were due",
                "imm_mismatch",
            )


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
    ) -> None:
        self.values = values
        self.flying = self.ended = False
        """Whether a message of it is on the wire; whether its sum is there."""
        self.more = False
        """Whether a message may follow the one that is or was on the wire."""
        self._codec, self._place, self._scales, self._carry = codec, place, scales, carry
        self._measure, self._is_data = measure, is_data
        self._look = False
        self._round = 0
        self._rounds: Rounds | None = None

    def begin(self) -> Round | None:
        """What it contributes first; None: nothing needs to be sent."""
        if self._measure and self._is_data:
            self._look = self._measure.begins(self.values.size) and self._codec.lossy
            if self._look:
                self._carry = self._measure.carry(self.values, self._carry)
        self._rounds = self._codec.rounds(self._place, self.values, self._carry, self._scales)
        return self._next(None)

    def go_on(self, combined: Bytes) -> Round | None:
        """Decode a result; what it contributes next, if the sum is not there yet."""
        return self._next(combined)

    def _next(self, combined: Bytes | None) -> Round | None:
        assert self._rounds is not None
        try:
            round_ = self._rounds.send(combined)  # type: ignore[arg-type]  # None begins it
        except StopIteration as end:
            self.more = False
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
        immediate = wire.immediate(self._place.sequence, number, op, round_.length_bytes)
        return Message(op, immediate, round_.length_bytes, round_.result_bytes)

    def encode(self, round_: Round, encoded: Bytes) -> None:
        """The contribution to one round."""
        round_.encode(encoded)
        if self._measure:
            self._measure.message(round_.length_bytes, round_.result_bytes)
            if self._look:
                self._measure.look(self.values, self._carry)
                self._look = False


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

    def streams(self, data: Line, small: Line) -> list[tuple[Line, Stream]]:
        """What enters which line. Every line is entered in the order of the calls, which is the same on all ranks."""
        self._parts = list(plan.chunks(self._values.size, self._codec.chunk_elems(data.pool.chunk_bytes)))
        if not self._codec.scale_count(self._values.size):
            return [(data, Stream(self._data(None), self._finish, data.pool.window))]
        scales = Scales(self._codec, [part.end - part.begin for part in self._parts])
        messages = Stream(
            self._norms(scales, small.pool.chunk_bytes // plan.SCALE_BYTES),
            _nothing,
            small.pool.window,
            scales.came,
        )
        values = Stream(self._data(scales), self._finish, data.pool.window, ready=scales.there)
        return [(small, messages), (data, values)]

    def _norms(self, scales: Scales, small_elems: int) -> Iterator[Chunk]:
        """The scales, message by message; norms are computed no sooner than a message needs them."""
        for message in plan.chunks(scales.values.size, small_elems):
            while scales.missing(message.end):
                part = self._parts[scales.computed]
                scales.compute(self._values[part.begin : part.end], self._carry(part))
            values = scales.values[message.begin : message.end]
            yield self._chunk(message.number, values, MAX_F32, _NO_SCALES, NOTHING, False)

    def _data(self, scales: Scales | None) -> Iterator[Chunk]:
        for part in self._parts:
            values = self._values[part.begin : part.end]
            of_chunk = _NO_SCALES if scales is None else scales.of(part.number)
            yield self._chunk(part.number, values, self._codec, of_chunk, self._carry(part), True)

    def _carry(self, part: plan.Chunk) -> Carry:
        return self._feedback.carry(part.begin, part.end) if self._feedback else NOTHING

    def _chunk(
        self, number: int, values: Array, codec: Codec, scales: Floats, carry: Carry, is_data: bool
    ) -> Chunk:
        place = Place(self._sequence, number, self._values.size)
        return Chunk(values, codec, place, scales, carry, self._measure, is_data)

    def _finish(self) -> None:
        if self._feedback:
            self._feedback.accepted()
        self._done()


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
    """

    def __init__(
        self,
        chunks: Iterator[Chunk],
        done: Callable[[], None],
        window: int,
        drained: Callable[[Chunk], None] = _not_told,
        ready: Callable[[int], bool] = _always,
    ) -> None:
        self._chunks, self._done, self._told, self._ready = chunks, done, drained, ready
        self._ahead = window // 2 + 1
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


class Flight(NamedTuple):
    """A message on the wire. Its contribution stays in its slot until its result is drained (rule 5)."""

    step: Step
    stream: Stream
    chunk: Chunk
    message: Message


class Line:
    """One pool's turn-taking: messages in the order of the calls, at most `window` of them on the wire.

    Rule 8: the head of the line waits for its scales, or for the result before it, rather than be overtaken, since
    another rank's may be there.
    """

    def __init__(self, pool: Pool, op_windows: dict[int, int]) -> None:
        self.pool = pool
        self._op_windows = op_windows
        self._contributions = [np.frombuffer(c, np.uint8) for c in pool.contributions]
        self._results = [np.frombuffer(r, np.uint8) for r in pool.results]
        self._queue: deque[Stream] = deque()
        self._steps: dict[Chunk, Step] = {}
        """Of chunks that have begun and whose sum is not there."""
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
        """Write one message, if the window has room and the head of the queue is ready; whether one was written."""
        while self._queue and self._has_room() and self._queue[0].may_go_on():
            stream = self._queue[0]
            chunk = stream.next()
            if chunk is not None and self._go_on(stream, chunk):
                return True
            if stream.all_written():
                self._queue.popleft()
        return False

    def _go_on(self, stream: Stream, chunk: Chunk) -> bool:
        """A chunk's next message; whether it has one."""
        step = self._steps.get(chunk)
        is_new = step is None
        if step is None:
            step = self._steps[chunk] = reduce_chunk(chunk, self)
        message = next(step, None)
        if message is None:
            self._drained(stream, chunk)
            return False
        chunk.flying = True
        self._flying.append(Flight(step, stream, chunk, message))
        stream.written(chunk, is_new)
        return True

    def arrived(self, result: Result) -> None:
        """The oldest message on the wire has its result: a queue pair delivers in order."""
        if not self._flying:
            raise EpochEnded(f"pool {result.pool} got a result that nothing waits for", "round_mismatch")
        step, stream, chunk, _ = self._flying.popleft()
        self.bytes_received += result.length_bytes
        chunk.flying = False
        try:
            step.send(result)
        except StopIteration:
            self._drained(stream, chunk)

    def _drained(self, stream: Stream, chunk: Chunk) -> None:
        del self._steps[chunk]
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
            self._post(self.rounds_drained + place, self._flying[place].message)

    def _has_room(self) -> bool:
        return self.rounds_written - self.rounds_drained < self.pool.window and self.pool.can_write()

    # The steps of reduce_chunk.

    def next_slot(self) -> int:
        """Slot of the next round, in the contribution buffer and in the result buffer."""
        return self.rounds_written % self.pool.window

    def contribution(self, slot: int, message: Message) -> Bytes:
        """Where a message's encoding goes."""
        return self._contributions[slot][: message.length_bytes]

    def result(self, slot: int, message: Message) -> Bytes:
        """Where its result has landed."""
        return self._results[slot][: message.result_bytes]

    def write(self, message: Message) -> None:
        """Post the next round's contribution."""
        self._post(self.rounds_written, message)
        self.rounds_written += 1
        self.bytes_sent += message.length_bytes

    def _post(self, round_: int, message: Message) -> None:
        address = plan.remote_address(self.pool.va_base, self._op_windows[message.op], round_)
        self.pool.write(round_ % self.pool.window, message.length_bytes, address, message.immediate)

    def drained(self) -> None:
        """The oldest round's result has been copied out: its receive is posted again before its successor is."""
        self.pool.post_receive()
        self.rounds_drained += 1


def op_windows(ops: list[str]) -> dict[int, int]:
    """Op window of each op of a join: its place in the list, from 1; window 0 is the probe's."""
    return {wire.OPS[name]: place for place, name in enumerate(ops, start=1)}
