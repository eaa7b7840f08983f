"""How a running life's epochs end (rule 7): resumed with new QPs, or delivered to whom it can be and then told. Plain
functions that never wait, called by the registry.

One promise: a round has one outcome on every live rank. So a lane that has halted never just ends: even when the job
cannot go on, every rank first says what it has, and who lacks a complete result is connected again to be given it, as
often as its path fails before the deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pascaline_appliance import exchange, sentences
from pascaline_appliance.config import Config
from pascaline_appliance.contract.control import Broken, Connected, Ended, Left, Ready, Resume
from pascaline_appliance.dataplane import DataPlane
from pascaline_appliance.errors import DataPlaneError, Refusal
from pascaline_appliance.life import Life, LifeState, Member, MemberState, Verdict
from pascaline_appliance.records import Event

log = logging.getLogger(__name__)

RESUMABLE = frozenset({"retry_exceeded", "stalled_message", "nak_received", "unreachable"})
"""Faults of a path. The others are disagreements, which a new epoch would only repeat."""


class Epochs:
    """Epochs of all running lives, from a life's first Offer on."""

    def __init__(self, config: Config, dataplane: DataPlane, clock: Callable[[], float]) -> None:
        self._config, self._dataplane, self._clock = config, dataplane, clock
        self._epoch = 0

    def next_number(self) -> int:
        """Increases for every job."""
        self._epoch += 1
        return self._epoch

    # ---- An epoch begins ----

    def offer(self, life: Life, ranks: set[int]) -> None:
        """New QPs, to these ranks."""
        for rank in sorted(ranks):
            member = life.members[rank]
            member.begin_epoch()
            member.worker.send(exchange.offer(self._config, life, rank))

    def connected(self, life: Life, event: Event) -> None:
        """One of our QPs to a rank is in RTS."""
        member = life.members[event.rank]
        member.connected.add(event.pool)
        if len(member.connected) == len(life.pools) and member.state is MemberState.CONNECTING:
            member.state = MemberState.PROBING
            member.worker.send(Connected())

    def probed(self, life: Life, event: Event) -> None:
        """A pool's probes have passed both ways."""
        life.members[event.rank].probed.add(event.pool)
        self.ready_when_probed(life)

    def ready_when_probed(self, life: Life) -> None:
        """Rounds may begin once every rank's probes have passed."""
        members = life.taking_part().values()
        if life.state is not LifeState.CONNECTING or life.handle is None:
            return
        if any(len(member.probed) < len(life.pools) for member in members):
            return
        life.state, life.ready_s = LifeState.READY, self._clock()
        self._dataplane.ready(life.handle)
        log.info("job %s is ready: %d ranks, epoch %d", life.name, life.world_size, life.epoch)
        for member in members:
            member.state = MemberState.READY
            member.worker.send(Ready(epoch=life.epoch))

    # ---- An epoch ends ----

    def broken(self, life: Life, rank: int, message: Broken) -> None:
        """A worker's own QP has failed. Most often the lane, or another rank, has said so already."""
        member = life.taking_part().get(rank)
        if life.handle is None or member is None or member.state is MemberState.HALTED:
            return
        member.broken = message.message
        self._dataplane.halt(life.handle, rank, "retry_exceeded")

    def halted(self, life: Life, event: Event) -> None:
        """The lane has halted the job: all ranks flush, drain and say what they have."""
        message = sentences.fault(event, life.joins, life.pool_classes, self._config.limits)
        reporter = life.members.get(event.rank)
        if reporter is not None and reporter.broken and event.fault == "retry_exceeded":
            message = sentences.broken(life.joins, event.rank, reporter.broken)
        life.fault = Verdict(event.fault, message, event.rank)
        if life.ready_s is None:  # no round has begun
            life.verdict = life.verdict or life.fault
            self.finish(life)
            return
        if event.fault not in RESUMABLE:
            life.verdict = life.verdict or life.fault
        if life.state is not LifeState.DELIVERING:  # else the end goes on, and its deadline stands
            self._set_deadline(life, event)
        life.drain_by = self._clock() + (life.deadline - self._clock()) / 2
        life.complete = list(event.complete[: len(life.pools)])
        life.state = LifeState.RESUMING
        log.warning("job %s, epoch %d has halted: %s", life.name, life.epoch, message)
        for member in life.taking_part().values():
            member.state = MemberState.HALTED
            member.worker.send(self._ended(life, life.fault, resumable=True))
        self._go_on(life)

    def _set_deadline(self, life: Life, event: Event) -> None:
        """A fault that comes before anything is complete after another one is the same to those who wait."""
        now = self._clock()
        again = life.state is LifeState.CONNECTING or (
            list(event.complete[: len(life.pools)]) == list(life.complete)
            and now - (life.ready_s or 0.0) < self._config.limits.deadline_s
            and life.halted_s > 0.0
        )
        if not again:
            life.halted_s = now
        life.deadline = life.halted_s + self._config.limits.resume_s

    def resume(self, life: Life, rank: int, member: Member, message: Resume) -> None:
        """A worker has flushed and drained. Refusal: what it says cannot be."""
        if member.state is MemberState.LATE:
            return
        received = exchange.received(life, member, message)
        if member.state is not MemberState.HALTED:
            raise Refusal("rank", f"rank {rank} resumes out of turn (it is {member.state.value})")
        member.received, member.state = received, MemberState.RESUMED
        self._go_on(life)

    def left(self, life: Life) -> None:
        """A rank takes part in nothing more."""
        if life.state is LifeState.RESUMING:
            self._go_on(life)
        else:
            self.ready_when_probed(life)

    def _go_on(self, life: Life) -> None:
        """Once everyone who takes part has drained: a new epoch, or what is owed and then the end."""
        members = life.taking_part()
        if any(member.state is MemberState.HALTED for member in members.values()) or life.handle is None:
            return
        owed = set(members) if life.verdict is None else life.lacking()
        if life.verdict is not None and not owed:
            self.finish(life, delivered=True)
            return
        epoch = self.next_number()
        try:
            life.ends = self._dataplane.resume(life.handle, epoch, len(life.pools), life.world_size)
        except DataPlaneError as error:
            log.error("job %s cannot be resumed: %s", life.name, error)
            life.verdict = life.verdict or life.fault
            self.finish(life)
            return
        life.epoch, life.state = epoch, LifeState.CONNECTING
        self.offer(life, owed)
        if life.verdict is not None:
            self._deliver(life, set(range(life.world_size)) - owed)
        else:
            self.ready_when_probed(life)  # at once, when all ranks are leaving

    # ---- A job ends ----

    def end(self, life: Life, verdict: Verdict) -> None:
        """The job cannot go on. Ranks that are gone have been marked so."""
        if life.state is LifeState.ENDING:
            return
        life.verdict = life.verdict or verdict
        if life.ready_s is None or not life.present():
            self.finish(life)
        elif life.state is LifeState.RESUMING:
            self._go_on(life)
        else:
            if life.state is LifeState.READY:
                life.deadline = self._clock() + self._config.limits.resume_s
            unreachable = set(range(life.world_size)) - set(life.taking_part())
            if life.state is LifeState.CONNECTING:  # who has everything need not be connected
                unreachable |= set(life.members) - life.lacking()
            self._deliver(life, unreachable)

    def _deliver(self, life: Life, unreachable: set[int]) -> None:
        """Nothing more is executed; the others get what they lack, which the event `ended` says."""
        life.state = LifeState.DELIVERING
        if life.handle is None:
            return
        try:
            self._dataplane.end(life.handle, unreachable)
        except DataPlaneError as error:
            log.error("results of job %s cannot be delivered: %s", life.name, error)
            self.finish(life)

    def delivered(self, life: Life, event: Event) -> None:
        """Nobody is owed a result any more."""
        life.complete = list(event.complete[: len(life.pools)])
        self.finish(life, delivered=True)

    def finish(self, life: Life, delivered: bool = False) -> None:
        """Tell the verdict to every rank that is there, and let go of the lane."""
        verdict = life.verdict or life.fault
        assert verdict is not None
        log.warning("job %s, epoch %d has ended: %s", life.name, life.epoch, verdict.message)
        for member in life.present():
            if delivered and member.state is MemberState.LEAVING:
                member.worker.finish(Left())
            else:
                member.worker.finish(self._ended(life, verdict, resumable=False))
        self.close(life)

    def close(self, life: Life) -> None:
        """The lane lets go of the life; the event `detached` answers."""
        life.state = LifeState.ENDING
        if life.handle is not None:
            self._dataplane.close(life.handle)

    def _ended(self, life: Life, why: Verdict, resumable: bool) -> Ended:
        return Ended(
            fault=why.fault,
            message=why.message,
            rank=why.rank,
            complete=list(life.complete),
            epoch=life.epoch,
            resumable=resumable,
        )

    # ---- Time ----

    def tick(self, life: Life) -> None:
        """Whoever has not drained when half of the time is over is late; when all of it is, everybody is told."""
        now = self._clock()
        if life.ready_s is None or life.state in (LifeState.READY, LifeState.ENDING):
            return
        if now > life.deadline:
            late = [
                rank for rank, member in life.taking_part().items() if len(member.probed) < len(life.pools)
            ]
            self._give_up(life, late)
            self.finish(life)
        elif life.state is LifeState.RESUMING and now > life.drain_by:
            late = [rank for rank, member in life.taking_part().items() if member.state is MemberState.HALTED]
            self._give_up(life, late)
            for rank in late:
                life.members[rank].state = MemberState.LATE
            self._go_on(life)

    def _give_up(self, life: Life, late: list[int]) -> None:
        if life.verdict is None and life.fault is not None:
            seconds = self._clock() - life.halted_s
            message = sentences.not_resumed(life.joins, late, seconds, life.fault.message)
            life.verdict = Verdict(life.fault.fault, message, late[0] if late else life.fault.rank)
