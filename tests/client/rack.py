"""A rack in memory: N workers' links and one adder, for tests that must run without RDMA.

It holds workers to their part of the rules: rounds in order, at most `window` of them not yet drained, a receive posted
for every result, immediates that agree. The adder is numpy, in the order of ranks.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import numpy as np

from pascaline.contract import wire
from pascaline.link import LinkFault, Result
from pascaline.reduce import Line, op_windows

OPS = ["sum_f32", "sum_i32", "max_f32"]


def combine(op: int, encodings: list[memoryview]) -> bytes:
    """What the aggregator does to the encodings of one round."""
    if op == wire.OPS["max_f32"]:
        bits = [np.frombuffer(e, np.uint32) & np.uint32(0x7FFFFFFF) for e in encodings]
        return np.maximum.reduce(bits).tobytes()
    dtype = np.float32 if op == wire.OPS["sum_f32"] else np.int32
    with np.errstate(all="ignore"):
        return np.add.reduce([np.frombuffer(e, dtype) for e in encodings], dtype=dtype).tobytes()


@dataclass
class Round:
    """Contributions of one round so far: rank -> (slot, length, immediate)."""

    op: int
    immediate: int
    length_bytes: int
    slots: dict[int, int] = field(default_factory=dict)


class RackPool:
    """One worker's end of a pool."""

    def __init__(self, rack: Rack, rank: int, index: int, window: int, chunk_bytes: int) -> None:
        self.rack, self.rank, self.index = rack, rank, index
        self.window, self.chunk_bytes = window, chunk_bytes
        self.va_base = 0x1234_5678_9ABC + rank
        self.contributions = [memoryview(bytearray(chunk_bytes)) for _ in range(window)]
        self.results = [memoryview(bytearray(chunk_bytes)) for _ in range(window)]
        self.receives = window + 1
        self.next_round = 0
        self.finished = 0
        """Rounds whose result this worker has; it must have drained them a window later."""

    def can_write(self) -> bool:
        return True

    def post_receive(self) -> None:
        self.receives += 1
        assert self.receives <= self.window + 1

    def write(self, slot: int, length_bytes: int, remote_address: int, immediate: int) -> None:
        offset = remote_address - self.va_base
        op_window, round_ = offset >> wire.VA_WINDOW_SHIFT, offset >> wire.VA_ROUND_SHIFT & 0xFFFFFFFF
        assert offset & 0xFFFFFF == 0
        assert round_ == self.next_round
        assert slot == round_ % self.window
        in_flight = self.next_round - self.finished
        assert in_flight < self.window, "a round beyond the window"
        assert self.receives >= in_flight + 1, "a round whose result has no receive"
        self.next_round += 1
        self.rack.contribute(self, round_, wire.OPS[OPS[op_window - 1]], slot, length_bytes, immediate)


class RackLink:
    """One worker's link."""

    def __init__(self, rack: Rack, rank: int) -> None:
        self.rack = rack
        self.pools = [RackPool(rack, rank, index, *size) for index, size in enumerate(rack.pool_sizes)]
        self.completion_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.landed: list[Result] = []
        self.fault = ""
        self.closed = False

    def completions(self) -> list[Result]:
        with self.rack.lock:
            if self.fault:
                raise LinkFault(self.fault)
            landed, self.landed = self.landed, []
            if landed:
                os.eventfd_read(self.completion_fd)
            return landed

    def fail(self, message: str) -> None:
        self.fault = message
        os.eventfd_write(self.completion_fd, 1)

    def close(self) -> None:
        self.closed = True
        os.close(self.completion_fd)


class Rack:
    """`world_size` links whose contributions are added."""

    def __init__(
        self, world_size: int, data: tuple[int, int] = (4, 64), small: tuple[int, int] = (2, 16)
    ) -> None:
        self.world_size = world_size
        self.pool_sizes = [data, small]
        self.lock = threading.RLock()
        self.rounds: dict[tuple[int, int], Round] = {}
        self.links = [RackLink(self, rank) for rank in range(world_size)]

    def lines(self, rank: int) -> list[Line]:
        """The reduce room's lines over one worker's pools."""
        return [Line(pool, op_windows(OPS)) for pool in self.links[rank].pools]

    def contribute(
        self, pool: RackPool, round_: int, op: int, slot: int, length_bytes: int, immediate: int
    ) -> None:
        with self.lock:
            entry = self.rounds.setdefault((pool.index, round_), Round(op, immediate, length_bytes))
            assert (entry.op, entry.immediate, entry.length_bytes) == (op, immediate, length_bytes)
            entry.slots[pool.rank] = slot
            if len(entry.slots) == self.world_size:
                del self.rounds[pool.index, round_]
                self._publish(pool.index, entry)

    def _publish(self, index: int, entry: Round) -> None:
        pools = [link.pools[index] for link in self.links]
        encodings = [p.contributions[entry.slots[p.rank]][: entry.length_bytes] for p in pools]
        result = combine(entry.op, encodings)
        for link, pool in zip(self.links, pools, strict=True):
            pool.results[entry.slots[pool.rank]][: entry.length_bytes] = result
            pool.receives -= 1
            pool.finished += 1
            link.landed.append(Result(index, entry.immediate, entry.length_bytes))
            os.eventfd_write(link.completion_fd, 1)
