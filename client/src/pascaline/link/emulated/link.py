"""A link without an appliance: contributions travel by the process group's all_gather, and every rank adds them itself.

Each pool has a thread and a Gloo group of its own, never the user's, so that rounds keep their order whatever else
the job exchanges. Slots, rounds and completions are as over RoCE; only the time that they take says nothing.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from pascaline.contract import wire
from pascaline.errors import ConfigurationError, EpochEnded, PascalineError
from pascaline.link import LinkFault, Result
from pascaline.link.emulated.ops import STREAMS, combine
from pascaline.link.emulated.streams import StreamFault

_ROUND_MASK = 0xFFFFFFFF
_HEAD_BYTES = 24
"""Op window, length and immediate of a contribution, before its bytes."""
_INLINE_BYTES = 4096
"""What travels with the head: a message of scales needs one exchange, longer ones a second."""


class PoolSize(NamedTuple):
    """Of one pool."""

    window: int
    chunk_bytes: int


class _Contribution(NamedTuple):
    round_: int
    op_window: int
    length_bytes: int
    immediate: int


class EmulatedPool:
    """One pool: buffers, and a thread that exchanges one round after the other."""

    def __init__(self, link: EmulatedLink, index: int, size: PoolSize, group: Any) -> None:
        self.index, self.window, self.chunk_bytes = index, size.window, size.chunk_bytes
        self.va_base = 0
        self.contributions = [memoryview(bytearray(size.chunk_bytes)) for _ in range(size.window)]
        self.results = [memoryview(bytearray(size.chunk_bytes)) for _ in range(size.window)]
        self._link, self._group = link, group
        self._inline_bytes = min(_INLINE_BYTES, size.chunk_bytes)
        self._first = torch.empty(_HEAD_BYTES + self._inline_bytes, dtype=torch.uint8)
        self._gathered = torch.empty(link.world_size, _HEAD_BYTES + size.chunk_bytes, dtype=torch.uint8)
        self._waiting: queue.SimpleQueue[_Contribution | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=f"pascaline-emulated-{index}", daemon=True)
        self.thread.start()

    def can_write(self) -> bool:
        """The queue has no end."""
        return True

    def post_receive(self) -> None:
        """A result always finds its slot."""

    def write(self, slot: int, length_bytes: int, remote_address: int, immediate: int) -> None:
        """Hand a round to the thread. Its bytes stay in the slot until the result has been drained (rule 5)."""
        op_window = remote_address >> wire.VA_WINDOW_SHIFT
        round_ = remote_address >> wire.VA_ROUND_SHIFT & _ROUND_MASK
        self._waiting.put(_Contribution(round_, op_window, length_bytes, immediate))

    def stop(self) -> None:
        """No further round; the one under way ends when the others have come, or not at all."""
        self._waiting.put(None)

    def _run(self) -> None:
        while (mine := self._waiting.get()) is not None:
            try:
                self._exchange(mine)
            except PascalineError as error:
                self._link.fail(error)
                return
            except Exception as error:  # torch.distributed raises RuntimeError and its heirs
                self._link.fail(LinkFault(f"the process group's all_gather failed: {error}"))
                return

    def _exchange(self, mine: _Contribution) -> None:
        """One round: what everybody is going to send with as much of it as fits, then the rest, then the sum."""
        op = self._link.ops[mine.op_window - 1]
        ours = torch.frombuffer(self.contributions[mine.round_ % self.window], dtype=torch.uint8)
        self._first[:_HEAD_BYTES].view(torch.int64)[:] = torch.tensor(mine[1:])
        self._first[_HEAD_BYTES:] = ours[: self._inline_bytes]
        self._gather(self._first, 0, _HEAD_BYTES + self._inline_bytes)
        lengths = self._compare(mine)
        longest = max(lengths)  # streams have lengths of their own
        if longest > self._inline_bytes:
            self._gather(
                ours[self._inline_bytes : longest], _HEAD_BYTES + self._inline_bytes, _HEAD_BYTES + longest
            )
        rows = self._gathered[:, _HEAD_BYTES:].numpy()
        result = self._combine(mine, op, [row[:length] for row, length in zip(rows, lengths, strict=True)])
        if self._link.closed:
            return
        np.frombuffer(self.results[mine.round_ % self.window], np.uint8)[: result.size] = result
        self._link.land(Result(self.index, mine.immediate, result.size))

    def _gather(self, ours: torch.Tensor, begin: int, end: int) -> None:
        """Everybody's part of a round."""
        dist.all_gather([row[begin:end] for row in self._gathered], ours, group=self._group)

    def _combine(
        self, mine: _Contribution, op: str, rows: list[np.ndarray[Any, Any]]
    ) -> np.ndarray[Any, Any]:
        try:
            return combine(op, rows, self._link.tables.get(op, ()), self.chunk_bytes)
        except StreamFault as fault:
            raise EpochEnded(
                f"round {mine.round_}: rank {fault.rank} contributes {fault}", fault.fault, fault.rank
            ) from fault

    def _compare(self, mine: _Contribution) -> list[int]:
        """As the appliance does: op, immediate and length of a round are alike, or the epoch ends; a stream's length is
        its own. Returns everybody's lengths.
        """
        streams = self._link.ops[mine.op_window - 1] in STREAMS
        heads = [row[:_HEAD_BYTES].clone().view(torch.int64).tolist() for row in self._gathered]
        for rank, head in enumerate(heads):
            for what, a, b in zip(("op", "length", "imm"), heads[0], head, strict=True):
                if a != b and not (streams and what == "length"):
                    said = [_said(what, value, self._link.ops) for value in (a, b)]
                    raise EpochEnded(
                        f"round {mine.round_}: rank 0 contributes {said[0]} and rank {rank} {said[1]}: every rank must "
                        "reduce the same tensors in the same order",
                        f"{what}_mismatch",
                        rank,
                    )
        return [length for _, length, _ in heads]


def _said(what: str, value: int, ops: Sequence[str]) -> str:
    if what == "op":
        return ops[value - 1]
    return f"{value} bytes" if what == "length" else f"a message whose immediate is {value:#x}"


def ranks_of(process_group: Any) -> tuple[int, int]:
    """Own rank and number of ranks in `process_group` (None: the default group). Raises ConfigurationError."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigurationError(
            "the emulated link exchanges over torch.distributed, which is not initialised: call "
            "torch.distributed.init_process_group first"
        )
    rank = dist.get_rank(process_group)
    if rank < 0:
        raise ConfigurationError("this process is not in the process group that the emulated link was given")
    return rank, dist.get_world_size(process_group)


class EmulatedLink:
    """All pools of one worker over `process_group` (None: the default group)."""

    def __init__(self, process_group: Any, timeout_s: float) -> None:
        self.rank, self.world_size = ranks_of(process_group)
        self._members = dist.get_process_group_ranks(process_group)
        self._everybody = len(self._members) == dist.get_world_size()
        self._timeout = timedelta(seconds=timeout_s)
        self._lock = threading.Lock()
        self._landed: list[Result] = []
        self._fault: Exception | None = None
        self.closed = False
        self.ops: Sequence[str] = ()
        self.tables: Mapping[str, Sequence[int]] = {}
        self.pools: list[EmulatedPool] = []
        self._groups = [self._new_group()]
        self.completion_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def _new_group(self) -> Any:
        return dist.new_group(
            self._members,
            timeout=self._timeout,
            backend="gloo",
            use_local_synchronization=not self._everybody,
        )

    def gather(self, text: str) -> list[str]:
        """Every rank's `text`, in rank order."""
        texts: list[Any] = [None] * self.world_size
        dist.all_gather_object(texts, text, group=self._groups[0])
        return texts

    def open(
        self, ops: Sequence[str], tables: Mapping[str, Sequence[int]], sizes: Sequence[PoolSize]
    ) -> None:
        """Rounds may begin. `ops`: op windows from 1 up, as in a join; `sizes`: of the pools, alike on all
        ranks.
        """
        self.ops, self.tables = ops, tables
        self._groups += [self._new_group() for _ in sizes[1:]]
        self.pools = [
            EmulatedPool(self, index, size, group)
            for index, (size, group) in enumerate(zip(sizes, self._groups, strict=True))
        ]

    # The pools' threads.

    def land(self, result: Result) -> None:
        """A sum is in its slot."""
        with self._lock:
            if not self.closed:
                self._landed.append(result)
                os.eventfd_write(self.completion_fd, 1)

    def fail(self, fault: Exception) -> None:
        """No further round can come."""
        with self._lock:
            if not self.closed:
                self._fault = self._fault or fault
                os.eventfd_write(self.completion_fd, 1)

    # The progress thread.

    def completions(self) -> list[Result]:
        """Results that have landed since the last call. Raises LinkFault, or EpochEnded where ranks disagree."""
        with self._lock:
            if self._fault and not self._landed:
                raise self._fault
            return self._take()

    def _take(self) -> list[Result]:
        landed, self._landed = self._landed, []
        if landed and not self._fault:
            os.eventfd_read(self.completion_fd)
        return landed

    def halt(self) -> list[Result]:
        """What has landed; nothing else will."""
        with self._lock:
            return [] if self.closed else self._take()

    def wait(self, timeout_s: float) -> bool:
        """Sleep until completions may have come."""
        return bool(select.select([self.completion_fd], [], [], timeout_s)[0])

    def close(self) -> None:
        """Stop the threads. One that is inside an exchange cannot be recalled; it touches nothing any more."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            os.close(self.completion_fd)
        for pool in self.pools:
            pool.stop()
        for pool in self.pools:
            pool.thread.join(timeout=1.0)
        # The name of a group that only its members make is taken from their ranks, and free again once it is destroyed:
        # the next session would meet this one's addresses in the store.
        if self._everybody and not any(pool.thread.is_alive() for pool in self.pools):
            for group in self._groups:
                with contextlib.suppress(Exception):  # the user may have destroyed all groups already
                    dist.destroy_process_group(group)
