"""All jobs: each life from Join to Left or Ended. A state machine of plain functions, called by connections, by the
data plane's events and by a clock; it never waits, and one job's trouble is not another's. How epochs end and begin
again is epochs.py's.

The sequence of one worker stands in contract/control.py. A name has at most one life that forms, in the barrier, and
one that runs: ranks that have left may join again while others are still leaving.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from pascaline_appliance import admission, exchange, sentences, sizes
from pascaline_appliance.barrier import Barrier, outdated
from pascaline_appliance.caches import l2_bytes
from pascaline_appliance.config import Config
from pascaline_appliance.contract.control import Broken, Connect, Join, Leave, Left, Refused, Resume
from pascaline_appliance.contract.control import Event as EventMessage
from pascaline_appliance.dataplane import COMMAND_NAMES, DataPlane
from pascaline_appliance.epochs import Epochs
from pascaline_appliance.errors import DataPlaneError, Refusal
from pascaline_appliance.life import Life, LifeState, Member, MemberState, Verdict, Wait, Worker
from pascaline_appliance.records import Event, PoolPlan

log = logging.getLogger(__name__)

REPETITIONS_MISSED = 2.5
"""Periods without the lane's word, one of which a full queue of events may have eaten."""


class Registry:
    """Jobs by name; called by one thread."""

    def __init__(
        self, config: Config, dataplane: DataPlane, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._dataplane = dataplane
        self._clock = clock
        self._barrier = Barrier(config, clock)
        self._epochs = Epochs(config, dataplane, clock)
        self._running: dict[str, Life] = {}
        """Lives that the data plane knows, until DETACHED."""
        self._stopping = False
        self.sizes = sizes.of(config.limits, [l2_bytes(core) for core in config.lanes.cores])
        """Of a job's data pool where no worker asks for any and the budgets allow them."""

    # ---- From Join to Ready ----

    def join(self, worker: Worker, join: Join) -> None:
        """A worker's first message. Refusal: the joining worker's; other ranks that must know have been told."""
        if self._stopping:
            raise Refusal("stopping", "the appliance is being stopped")
        join = admission.check_join(join, self._config, self._barrier.lives.keys() | self._running.keys())
        self._replace_running(join)
        life = self._barrier.admit(worker, join, self._plan)
        if life is not None:
            self._open_when_free(life)

    def _replace_running(self, join: Join) -> None:
        """A running life ends when one of its ranks, or a later restart, joins; an earlier restart is refused."""
        running = self._running.get(join.job)
        if running is None or running.over:
            return
        if join.restart_count < running.restart_count:
            raise outdated(join, running)
        if join.restart_count > running.restart_count or running.holds(join.rank):
            message = (
                f"{admission.who(join)} has joined job {join.job} again (restart {join.restart_count}, this life is"
                f" restart {running.restart_count}): this life is over"
            )
            if running.holds(join.rank):
                running.members[join.rank].state = MemberState.LATE  # nobody reads there any more
            self._epochs.end(running, Verdict("rank_left", message, join.rank))

    def _plan(self, joins: Sequence[Join]) -> tuple[int, list[PoolPlan]]:
        """Path MTU and pools that these ranks would get. Refusal: they exceed a budget."""
        mtu = min(self._dataplane.roce_mtu, *(join.mtu for join in joins))
        # What ends will be free before this job opens: the older life of its own name too.
        others = [
            admission.usage_of(life.world_size, life.pools, life.mtu, self._dataplane.lanes)
            for life in self._running.values()
            if life.name != joins[0].job and life.state is not LifeState.ENDING
        ]
        return mtu, admission.plan_pools(
            self._config, self.sizes, self._dataplane.ring_packets, others, joins, mtu
        )

    def _open_when_free(self, life: Life) -> None:
        """Open a complete life, now or when the older one's memory is free."""
        running = self._running.get(life.name)
        if running is None:
            self._open(life)
        elif not running.over and running.present():
            message = f"all ranks of a newer life of job {life.name} have joined"
            self._epochs.end(running, Verdict("rank_left", message, None))

    def _open(self, life: Life) -> None:
        """Everyone is there: reserve, and offer."""
        joins = [life.members[rank].join for rank in range(life.world_size)]
        life.epoch = self._epochs.next_number()
        try:
            life.mtu, life.pools = self._plan(joins)
            life.handle, life.ends = self._dataplane.open_job(
                life.name,
                life.world_size,
                life.mtu,
                life.epoch,
                joins[0].ops,
                joins[0].tables,
                life.pools,
            )
        except Refusal as refusal:
            self._barrier.refuse(life, refusal)
            return
        except DataPlaneError as error:
            self._barrier.refuse(life, Refusal("budget", f"job {life.name} cannot be opened: {error}"))
            return
        del self._barrier.lives[life.name]
        self._running[life.name] = life
        life.state = LifeState.CONNECTING
        life.deadline = self._clock() + self._config.limits.join_timeout_s
        self._epochs.offer(life, set(life.members))

    def connect(self, worker: Worker, message: Connect) -> None:
        """The worker's ends. Refusal: they do not fit what was offered."""
        life, rank, member = self._place(worker)
        if member.state in (MemberState.HALTED, MemberState.LATE):
            return  # it answers the offer of an epoch that has ended meanwhile
        if member.state is not MemberState.OFFERED or life.handle is None:
            raise Refusal("rank", f"rank {rank} sends connect out of turn (it is {member.state.value})")
        peers = exchange.peers(life, member, message)
        member.state = MemberState.CONNECTING
        for pool, peer in enumerate(peers):
            self._dataplane.connect(life.handle, pool, rank, peer)

    # ---- While rounds run ----

    def on_event(self, event: Event) -> None:
        """An event of the data plane."""
        life = next((life for life in self._running.values() if life.handle == event.job), None)
        if life is None:
            return
        if event.kind == "detached":
            self._on_gone(life)
        elif event.kind == "rejected":
            self._on_rejected(life, event)
        elif life.state is LifeState.ENDING:
            return
        elif event.kind == "connected":
            self._epochs.connected(life, event)
        elif event.kind == "probed":
            self._epochs.probed(life, event)
        elif event.kind == "waiting":
            self._on_waiting(life, event)
        elif event.kind == "left":
            self._on_left(life, event)
        elif event.kind == "fault":
            self._epochs.halted(life, event)
        elif event.kind == "ended":
            self._epochs.delivered(life, event)

    def _on_waiting(self, life: Life, event: Event) -> None:
        """The lane repeats itself; a wait counts from its first word, and workers hear no more than the lane's pace."""
        now, pace_s = self._clock(), self._config.limits.waiting_event_s
        wait = life.waits.get(event.pool)
        if wait is None or wait.round != event.round:
            wait = life.waits[event.pool] = Wait(event.round, since=now - pace_s, heard=now)
        wait.heard, wait.completed = now, self._rounds_completed(life)
        wait.message = sentences.waiting(event, life.joins, life.pool_classes)
        if now - wait.told < 0.9 * pace_s:  # a repetition may come a little early by our clock
            return
        wait.told = now
        for member in life.present():
            member.worker.send(EventMessage(kind="waiting", ranks=list(event.ranks), message=wait.message))

    def _rounds_completed(self, life: Life) -> int:
        counters = None if life.handle is None else self._dataplane.counters(life.handle)
        return -1 if counters is None else counters.rounds_completed

    def _on_rejected(self, life: Life, event: Event) -> None:
        """The lane does not know what the control plane believes: a bug of ours, so the job ends and says so."""
        command = COMMAND_NAMES.get(event.got, str(event.got))
        if life.over and command != "attach":
            return  # a rank that has died meanwhile is not connected
        if command == "attach":
            life.handle = None
        message = (
            f"the lane refuses to {command} pool {event.pool} of rank {event.rank}: this is a fault of the"
            " appliance, please report it"
        )
        life.verdict = life.verdict or Verdict("invalid_request", message, event.rank)
        self._epochs.finish(life)
        if command == "attach":
            self._on_gone(life)

    # ---- Ends ----

    def broken(self, worker: Worker, message: Broken) -> None:
        """A worker's own QP has failed."""
        life, rank, _ = self._place(worker)
        self._epochs.broken(life, rank, message)

    def resume(self, worker: Worker, message: Resume) -> None:
        """A worker has flushed and drained after an epoch's end. Refusal: what it says cannot be."""
        life, rank, member = self._place(worker)
        self._epochs.resume(life, rank, member, message)

    def leave(self, worker: Worker, message: Leave) -> None:
        """A worker wants nothing more, in this epoch or another. Refusal: its numbers do not fit its pools."""
        life, rank, member = self._place(worker)
        if member.state in (MemberState.LEAVING, MemberState.LEFT) or life.state is LifeState.ENDING:
            return
        if life.ready_s is None:
            self._leave_early(life, rank, member)
            return
        if len(message.received) != len(life.pools) or life.handle is None:
            raise Refusal(
                "rank", f"rank {rank} leaves with {len(message.received)} pools, it has {len(life.pools)}"
            )
        member.state = MemberState.LEAVING
        self._dataplane.leave(life.handle, rank, message.received)
        self._epochs.left(life)

    def _leave_early(self, life: Life, rank: int, member: Member) -> None:
        member.worker.finish(Left())
        if life.state is LifeState.JOINING:
            self._barrier.forget(life, rank)
            return
        member.state = MemberState.LEFT
        message = f"{admission.who(member.join)} has left job {life.name} before it was ready"
        self._epochs.end(life, Verdict("rank_left", message, rank))

    def _on_left(self, life: Life, event: Event) -> None:
        member = life.members[event.rank]
        member.state = MemberState.LEFT
        member.worker.finish(Left())
        present = life.present()
        for other in present:
            message = f"{admission.who(member.join)} has left"
            other.worker.send(EventMessage(kind="rank_left", ranks=[event.rank], message=message))
        if not present:
            self._epochs.close(life)

    def lost(self, worker: Worker) -> None:
        """A connection is gone, for whatever reason; harmless when the worker is in no life any more."""
        try:
            life, rank, member = self._place(worker)
        except Refusal:
            return
        if life.state is LifeState.JOINING:
            self._barrier.forget(life, rank)
        elif member.state not in (MemberState.LEAVING, MemberState.LEFT):
            member.state = MemberState.LEFT
            verdict = Verdict("connection_lost", sentences.connection_lost(life.joins, rank), rank)
            self._epochs.end(life, verdict)

    def _on_gone(self, life: Life) -> None:
        """The data plane has let go of a life; the name's next one may open."""
        self._running.pop(life.name, None)
        life.handle = None
        log.info("job %s, epoch %d is gone", life.name, life.epoch)
        forming = self._barrier.lives.get(life.name)
        if forming is not None and forming.all_here:
            self._open(forming)

    def tick(self) -> None:
        """Time has passed: who waits too long is told so."""
        now = self._clock()
        self._barrier.tick()
        for life in list(self._running.values()):
            self._epochs.tick(life)
            if life.state is LifeState.CONNECTING and life.ready_s is None and now > life.deadline:
                self._refuse_connecting(life)
            elif life.state is LifeState.READY:
                self._watch_waits(life, now)

    def _watch_waits(self, life: Life, now: float) -> None:
        """A wait is over when some round has completed since and the lane does not repeat it; else it has its limit."""
        limits, completed = self._config.limits, self._rounds_completed(life)
        for pool, wait in list(life.waits.items()):
            if completed != wait.completed and now - wait.heard > REPETITIONS_MISSED * limits.waiting_event_s:
                del life.waits[pool]
            elif now - wait.since > limits.straggler_timeout_s and not life.over:
                verdict = Verdict("straggler", sentences.straggler(wait.message, limits), None)
                self._epochs.end(life, verdict)

    def _refuse_connecting(self, life: Life) -> None:
        """Connecting or probing takes too long."""
        late = [admission.who(m.join) for m in life.members.values() if len(m.probed) < len(life.pools)]
        message = (
            f"{', '.join(late)} of job {life.name} did not connect and probe within"
            f" {self._config.limits.join_timeout_s:g} s: a probe is one packet of {life.mtu} bytes, check the MTU"
        )
        log.warning("job %s is refused: %s", life.name, message)
        for member in life.present():
            member.worker.finish(Refused(reason="timeout", message=message))
        self._epochs.close(life)

    def stop(self) -> None:
        """The appliance is being stopped: everyone is told."""
        self._stopping = True
        message = "the appliance is being stopped"
        for life in list(self._barrier.lives.values()):
            self._barrier.refuse(life, Refusal("stopping", message))
        for life in list(self._running.values()):
            self._epochs.end(life, Verdict("stopping", message, None))

    def abandon(self) -> None:
        """What could not be delivered until now is not."""
        for life in list(self._running.values()):
            if life.state is not LifeState.ENDING:
                self._epochs.finish(life)

    # ---- Questions ----

    def _place(self, worker: Worker) -> tuple[Life, int, Member]:
        for life in (*self._barrier.lives.values(), *self._running.values()):
            for rank, member in life.members.items():
                if member.worker is worker:
                    return life, rank, member
        raise Refusal("rank", "this connection is not part of a job")

    def refuse_member(self, worker: Worker, refusal: Refusal) -> None:
        """A worker broke the sequence: it is refused, and its job goes the way of a lost rank."""
        worker.finish(Refused(reason=refusal.reason, message=str(refusal)))
        self.lost(worker)

    @property
    def told(self) -> bool:
        """Whether every life's end has been told."""
        return all(life.state is LifeState.ENDING for life in self._running.values())

    @property
    def idle(self) -> bool:
        """Whether no life is left."""
        return not self._barrier.lives and not self._running

    def slot_bytes(self, lane: int) -> int:
        """Bytes of slots that open jobs have on a lane, as their budget counts them."""
        return sum(
            admission.usage_of(life.world_size, life.pools, life.mtu, self._dataplane.lanes)[lane].slot_bytes
            for life in self._running.values()
        )

    def describe(self) -> list[dict[str, object]]:
        """What `status` says about jobs."""
        return [
            life.describe(None if life.handle is None else self._dataplane.counters(life.handle))
            for life in (*self._barrier.lives.values(), *self._running.values())
        ]
