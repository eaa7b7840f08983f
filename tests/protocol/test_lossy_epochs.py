"""Whole jobs over a bad network whose queue pairs die as well, at any point, and again while the job is being resumed.
One seed is one deterministic run.

It must end in exact sums, with every round returned once by every rank; or, where a rank has died for good, with all
rounds that were complete at every rank that lives, and no other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from . import ops, wire
from .rack import Event, Rack, results
from .test_lossy import MAX_STEPS, SEEDS, STEP_NS, Network, Nic, Port, make_nics, start_psn
from .wire import Packet
from .worker import PROBE_IMM

PATIENCE_STEPS = 600  # until a worker whose QP has died without a trace says so


@dataclass
class MortalNic(Nic):
    """A NIC whose QP may die, and a worker that begins rounds when all ranks are ready."""

    ready: bool = False
    connected: bool = False
    alive: bool = True

    def post(self) -> None:
        if self.ready:
            super().post()

    def pump(self, now_ns: int) -> list[Packet]:
        return super().pump(now_ns) if self.alive and self.connected else []

    def take(self, packet: Packet, now_ns: int) -> list[Packet]:
        return super().take(packet, now_ns) if self.alive and self.connected else []

    def connect(self, complete: int, now_ns: int) -> None:
        """A new QP: the probe first, then what is stored of the rounds that are void."""
        self.stream, self.cursor, self.timer_ns = [self.worker.probe()], 0, now_ns
        self.posted, self.ready, self.connected, self.alive = complete, False, True, True


class Control:
    """The control plane: it resumes a job that has halted, rank by rank, and ends one of which a rank has died."""

    def __init__(self, rack: Rack, rnd: random.Random, nics: list[MortalNic]) -> None:
        self._rack, self._random, self._nics = rack, rnd, nics
        self._probed: set[tuple[int, int]] = set()
        self._due: list[tuple[int, MortalNic | None]] = []  # at which step to connect whom; None: RESUME
        self._complete: tuple[int, ...] = (0, 0)
        self.faults = 0
        self.dead: set[int] = set()
        self.ended: Event | None = None

    def step(self, step: int) -> None:
        for event in self._rack.events():
            self._hear(event, step)
        while self._due and self._due[0][0] <= step and not self.ended:
            nic = self._due.pop(0)[1]
            if nic is None:
                self._resume(step)
            else:
                self._connect(nic)

    def _hear(self, event: Event, step: int) -> None:
        if event.kind == "probed":
            self._probed.add((event.pool, event.rank))
            if len(self._probed) == len(self._nics):
                for nic in self._nics:
                    nic.ready = True
        elif event.kind == "fault":
            assert not self.dead, "no fault after end"
            self.faults += 1
            self._complete = event.complete
            self._due = [(step + self._random.randrange(60), None)]
        elif event.kind == "ended":
            assert self.ended is None
            self.ended = event

    def _resume(self, step: int) -> None:
        """All workers have flushed and drained by now: what still lands after this, lands nowhere."""
        for nic in self._nics:
            nic.connected = nic.ready = False
            assert nic.worker.received <= self._complete[nic.worker.pool], "returned, and yet void"
        self._probed.clear()
        self._rack.resume()
        if self.dead:  # END has met a halted job, and was answered by its fault
            self._say_end()
        order = self._random.sample(self._nics, len(self._nics))
        delays = sorted(self._random.randrange(100) for _ in order)
        self._due = [(step + delay, nic) for delay, nic in zip(delays, order, strict=True)]

    def _connect(self, nic: MortalNic) -> None:
        if nic.worker.rank not in self.dead:
            assert self._rack.connect(nic.worker)
            nic.connect(self._complete[nic.worker.pool], self._rack.now_ns)

    def end(self, ranks: set[int], step: int) -> None:
        self.step(step)
        self.dead |= ranks
        self._say_end()

    def _say_end(self) -> None:
        assert self._rack.apply("END", self._rack.jobs[0], ranks=sum(1 << rank for rank in self.dead))


class Reaper:
    """Kills QPs of workers. Some are told at once, of others the lane finds out, or the worker after a while."""

    def __init__(self, rack: Rack, rnd: random.Random, nics: list[MortalNic], kills: int) -> None:
        self._rack, self._random, self._nics = rack, rnd, nics
        self._due = sorted(int(rnd.expovariate(1 / 150)) for _ in range(kills))
        self._told: list[tuple[int, int]] = []

    def step(self, step: int) -> None:
        while self._due and self._due[0] <= step:
            self._due.pop(0)
            nic = self._random.choice(self._nics)
            nic.alive = False
            self._told.append((step + self._random.choice([0, 0, 10, PATIENCE_STEPS]), nic.worker.rank))
        for due, rank in self._told:
            if due <= step and any(not n.alive and n.worker.rank == rank for n in self._nics):
                assert self._rack.apply("HALT", self._rack.jobs[0], rank=rank, fault=1)
        self._told = [(due, rank) for due, rank in self._told if due > step]


class Run:
    """One seed."""

    def __init__(self, make_rack, seed: int, *, kills: int) -> None:
        rnd = self.random = random.Random(seed)
        window, world = rnd.choice([1, 2, 4]), rnd.randint(2, 4)
        self.rack: Rack = make_rack(
            seed=seed,
            ops=ops.ALL_OPS,
            tables=ops.tables(world),
            connected=False,
            max_unacked=rnd.choice([1, 4, 16, 128]),
            pools=rnd.choice([1, 1, 2]),
            worker_psn=start_psn(rnd),
            appliance_psn=start_psn(rnd),
            world=world,
            window=window,
            packets=rnd.choice([1, 2, 4, 9]),
        )
        self.rack.build, self.rack.read = wire.quick_build, wire.quick_read
        self.rounds = 3 * window + 3
        self.nics = [
            MortalNic(n.worker, n.ops, n.messages, n.sums) for n in make_nics(self.rack, rnd, self.rounds)
        ]
        self.control = Control(self.rack, rnd, self.nics)
        self.reaper = Reaper(self.rack, rnd, self.nics, kills)
        self._to_lane, self._to_workers, self._port = Network(rnd), Network(rnd), Port(self.rack, rnd)
        self._learn_macs()

    def _learn_macs(self) -> None:
        """The first epoch begins; every later CONNECT is answered at once."""
        for nic in self.nics:
            assert self.rack.connect(nic.worker)
        self.rack.greet(self.rack.jobs[0])
        for nic in self.nics:
            nic.connect(0, self.rack.now_ns)

    def step(self, step: int) -> None:
        rack, now_ns = self.rack, self.rack.now_ns + STEP_NS
        rack.now_ns = now_ns
        self._port.step()
        self.reaper.step(step)
        self.control.step(step)
        for nic in self.nics:
            self._to_lane.send(nic.pump(now_ns), now_ns)
        out = rack.poll(*self._to_lane.arrived(now_ns), max_emits=self.random.choice([1, 3, 16, 256]))
        self._to_workers.send(out, now_ns)
        here = {(nic.worker.ip, nic.worker.qpn): nic for nic in self.nics}
        for packet in self._to_workers.arrived(now_ns):
            if nic := here.get((packet.dst, packet.qpn)):  # else it is of an earlier epoch
                self._to_lane.send(nic.take(packet, now_ns), now_ns)
        self.check(out)

    def check(self, out: list[Packet]) -> None:
        """Nothing goes to the dead, and every rank returns every round once, in order."""
        dead = {nic.worker.ip for nic in self.nics if nic.worker.rank in self.control.dead}
        assert not [p for p in results(out) if p.dst in dead], "to a rank that END has named"
        for nic in self.nics:
            returned = [imm for imm in nic.worker.completions if imm != PROBE_IMM]
            assert returned == [0xABC00000 + round for round in range(len(returned))]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_whose_queue_pairs_die_ends_in_exact_sums(make_rack, seed):
    run = Run(make_rack, seed, kills=1 + seed % 4)
    for step in range(MAX_STEPS):
        run.step(step)
        if all(nic.done() and nic.ready for nic in run.nics):
            break
    else:
        pytest.fail(f"seed {seed} does not end: {run.rack.drops()}")
    run.rack.release()
    stats = run.rack.jobs[0].stats
    assert stats.rounds_completed == run.rounds * len(run.rack.jobs[0].workers)
    assert stats.contribution_bytes >= sum(len(message) for nic in run.nics for message in nic.messages)


@pytest.mark.parametrize("seed", range(SEEDS // 3))
def test_a_job_of_which_ranks_die_ends_with_what_was_complete(make_rack, seed):
    run = Run(make_rack, seed, kills=seed % 3)
    ranks = len(run.rack.workers())
    dying = set(run.random.sample(range(ranks), run.random.randint(1, ranks - 1)))
    at = int(run.random.expovariate(1 / 150))
    for step in range(MAX_STEPS):
        run.step(step)
        if step == at:
            run.control.end(dying, step)
        if run.control.ended:
            break
    else:
        pytest.fail(f"seed {seed} does not end: {run.rack.drops()}")
    run.rack.release()
    cut_off = {nic.worker.rank for nic in run.nics if not nic.alive} | dying
    for nic in run.nics:
        complete = run.control.ended.complete[nic.worker.pool]
        assert nic.worker.received <= complete, "returned, and yet void"
        if nic.worker.rank not in cut_off:
            assert nic.worker.received == complete
