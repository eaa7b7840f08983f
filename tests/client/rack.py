"""A rack in memory: N workers' links and one adder, for tests that must run without RDMA.

It holds workers to their part of the rules: rounds in order, at most `window` of them not yet drained, a receive posted
for every result, immediates that agree; and, over epochs, nothing written before the probe, void rounds written again
with the same bytes. The adder is the emulated link's, in the order of ranks. Results and contributions can be lost on
the way.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pascaline.contract import control, wire
from pascaline.errors import ApplianceUnreachable
from pascaline.link import LinkFault, PoolEnd, PoolSpec, Result
from pascaline.link.emulated.ops import STREAMS, combine
from pascaline.reduce import Line, op_windows
from pascaline.session.epochs import Epochs

PATIENCE_S = 60.0
"""For what must come: reached in failure only, since a shared machine may stand still for seconds."""
MTU = 16
OPS = ["sum_f32", "sum_i32", "max_f32", "sum_f16", "sum_bf16", "or_u32", *STREAMS]


@dataclass
class Round:
    """Contributions of one round so far."""

    op: int
    immediate: int
    length_bytes: int
    bytes_by_rank: dict[int, bytes] = field(default_factory=dict)
    result: bytes = b""
    """Once it is complete."""


class RackPool:
    """One worker's end of a pool."""

    def __init__(self, rack: Rack, rank: int, index: int, window: int, chunk_bytes: int) -> None:
        self.rack, self.rank, self.index = rack, rank, index
        self.window, self.chunk_bytes = window, chunk_bytes
        self.contributions = [memoryview(bytearray(chunk_bytes)) for _ in range(window)]
        self.results = [memoryview(bytearray(chunk_bytes)) for _ in range(window)]
        self.receives = 0
        self.next_round = 0
        self.finished = 0
        """Rounds whose result this worker has; it must have drained them a window later."""
        self.alive = self.probed = False
        self.va_base = 0

    def renew(self, va_base: int) -> None:
        assert not self.alive
        self.va_base = va_base
        self.receives = 0
        self.alive, self.probed = True, False

    def can_write(self) -> bool:
        return True

    def post_receive(self) -> None:
        if self.alive:
            self.receives += 1
        assert self.receives <= self.window + 1

    def write(self, slot: int, length_bytes: int, remote_address: int, immediate: int) -> None:
        assert self.alive
        offset = remote_address - self.va_base
        op_window, round_ = offset >> wire.VA_WINDOW_SHIFT, offset >> wire.VA_ROUND_SHIFT & 0xFFFFFFFF
        if op_window == wire.PROBE_WINDOW:
            assert (slot, length_bytes, round_, immediate) == (0, MTU, 0, wire.IMM_PROBE)
            self.rack.probe(self)
            return
        assert self.probed
        assert offset & 0xFFFFFF == 0
        assert round_ == self.next_round
        assert slot == round_ % self.window
        in_flight = self.next_round - self.finished
        assert in_flight < self.window, "a round beyond the window"
        assert self.receives >= in_flight + 1, "a round whose result has no receive"
        self.next_round += 1
        encoding = bytes(self.contributions[slot][:length_bytes])
        self.rack.contribute(self, round_, wire.OPS[self.rack.ops[op_window - 1]], encoding, immediate)


class RackLink:
    """One worker's link."""

    def __init__(self, rack: Rack, rank: int) -> None:
        self.rack, self.rank = rack, rank
        self.pools = [RackPool(rack, rank, index, *size) for index, size in enumerate(rack.pool_sizes)]
        self.completion_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.landed: list[Result] = []
        self.fault = ""
        self.closed = False
        self.blind = False
        """What lands is not seen until the link is halted."""
        self.unreachable = 0
        """Attempts to reach the appliance that fail."""
        self.looks = self.halts = 0
        """How often its worker has looked for completions, and flushed it."""

    def completions(self) -> list[Result]:
        with self.rack.lock:
            self.looks += 1
            if self.fault:
                raise LinkFault(self.fault)
            return [] if self.blind else self._take()

    def _take(self) -> list[Result]:
        landed, self.landed = self.landed, []
        if landed:
            os.eventfd_read(self.completion_fd)
        return landed

    def land(self, result: Result) -> None:
        self.landed.append(result)
        os.eventfd_write(self.completion_fd, 1)

    def fail(self, message: str) -> None:
        self.fault = message
        os.eventfd_write(self.completion_fd, 1)

    def wait(self, timeout_s: float) -> bool:
        return bool(select.select([self.completion_fd], [], [], timeout_s)[0])

    def halt(self) -> list[Result]:
        with self.rack.lock:
            for pool in self.pools:
                pool.alive = False
            self.fault, self.blind = "", False
            self.halts += 1
            return self._take()

    def renew(self, specs: Sequence[PoolSpec]) -> None:
        for pool, spec in zip(self.pools, specs, strict=True):
            pool.alive = False
            pool.renew(spec.va_base)

    def receive_from(self, mtu_bytes: int, traffic_class: int) -> None:
        assert (mtu_bytes, traffic_class) == (MTU, 106)
        if self.unreachable:
            self.unreachable -= 1
            raise ApplianceUnreachable("10.0.0.1 cannot be reached")
        for pool in self.pools:
            for _ in range(pool.window + 1):
                pool.post_receive()

    def ends(self) -> list[PoolEnd]:
        return [PoolEnd(p.index, 1, 2, 3, 4, p.window * p.chunk_bytes) for p in self.pools]

    def send(self, deadline_s: float) -> None:
        assert deadline_s > 0

    def close(self) -> None:
        self.closed = True
        os.close(self.completion_fd)


class Rack:
    """`world_size` links whose contributions are added, and the appliance's part of their epochs."""

    def __init__(
        self,
        world_size: int,
        data: tuple[int, int] = (4, 64),
        small: tuple[int, int] = (2, 16),
        deadline_s: float = PATIENCE_S,
        tables: Mapping[str, tuple[int, ...]] | None = None,
        lanes: int = 1,
    ) -> None:
        self.world_size, self.deadline_s = world_size, deadline_s
        self.tables = dict(tables or {})
        self.ops = OPS + list(self.tables)
        self.names = {wire.OPS[name]: name for name in self.ops}
        self.pool_sizes = [data] * lanes + [small]
        self.lock = threading.RLock()
        self.rounds: dict[tuple[int, int], Round] = {}
        self.complete = [0] * len(self.pool_sizes)
        self.epoch = 1
        self.epochs: dict[int, Epochs] = {}
        """By rank: who hears what the appliance says."""
        self.heard: list[tuple[int, object]] = []
        """What workers have said, by rank."""
        self.deaf: set[int] = set()
        """Ranks that no result reaches."""
        self.mute: set[int] = set()
        """Ranks whose contributions are lost."""
        self.halted = False
        self.resuming: dict[int, list[int]] = {}
        self.links = [RackLink(self, rank) for rank in range(world_size)]
        for rank, link in enumerate(self.links):
            link.renew(
                [
                    PoolSpec(i, *size, 1, 2, 3, 0x1234_5678_9ABC + rank, "10.0.0.1")
                    for i, size in enumerate(self.pool_sizes)
                ]
            )
            link.receive_from(MTU, 106)
            for pool in link.pools:
                pool.probed = True

    def lines(self, rank: int) -> list[Line]:
        """The reduce room's lines over one worker's pools."""
        return [Line(pool, op_windows(self.ops)) for pool in self.links[rank].pools]

    def epochs_of(self, rank: int, lines: list[Line]) -> Epochs:
        """A worker's part of the epochs, which then hears this rack."""
        link = self.links[rank]
        epochs = Epochs(self.offer(rank), "rack:1", link, lines, lambda message: self.hear(rank, message))
        self.epochs[rank] = epochs
        return epochs

    # The adder.

    def contribute(self, pool: RackPool, round_: int, op: int, encoding: bytes, immediate: int) -> None:
        with self.lock:
            if self.halted or pool.rank in self.mute:
                return
            entry = self.rounds.setdefault((pool.index, round_), Round(op, immediate, len(encoding)))
            assert (entry.op, entry.immediate) == (op, immediate)
            assert self.names[op] in STREAMS or entry.length_bytes == len(encoding)
            assert pool.rank not in entry.bytes_by_rank
            entry.bytes_by_rank[pool.rank] = encoding
            if len(entry.bytes_by_rank) == self.world_size:
                assert self.complete[pool.index] == round_
                self.complete[pool.index] += 1
                encodings = [np.frombuffer(e, np.uint8) for _, e in sorted(entry.bytes_by_rank.items())]
                entry.result = combine(
                    self.names[op], encodings, self.tables.get(self.names[op], ()), pool.chunk_bytes
                ).tobytes()
                for link in self.links:
                    self._deliver(link.pools[pool.index], round_)

    def _deliver(self, pool: RackPool, round_: int) -> None:
        if pool.rank in self.deaf:
            return
        entry = self.rounds[pool.index, round_]
        pool.results[round_ % pool.window][: len(entry.result)] = entry.result
        pool.receives -= 1
        pool.finished += 1
        assert pool.finished == round_ + 1, "a result out of order"
        self.links[pool.rank].land(Result(pool.index, entry.immediate, len(entry.result)))

    # The appliance.

    def offer(self, rank: int) -> control.Offer:
        pools = [
            control.PoolOffer(
                pool=index,
                pool_class="small" if index == len(self.pool_sizes) - 1 else "data",
                lane=index % (len(self.pool_sizes) - 1),
                address="10.0.0.1",
                window=window,
                chunk_bytes=chunk_bytes,
                qpn=1,
                start_psn=2,
                rkey=3,
                va_base=hex((self.epoch << 40) + (rank << 8) + index),
            )
            for index, (window, chunk_bytes) in enumerate(self.pool_sizes)
        ]
        return control.Offer(
            epoch=self.epoch,
            mtu=MTU,
            traffic_class=106,
            pools=pools,
            straggler_timeout_s=60,
            deadline_s=self.deadline_s,
            complete=list(self.complete),
            tables={op: control.table_hash(table) for op, table in self.tables.items()},  # type: ignore[misc]
        )

    def halt(self, message: str = "rank 1 does not acknowledge") -> None:
        """A fault that can be resumed: every rank is told."""
        with self.lock:
            self.resuming, self.halted = {}, True
            for epochs in self.epochs.values():
                epochs.hear(self.ended(message, resumable=True))

    def ended(self, message: str, resumable: bool) -> control.Ended:
        return control.Ended(
            fault="retry_exceeded",
            message=message,
            rank=1,
            complete=list(self.complete),
            epoch=self.epoch,
            resumable=resumable,
        )

    def hear(self, rank: int, message: object) -> None:
        with self.lock:
            self.heard.append((rank, message))
            if isinstance(message, control.Broken):
                self.halt(message.message)
            elif isinstance(message, control.Connect):
                self.epochs[rank].hear(control.Connected())
            elif isinstance(message, control.Resume):
                assert message.epoch == self.epoch
                self.resuming[rank] = message.received
                if len(self.resuming) == self.world_size:
                    self._offer_all()

    def _offer_all(self) -> None:
        """Everybody has drained: incomplete rounds are void, and new queue pairs may come."""
        self.epoch += 1
        self.halted = False
        self.rounds = {key: entry for key, entry in self.rounds.items() if entry.result}
        self.deaf, self.mute = set(), set()
        for rank, received in self.resuming.items():
            for pool in self.links[rank].pools:
                assert pool.finished == received[pool.index], "a result that landed was not drained"
                pool.next_round = self.complete[pool.index]
                pool.probed = False
            self.epochs[rank].hear(self.offer(rank))

    def probe(self, pool: RackPool) -> None:
        """The worker's probe has come: ours, and behind it the results that it lacks."""
        with self.lock:
            pool.results[0][:MTU] = bytes(MTU)
            pool.receives -= 1
            pool.probed = True
            self.links[pool.rank].land(Result(pool.index, wire.IMM_PROBE, MTU))
            for round_ in range(pool.finished, self.complete[pool.index]):
                self._deliver(pool, round_)
            if all(p.probed for link in self.links for p in link.pools):
                for epochs in self.epochs.values():
                    epochs.hear(control.Ready(epoch=self.epoch))
