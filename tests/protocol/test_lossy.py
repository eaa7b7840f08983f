"""Whole jobs over a network that loses, repeats, delays and reorders, with a port that sometimes keeps what it sends.

One seed is one deterministic run, with any ops. It must end in exact sums on every rank, with every byte added once,
and the same PSN must carry the same bytes however often it is sent.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest

from . import ops, wire
from .library import lib
from .rack import RETRANSMIT_NS, Job, Rack, results
from .wire import PSN_MASK, Packet
from .worker import Array, Worker, distance

SEEDS = int(os.environ.get("PSC_LOSSY_SEEDS", "300"))
STEP_NS = 20_000
NIC_WINDOW = 32
NIC_TIMEOUT_NS = 3 * RETRANSMIT_NS // 2
MAX_STEPS = 20_000


@dataclass
class Nic:
    """A worker with go-back-N of its own, and a training process that follows the window rule."""

    worker: Worker
    ops: list[int]  # by round, as the next two
    messages: list[bytes]
    sums: list[Array]
    stream: list[Packet] = field(default_factory=list)  # requests that are not acknowledged
    cursor: int = 0
    posted: int = 0
    timer_ns: int = 0

    def post(self) -> None:
        """Rule 5: round r+W only after result r was received and drained."""
        while self.posted < min(len(self.messages), self.worker.received + self.worker.job.window):
            self.stream += self.worker.write(
                self.posted, self.messages[self.posted], op=self.ops[self.posted]
            )
            self.posted += 1

    def pump(self, now_ns: int) -> list[Packet]:
        """What the NIC sends now."""
        self.post()
        if self.cursor == 0:
            self.timer_ns = max(self.timer_ns, now_ns if not self.stream else self.timer_ns)
        if self.cursor > 0 and now_ns - self.timer_ns > NIC_TIMEOUT_NS:
            self.cursor, self.timer_ns = 0, now_ns
        end = min(len(self.stream), NIC_WINDOW)
        burst, self.cursor = self.stream[self.cursor : end], max(self.cursor, end)
        return burst

    def take(self, packet: Packet, now_ns: int) -> list[Packet]:
        """One packet from the appliance: an ACK for the requester, or a result for the responder."""
        if packet.opcode == wire.ACK:
            self._response(packet, now_ns)
            return []
        before = self.worker.received
        replies = self.worker.receive(packet)
        for round in range(before, self.worker.received):
            np.testing.assert_array_equal(self.worker.result(round, self.sums[round]), self.sums[round])
        return replies

    def _response(self, packet: Packet, now_ns: int) -> None:
        assert packet.syndrome in (0x1F, 0x60), "refused"
        if not self.stream:
            return
        acked = distance(packet.psn, self.stream[0].psn) + (packet.syndrome == 0x1F)
        if not 0 <= acked <= len(self.stream):
            return
        del self.stream[:acked]
        self.cursor = 0 if packet.syndrome == 0x60 else max(self.cursor - acked, 0)
        if acked:
            self.timer_ns = now_ns

    def done(self) -> bool:
        return self.worker.received == len(self.messages) and not self.stream


class Network:
    """Packets on their way. Loss and repetition are decided at the entrance, the delay may overtake."""

    def __init__(self, rnd: random.Random) -> None:
        self._random = rnd
        self._loss = rnd.choice([0, 0.01, 0.05, 0.15])
        self._repeat = rnd.choice([0, 0.01, 0.1])
        self._overtake = rnd.choice([0, 0, 0.02, 0.1])
        self._order = itertools.count()
        self._ways: list[tuple[int, int, Packet]] = []

    def send(self, packets: Iterable[Packet], now_ns: int) -> None:
        for packet in packets:
            for _ in range(1 + (self._random.random() < self._repeat)):
                if self._random.random() >= self._loss:
                    late = self._random.random() < self._overtake
                    delay_ns = STEP_NS + late * self._random.randrange(10 * STEP_NS)
                    heapq.heappush(self._ways, (now_ns + delay_ns, next(self._order), packet))

    def arrived(self, now_ns: int) -> list[Packet]:
        found = []
        while self._ways and self._ways[0][0] <= now_ns:
            found.append(heapq.heappop(self._ways)[2])
        return found


class Port:
    """The appliance's port: sometimes it keeps a payload for a while after it has left the lane."""

    def __init__(self, rack: Rack, rnd: random.Random) -> None:
        self._rack, self._random, self._stalls = rack, rnd, rnd.random() < 0.3

    def step(self) -> None:
        if self._random.random() < 0.02:
            self._rack.release()
            self._rack.held = [] if self._stalls else None


def start_psn(rnd: random.Random) -> int:
    """Often just before the wrap."""
    return rnd.choice([rnd.getrandbits(24), PSN_MASK - rnd.randrange(40)])


def draw_round(job: Job, rnd: random.Random) -> tuple[int, int]:
    """An op and a contribution's length: a unit, a slot full, or between. A third expand, if there is room."""
    longest = {op: ops.longest(op, job.chunk_bytes) // ops.UNIT[op] for op in ops.ALL_OPS}
    expanding = [op for op, units in longest.items() if ops.EXPANSION[op] > 1 and units > 0]
    plain = [lib.PSC_OP_SUM_I32, lib.PSC_OP_OR_U32]
    op = rnd.choice(rnd.choice([expanding, plain, list(ops.STREAMS)]))
    return op, ops.UNIT[op] * rnd.choice([1, rnd.randint(1, longest[op]), longest[op]])


def make_nics(rack: Rack, rnd: random.Random, rounds: int) -> list[Nic]:
    nics = []
    for job in rack.jobs:
        for workers in job.workers:
            drawn = [draw_round(job, rnd) for _ in range(rounds)]
            rng = np.random.default_rng(rnd.getrandbits(32))
            parts = [[ops.contribution(op, rng, length) for op, length in drawn] for _ in workers]
            sums = [
                ops.expected(op, [part[r] for part in parts], job.tables.get(op, b""))
                for r, (op, _) in enumerate(drawn)
            ]
            kinds = [op for op, _ in drawn]
            nics += [Nic(worker, kinds, part, sums) for worker, part in zip(workers, parts, strict=True)]
    return nics


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_over_a_bad_network_ends_in_exact_sums(make_rack, seed):
    rnd = random.Random(seed)
    shape = {"world": rnd.randint(1, 4), "window": rnd.choice([1, 2, 4]), "packets": rnd.choice([1, 2, 4, 9])}
    rack = make_rack(
        seed=seed,
        ops=ops.ALL_OPS,
        tables=ops.tables(shape["world"]),
        max_unacked=rnd.choice([1, 4, 16, 128]),
        pools=rnd.choice([1, 1, 2]),
        worker_psn=start_psn(rnd),
        appliance_psn=start_psn(rnd),
        **shape,
    )
    rack.build, rack.read = wire.quick_build, wire.quick_read
    rounds = 4 * shape["window"] + 3
    nics = make_nics(rack, rnd, rounds)
    by_owner = {id(nic.worker): nic for nic in nics}
    to_lane, to_workers, port = Network(rnd), Network(rnd), Port(rack, rnd)
    seen: dict[tuple[int, int], Packet] = {}
    for _ in range(MAX_STEPS):
        rack.now_ns += STEP_NS
        port.step()
        for nic in nics:
            to_lane.send(nic.pump(rack.now_ns), rack.now_ns)
        out = rack.poll(*to_lane.arrived(rack.now_ns), max_emits=rnd.choice([1, 3, 16, 256]))
        for packet in results(out):
            sent = seen.setdefault((packet.qpn, packet.psn), packet.but(ack_req=False))
            assert sent == packet.but(ack_req=False), "the same PSN carries the same bytes"
        to_workers.send(out, rack.now_ns)
        for packet in to_workers.arrived(rack.now_ns):
            to_lane.send(by_owner[id(rack.owner(packet))].take(packet, rack.now_ns), rack.now_ns)
        if all(nic.done() for nic in nics):
            break
    else:
        pytest.fail(f"seed {seed} does not end: {rack.drops()}")
    rack.release()
    assert [event for event in rack.events() if event.kind != "waiting"] == []
    stats = rack.jobs[0].stats
    assert stats.rounds_completed == rounds * len(rack.jobs[0].workers)
    assert stats.contribution_bytes == sum(len(message) for nic in nics for message in nic.messages)
    assert stats.result_bytes == sum(result.nbytes for nic in nics for result in nic.sums)
