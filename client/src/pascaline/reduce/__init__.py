"""Reduce: the story "tensor in -> tensor out". encode -> write -> wait -> decode, chunk by chunk, round by round.

`reduce_chunk` is the story; `Collective` says which chunks a tensor needs, `Chunk` what one sends, `Stream` in which
order messages travel, `Line` whose turn it is on a pool. Everything here runs in the session's progress thread, so
there is no lock. May touch plan, codec, link.
"""

from __future__ import annotations

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
from pascaline.reduce.chunk import Chunk, Message
from pascaline.reduce.scales import Scales
from pascaline.reduce.stream import Stream

_ROUND_MASK = (1 << 32) - 1
_NOTE = (1 << 24) - 1
"""In the place of a chunk's number: no slot is so small that a tensor has so many."""
_NO_SCALES = np.empty(0, np.float32)
Step = Generator[Message | None, Result | None, None]
"""A chunk on its way: it yields a message that waits for its result, then None until the turn of its next message."""


def reduce_chunk(chunk: Chunk, line: Line) -> Step:
    """One chunk's way through the appliance. It starts when the window has room; every `yield` waits."""
    round_ = chunk.begin()
    while round_ is not None:
        slot, message = line.next_slot(), chunk.message(round_)
        # What an encoding leaves out is pending until the sum is accepted.
        chunk.encode(round_, line.contribution(slot, message))
        line.write(message)
        result = yield message  # rule 4: the slot's bytes are undefined until the completion of this immediate
        length_bytes = message.check(result)
        round_ = chunk.go_on(line.result(slot, length_bytes))
        line.drained()  # rule 5: only now may round r + W be written
        if round_ is not None:
            yield None  # rule 8: until its turn, which is the same on all ranks


class Other(NamedTuple):
    """A codec that is not the session's own, which alone was compared at the join; or what an empty tensor has instead.

    Its collectives begin with notes: messages of one zero, also where the session's own codec would have sent its first
    message. So ranks that have chosen differently meet there, whatever either waits for next, and are told.
    """

    crc: int
    """Of its words."""
    on_small: bool
    """Whether the session's own codec has scales, which go first."""

    def note(self, sequence: int) -> int:
        """The immediate of its note."""
        return wire.immediate(sequence, _NOTE, wire.OPS[MAX_F32.op], plan.SCALE_BYTES, 0, self.crc)


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
        name: str = "",
        other: Other | None = None,
    ) -> None:
        self._values, self._codec, self._sequence, self._done = values, codec, sequence, done
        self._feedback, self._measure, self._name, self._other = feedback, measure, name, other
        self._parts: list[plan.Chunk] = []
        self._unfinished = 0
        """Lanes whose share of the data is not all summed; of an empty tensor, its notes."""

    def streams(self, data: Sequence[Line], small: Line) -> list[tuple[Line, Stream]]:
        """What enters which line. Every line is entered in the order of the calls, which is the same on all ranks.

        `data` are the lines over the data pools, of one size, in the order of the offer.
        """
        self._parts = list(plan.chunks(self._values.size, self._codec.chunk_elems(data[0].pool.chunk_bytes)))
        note = self._notes(data, small)
        if not self._parts:  # the notes meet what a rank sends whose tensor is not empty
            return note
        self._codec.opens(self._place(0), len(self._parts))
        if not self._codec.scale_count(self._values.size):
            return [*note, *self._over_lanes(data, None)]
        scales = Scales(self._codec, [part.end - part.begin for part in self._parts])
        messages = Stream(
            self._norms(scales, small.pool.chunk_bytes // plan.SCALE_BYTES),
            _nothing,
            small.pool.window,
            scales.came,
        )
        return [*note, (small, messages), *self._over_lanes(data, scales)]

    def _notes(self, data: Sequence[Line], small: Line) -> list[tuple[Line, Stream]]:
        """Of a codec that is not the session's own: before the first chunk, and on the small pool if the session's own
        begins there or this one does. Nobody waits for them but an empty tensor, which has nothing else.
        """
        if self._other is None:
            return []
        lines = [data[self._sequence % len(data)]]
        if self._other.on_small or self._codec.scale_count(self._values.size):
            lines.append(small)
        done = _nothing
        if not self._parts:
            self._unfinished, done = len(lines), self._finish
        return [(line, Stream(iter([self._note()]), done, line.pool.window)) for line in lines]

    def _note(self) -> Chunk:
        place = self._place(_NOTE)._replace(elems=0)  # it meets other tensors' notes
        return Chunk(np.zeros(1, np.float32), MAX_F32, place, _NO_SCALES, NOTHING, None, is_data=False)

    def _over_lanes(self, data: Sequence[Line], scales: Scales | None) -> list[tuple[Line, Stream]]:
        """Each lane's share of the chunks."""
        shares = [
            (line, plan.lane_chunks(self._sequence, len(self._parts), lane, len(data)))
            for lane, line in enumerate(data)
        ]
        busy = [(line, share) for line, share in shares if share]
        self._unfinished = len(busy)
        return [(line, self._share(line, share, scales)) for line, share in busy]

    def _share(self, line: Line, numbers: Sequence[int], scales: Scales | None) -> Stream:
        """The chunks of these numbers, each as soon as its scales have come and its codec is ready."""
        parts = 2 if self._codec.leads else 1

        def ready(place: int) -> bool:
            if place >= parts * len(numbers):
                return True
            number = numbers[place // parts]
            return (scales is None or scales.there(number)) and self._codec.ready(self._place(number))

        return Stream(self._data(scales, numbers), self._finish, line.pool.window, ready=ready, parts=parts)

    def _norms(self, scales: Scales, small_elems: int) -> Iterator[Chunk]:
        """The scales, message by message; norms are computed no sooner than a message needs them."""
        for message in plan.chunks(scales.values.size, small_elems):
            while scales.missing(message.end):
                part = self._parts[scales.computed]
                scales.compute(self._values[part.begin : part.end], self._carry(part))
            values = scales.values[message.begin : message.end]
            yield self._chunk(message.number, values, MAX_F32, _NO_SCALES, NOTHING, is_data=False)

    def _data(self, scales: Scales | None, numbers: Sequence[int]) -> Iterator[Chunk]:
        for number in numbers:
            part = self._parts[number]
            values = self._values[part.begin : part.end]
            of_chunk = _NO_SCALES if scales is None else scales.of(part.number)
            if self._codec.leads:
                yield self._chunk(part.number, values, self._codec, of_chunk, NOTHING, is_lead=True)
            yield self._chunk(part.number, values, self._codec, of_chunk, self._carry(part))

    def _carry(self, part: plan.Chunk) -> Carry:
        return self._feedback.carry(part.begin, part.end) if self._feedback else NOTHING

    def _place(self, number: int) -> Place:
        crc = self._other.crc if self._other else 0
        return Place(self._sequence, number, self._values.size, self._name, crc)

    def _chunk(
        self,
        number: int,
        values: Array,
        codec: Codec,
        scales: Floats,
        carry: Carry,
        is_data: bool = True,
        is_lead: bool = False,
    ) -> Chunk:
        return Chunk(values, codec, self._place(number), scales, carry, self._measure, is_data, is_lead)

    def _finish(self) -> None:
        """One lane's share is done."""
        self._unfinished -= 1
        if self._unfinished:
            return
        if self._feedback:
            self._feedback.accepted()
        self._done()


def _nothing() -> None:
    """Nobody waits for scales but their data."""


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

    def result(self, slot: int, length_bytes: int) -> Bytes:
        """Where its result has landed."""
        return self._results[slot][:length_bytes]

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
