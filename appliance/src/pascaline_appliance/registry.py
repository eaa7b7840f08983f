"""All jobs: the join barrier, then each life from Offer to Left or Ended. A state machine of plain functions, called by
connections, by the data plane's events and by a clock; it never waits, and one job's trouble is not another's.

The sequence of one worker stands in contract/control.py. A name has at most one life that forms and one that runs: ranks
that have left may join again while others are still leaving.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from ipaddress import AddressValueError, IPv4Address

from pascaline_appliance import admission, sentences
from pascaline_appliance.config import Config
from pascaline_appliance.contract.control import (
    Connect,
    Connected,
    Ended,
    Join,
    Leave,
    Left,
    Offer,
    PoolOffer,
    Ready,
    Refused,
)
from pascaline_appliance.contract.control import Event as EventMessage
from pascaline_appliance.dataplane import DataPlane, Event, PeerEnd
from pascaline_appliance.errors import DataPlaneError, Refusal
from pascaline_appliance.life import Life, LifeState, Member, MemberState, Worker

log = logging.getLogger(__name__)

ECT0 = 2
"""ECN codepoint ECT(0) in the low bits of a traffic class."""
LANE = 0


class Registry:
    """Jobs by name; called by one thread."""

    def __init__(self, config: Config, dataplane: DataPlane, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._dataplane = dataplane
        self._clock = clock
        self._forming: dict[str, Life] = {}
        self._running: dict[str, Life] = {}
        """Lives that the data plane knows, until DETACHED."""
        self._epoch = 0
        self._stopping = False

    # ---- Joining ----

    def join(self, worker: Worker, join: Join) -> None:
        """A worker's first message. Refusal: it is the joining worker's alone, and already everyone's who must know."""
        self._check_join(join)
        self._replace_running(join)
        forming = self._forming_life(join)
        older = forming.members.get(join.rank)
        if older is not None:
            older.worker.finish(Refused(reason="replaced", message=f"{admission.who(join)} has joined again"))
        members = {**forming.members, join.rank: Member(worker, join)}
        try:
            admission.plan_pools(self._budget(), [m.join for m in members.values()], self._mtu(members))
        except Refusal as refusal:
            self._refuse(forming, refusal)
            raise
        forming.members = members
        log.info("job %s: %s has joined (%d of %d)", join.job, admission.who(join), len(members), join.world_size)
        if forming.complete:
            self._open_when_free(forming)

    def _check_join(self, join: Join) -> None:
        """What can be judged by the message alone."""
        if self._stopping:
            raise Refusal("stopping", "the appliance is being stopped")
        admission.check_versions(join.control_version, join.wire_version)
        if join.rank >= join.world_size:
            raise Refusal("rank", f"rank {join.rank} is not below world size {join.world_size}")
        try:
            address = IPv4Address(join.address)
        except AddressValueError as error:
            raise Refusal("address", f"{join.address!r} of rank {join.rank} is not an IPv4 address: {error}") from error
        if address == self._config.data.address.ip or address.is_multicast or address.is_unspecified:
            raise Refusal("address", f"rank {join.rank} cannot have the address {address}: it is not a worker's")
        names = self._forming.keys() | self._running.keys()
        if join.job not in names and len(names) >= self._config.limits.max_jobs:
            raise Refusal("budget", f"{len(names)} jobs are open, limits.max_jobs is {self._config.limits.max_jobs}")

    def _replace_running(self, join: Join) -> None:
        """A running life ends when one of its ranks, or a later restart of the run, joins; an earlier one is refused."""
        running = self._running.get(join.job)
        if running is None or running.state is LifeState.ENDING:
            return
        if join.restart_count < running.restart_count:
            raise self._outdated(join, running)
        if join.restart_count > running.restart_count or running.holds(join.rank):
            self._end(
                running,
                "rank_left",
                f"{admission.who(join)} has joined job {join.job} again (restart {join.restart_count}, this life is"
                f" restart {running.restart_count}): this life is over",
                join.rank,
            )

    def _forming_life(self, join: Join) -> Life:
        """The life that `join` belongs to; disagreement is everyone's refusal."""
        forming = self._forming.get(join.job)
        if forming is not None and join.restart_count < forming.restart_count:
            raise self._outdated(join, forming)
        if forming is not None and join.restart_count > forming.restart_count:
            message = f"restart {join.restart_count} of job {join.job} has begun, this is {forming.restart_count}"
            self._refuse(forming, Refusal("replaced", message))
            forming = None
        others = [] if forming is None else [m.join for r, m in forming.members.items() if r != join.rank]
        if forming is not None and others:
            try:
                admission.check_agreement(others[0], join)
            except Refusal as refusal:
                self._refuse(forming, refusal)
                raise
        if forming is None or not others:
            members = {} if forming is None else forming.members
            deadline = self._clock() + self._config.limits.join_timeout_s
            forming = Life(join.job, join.restart_count, join.world_size, deadline, members=members)
            self._forming[join.job] = forming
        return forming

    @staticmethod
    def _outdated(join: Join, life: Life) -> Refusal:
        return Refusal(
            "replaced",
            f"{admission.who(join)} is of restart {join.restart_count} of job {join.job}, restart"
            f" {life.restart_count} has already joined",
        )

    def _budget(self) -> admission.Budget:
        in_use = sum(admission.slot_bytes(life.pools) for life in self._running.values())
        return admission.budget_of(self._config, in_use)

    def _mtu(self, members: dict[int, Member]) -> int:
        """Path MTU of a job: the minimum over all ranks and the appliance."""
        return min(self._dataplane.roce_mtu, *(member.join.mtu for member in members.values()))

    def _refuse(self, life: Life, refusal: Refusal) -> None:
        """Before the data plane knows a life: one sentence to all who have joined."""
        self._forming.pop(life.name, None)
        log.warning("job %s is refused: %s", life.name, refusal)
        for member in life.members.values():
            member.worker.finish(Refused(reason=refusal.reason, message=str(refusal)))

    # ---- From the barrier to READY ----

    def _open_when_free(self, life: Life) -> None:
        """Open a complete life, now or when the older one's memory is free."""
        running = self._running.get(life.name)
        if running is None:
            self._open(life)
        elif running.state is not LifeState.ENDING and running.present():
            self._end(running, "rank_left", f"all ranks of a newer life of job {life.name} have joined", None)

    def _open(self, life: Life) -> None:
        """Everyone is there: reserve, and offer."""
        ranks = [life.members[rank].join for rank in range(life.world_size)]
        life.mtu = self._mtu(life.members)
        self._epoch += 1
        life.epoch = self._epoch
        try:
            life.pools = admission.plan_pools(self._budget(), ranks, life.mtu)
            life.handle, life.ends = self._dataplane.open_job(
                life.name, LANE, life.world_size, life.mtu, life.epoch, ranks[0].ops, life.pools
            )
        except Refusal as refusal:
            self._refuse(life, refusal)
            return
        except DataPlaneError as error:
            self._refuse(life, Refusal("budget", f"job {life.name} cannot be opened: {error}"))
            return
        del self._forming[life.name]
        self._running[life.name] = life
        life.state = LifeState.CONNECTING
        life.deadline = self._clock() + self._config.limits.join_timeout_s
        for rank, member in life.members.items():
            member.state = MemberState.OFFERED
            member.worker.send(self._offer(life, rank))

    def _offer(self, life: Life, rank: int) -> Offer:
        pools = [
            PoolOffer(
                pool=number,
                pool_class="data" if plan.pool_class == "data" else "small",
                lane=LANE,
                window=plan.window,
                chunk_bytes=plan.chunk_bytes,
                qpn=life.ends[number][rank].qpn,
                start_psn=life.ends[number][rank].start_psn,
                rkey=life.ends[number][rank].rkey,
                va_base=hex(life.ends[number][rank].va_base),
            )
            for number, plan in enumerate(life.pools)
        ]
        return Offer(
            epoch=life.epoch,
            address=str(self._config.data.address.ip),
            mtu=life.mtu,
            traffic_class=self._config.data.dscp << 2 | ECT0,
            pools=pools,
            straggler_timeout_s=self._config.limits.straggler_timeout_s,
            deadline_s=self._config.limits.deadline_s,
        )

    def connect(self, worker: Worker, message: Connect) -> None:
        """The worker's ends. Refusal: they do not fit what was offered."""
        life, rank, member = self._place(worker)
        if member.state is not MemberState.OFFERED or life.handle is None:
            raise Refusal("rank", f"rank {rank} sends connect out of turn (it is {member.state.value})")
        if [pool.pool for pool in message.pools] != list(range(len(life.pools))):
            raise Refusal("budget", f"rank {rank} connects {len(message.pools)} pools, offered were {len(life.pools)}")
        for pool, plan in zip(message.pools, life.pools, strict=True):
            if pool.result_bytes < plan.window * plan.chunk_bytes:
                raise Refusal(
                    "budget",
                    f"the result buffer of rank {rank} for pool {pool.pool} has {pool.result_bytes} bytes, window"
                    f" {plan.window} * chunk {plan.chunk_bytes} bytes are needed",
                )
        member.state = MemberState.CONNECTING
        for pool in message.pools:
            peer = PeerEnd(
                address=IPv4Address(member.join.address),
                qpn=pool.qpn,
                start_psn=pool.start_psn,
                result_rkey=pool.result_rkey,
                result_va=int(pool.result_va, 16),
            )
            self._dataplane.connect(life.handle, pool.pool, rank, peer)

    def _on_connected(self, life: Life, event: Event) -> None:
        member = life.members[event.rank]
        member.connected.add(event.pool)
        if len(member.connected) == len(life.pools):
            member.state = MemberState.PROBING
            member.worker.send(Connected())

    def _on_probed(self, life: Life, event: Event) -> None:
        life.members[event.rank].probed.add(event.pool)
        if life.state is not LifeState.CONNECTING or life.handle is None:
            return
        if not all(len(member.probed) == len(life.pools) for member in life.members.values()):
            return
        life.state = LifeState.READY
        self._dataplane.ready(life.handle)
        log.info("job %s is ready: %d ranks, epoch %d", life.name, life.world_size, life.epoch)
        for member in life.members.values():
            member.state = MemberState.READY
            member.worker.send(Ready(epoch=life.epoch))

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
            self._on_connected(life, event)
        elif event.kind == "probed":
            self._on_probed(life, event)
        elif event.kind == "waiting":
            self._on_waiting(life, event)
        elif event.kind == "left":
            self._on_left(life, event)
        elif event.kind == "fault":
            message = sentences.fault(event, life.joins, life.pool_classes, self._config.limits)
            self._end(life, event.fault, message, event.rank, list(event.complete[: len(life.pools)]))

    def _on_waiting(self, life: Life, event: Event) -> None:
        message = sentences.waiting(event, life.joins, life.pool_classes)
        rounds = self._rounds_completed(life)
        if life.waiting is None or life.waiting[1] != rounds:
            life.waiting = (message, rounds, self._clock() - self._config.limits.waiting_event_s)
        for member in life.present():
            member.worker.send(EventMessage(kind="waiting", ranks=list(event.ranks), message=message))

    def _rounds_completed(self, life: Life) -> int:
        counters = None if life.handle is None else self._dataplane.counters(life.handle)
        return -1 if counters is None else counters.rounds_completed

    def _on_rejected(self, life: Life, event: Event) -> None:
        """The lane does not know what the control plane believes: a bug of ours, so the job ends and says so."""
        attach = event.got == 1
        if attach:
            life.handle = None
        self._end(life, "invalid_request", f"the lane refuses a command (kind {event.got}) for pool {event.pool} of rank"
                  f" {event.rank}: this is a fault of the appliance, please report it", event.rank)
        if attach:
            self._on_gone(life)

    # ---- Ends ----

    def leave(self, worker: Worker, message: Leave) -> None:
        """A worker wants nothing more. Refusal: its numbers do not fit its pools."""
        life, rank, member = self._place(worker)
        if life.state is LifeState.READY and life.handle is not None:
            if len(message.received) != len(life.pools):
                raise Refusal("rank", f"rank {rank} leaves with {len(message.received)} pools, it has {len(life.pools)}")
            member.state = MemberState.LEAVING
            self._dataplane.leave(life.handle, rank, message.received)
            return
        worker.finish(Left())
        if life.state is LifeState.JOINING:
            self._forget(life, rank)
            return
        member.state = MemberState.LEFT
        self._end(life, "rank_left", f"{admission.who(member.join)} has left job {life.name} before it was ready", rank)

    def _on_left(self, life: Life, event: Event) -> None:
        member = life.members[event.rank]
        member.state = MemberState.LEFT
        member.worker.finish(Left())
        present = life.present()
        for other in present:
            message = f"{admission.who(member.join)} has left"
            other.worker.send(EventMessage(kind="rank_left", ranks=[event.rank], message=message))
        if not present:
            self._close(life)

    def lost(self, worker: Worker) -> None:
        """A connection is gone, for whatever reason; harmless when the worker is in no life any more."""
        try:
            life, rank, member = self._place(worker)
        except Refusal:
            return
        if life.state is LifeState.JOINING:
            self._forget(life, rank)
        elif life.state is not LifeState.ENDING and member.state not in (MemberState.LEAVING, MemberState.LEFT):
            message = sentences.connection_lost(life.joins, rank)
            member.state = MemberState.LEFT
            self._end(life, "connection_lost", message, rank)

    def _forget(self, life: Life, rank: int) -> None:
        """A rank that is gone before the barrier is complete; the others go on waiting."""
        del life.members[rank]
        if not life.members:
            self._forming.pop(life.name, None)

    def _end(
        self, life: Life, fault: str, message: str, rank: int | None, complete: list[int] | None = None
    ) -> None:
        """The epoch is over: every rank that is there is told at once, then the lane lets go of it."""
        log.warning("job %s, epoch %d has ended: %s", life.name, life.epoch, message)
        for member in life.present():
            member.worker.finish(Ended(fault=fault, message=message, rank=rank, complete=complete or []))
        self._close(life)

    def _close(self, life: Life) -> None:
        life.state = LifeState.ENDING
        if life.handle is not None:
            self._dataplane.close(life.handle)

    def _on_gone(self, life: Life) -> None:
        """The data plane has let go of a life; the name's next one may open."""
        self._running.pop(life.name, None)
        life.handle = None
        log.info("job %s, epoch %d is gone", life.name, life.epoch)
        forming = self._forming.get(life.name)
        if forming is not None and forming.complete:
            self._open(forming)

    def tick(self) -> None:
        """Time has passed: who waits too long is told so."""
        now = self._clock()
        limits = self._config.limits
        for life in list(self._forming.values()):
            if now > life.deadline and not life.complete:
                missing = sentences.missing(life.joins, life.world_size)
                text = f"{missing} of job {life.name} did not join within {limits.join_timeout_s:g} s: are they started?"
                self._refuse(life, Refusal("timeout", text))
        for life in list(self._running.values()):
            if life.state is LifeState.CONNECTING and now > life.deadline:
                self._refuse_connecting(life)
            elif life.state is LifeState.READY and life.waiting is not None:
                what, rounds, since = life.waiting
                if rounds != self._rounds_completed(life):
                    life.waiting = None
                elif now - since > limits.straggler_timeout_s:
                    self._end(life, "straggler", sentences.straggler(what, limits), None)

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
        self._close(life)

    def stop(self) -> None:
        """The appliance is being stopped: everyone is told."""
        self._stopping = True
        message = "the appliance is being stopped"
        for life in list(self._forming.values()):
            self._refuse(life, Refusal("stopping", message))
        for life in list(self._running.values()):
            if life.state is not LifeState.ENDING:
                self._end(life, "stopping", message, None)

    # ---- Questions ----

    def _place(self, worker: Worker) -> tuple[Life, int, Member]:
        for life in (*self._forming.values(), *self._running.values()):
            for rank, member in life.members.items():
                if member.worker is worker:
                    return life, rank, member
        raise Refusal("rank", "this connection is not part of a job")

    def refuse_member(self, worker: Worker, refusal: Refusal) -> None:
        """A worker broke the sequence: it is refused, and its job goes the way of a lost rank."""
        worker.finish(Refused(reason=refusal.reason, message=str(refusal)))
        self.lost(worker)

    @property
    def idle(self) -> bool:
        """Whether no life is left."""
        return not self._forming and not self._running

    def describe(self) -> list[dict[str, object]]:
        """What `status` says about jobs."""
        return [self._describe(life) for life in (*self._forming.values(), *self._running.values())]

    def _describe(self, life: Life) -> dict[str, object]:
        counters = None if life.handle is None else self._dataplane.counters(life.handle)
        return {
            "job": life.name,
            "state": life.state.value,
            "restart_count": life.restart_count,
            "epoch": life.epoch,
            "world_size": life.world_size,
            "mtu_bytes": life.mtu,
            "pools": [
                {"pool": plan.pool_class, "window": plan.window, "chunk_bytes": plan.chunk_bytes} for plan in life.pools
            ],
            "rounds_completed": 0 if counters is None else counters.rounds_completed,
            "contribution_bytes": 0 if counters is None else counters.contribution_bytes,
            "result_bytes": 0 if counters is None else counters.result_bytes,
            "ranks": [
                {"rank": rank, "host": m.join.host, "address": m.join.address, "state": m.state.value}
                for rank, m in sorted(life.members.items())
            ],
        }
