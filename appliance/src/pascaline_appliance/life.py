"""One life of a job: its ranks between the first Join and the last Left or Ended. Data and questions about it; what
happens to it is the registry's.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pydantic import BaseModel

from pascaline_appliance.contract.control import Join
from pascaline_appliance.records import JobCounters, PoolPlan, QueuePairEnd


class Worker(Protocol):
    """A connection as the registry sees it. Neither method blocks or fails."""

    def send(self, message: BaseModel) -> None:
        """Queue a message."""

    def finish(self, message: BaseModel) -> None:
        """Queue the last message and close the connection after it."""


class LifeState(enum.Enum):
    """Where a job's life stands."""

    JOINING = "joining"
    """Waiting for ranks, or, when complete, for the job's older life to be gone."""
    CONNECTING = "connecting"
    """Offered; QPs and probes are under way."""
    READY = "ready"
    RESUMING = "resuming"
    """The epoch has ended by a fault; ranks flush, drain and say what they have."""
    DELIVERING = "delivering"
    """The job is over; results of complete rounds still go to the ranks that lack them."""
    ENDING = "ending"
    """Told to all ranks; the lane still holds it."""


class MemberState(enum.Enum):
    """Where a rank stands."""

    JOINED = "joined"
    OFFERED = "offered"
    CONNECTING = "connecting"
    PROBING = "probing"
    READY = "ready"
    HALTED = "halted"
    """Told that the epoch has ended."""
    RESUMED = "resumed"
    """Has drained."""
    LATE = "late"
    """Has not drained in time: nothing more can be delivered to it."""
    LEAVING = "leaving"
    """Has everything that it wanted: takes part in no further epoch."""
    LEFT = "left"
    """Gone, by a leave or without."""


@dataclass(eq=False)
class Member:
    """One rank and its connection."""

    worker: Worker
    join: Join
    state: MemberState = MemberState.JOINED
    connected: set[int] = field(default_factory=set)
    """Pools whose QP is in RTS."""
    probed: set[int] = field(default_factory=set)
    """Pools whose probes have passed both ways."""
    received: Sequence[int] = ()
    """Per pool: rounds whose result it had when it resumed."""
    broken: str = ""
    """What it has said of its own queue pair's failure."""

    def begin_epoch(self) -> None:
        """It is offered new QPs."""
        self.state = MemberState.OFFERED
        self.connected.clear()
        self.probed.clear()
        self.broken = ""


class Verdict(NamedTuple):
    """Why an epoch, or the job, ends."""

    fault: str
    message: str
    rank: int | None


@dataclass
class Wait:
    """A pool's oldest round waits for live ranks. The lane says so again and again, as long as it does."""

    round: int
    since: float
    """Monotonic seconds, as the two below."""
    heard: float
    """When the lane last said so."""
    told: float = -math.inf
    """When all ranks last were told."""
    message: str = ""
    completed: int = 0
    """Rounds of all pools that were complete when the lane last said so."""


@dataclass(eq=False)
class Life:
    """One life of a job."""

    name: str
    restart_count: int
    world_size: int
    deadline: float
    """Monotonic seconds: of the barrier, then of connecting, then of a fault's outcome."""
    state: LifeState = LifeState.JOINING
    members: dict[int, Member] = field(default_factory=dict)
    handle: int | None = None
    """The data plane's number for it; None: not open, or gone."""
    epoch: int = 0
    mtu: int = 0
    pools: Sequence[PoolPlan] = ()
    ends: Sequence[Sequence[QueuePairEnd]] = ()
    """Our QP ends as [pool][rank]."""
    complete: Sequence[int] = ()
    """Per pool: rounds complete at the last epoch's end."""
    fault: Verdict | None = None
    """What ended the last epoch."""
    verdict: Verdict | None = None
    """Why the job cannot go on, once it cannot."""
    drain_by: float = 0.0
    """Until when ranks may flush and drain."""
    halted_s: float = 0.0
    """When the fault came that the deadline counts from."""
    ready_s: float | None = None
    """When an epoch was last ready; None: none ever was."""
    waits: dict[int, Wait] = field(default_factory=dict)
    """By pool: the round that waits for a rank."""

    @property
    def joins(self) -> dict[int, Join]:
        """What each rank said."""
        return {rank: member.join for rank, member in self.members.items()}

    @property
    def pool_classes(self) -> list[str]:
        """Names of its pools, for sentences."""
        several = len({pool.lane for pool in self.pools}) > 1
        return [f"{p.pool_class} (lane {p.lane})" if several else p.pool_class for p in self.pools]

    @property
    def all_here(self) -> bool:
        """Whether all ranks have joined."""
        return len(self.members) == self.world_size

    def present(self) -> list[Member]:
        """Members that have not left."""
        return [member for member in self.members.values() if member.state is not MemberState.LEFT]

    @property
    def over(self) -> bool:
        """Whether its end has begun."""
        return self.verdict is not None or self.state is LifeState.ENDING

    def taking_part(self) -> dict[int, Member]:
        """Ranks that an epoch is made of."""
        out = (MemberState.LATE, MemberState.LEAVING, MemberState.LEFT)
        return {rank: member for rank, member in self.members.items() if member.state not in out}

    def lacking(self) -> set[int]:
        """Of them: those that have said that they lack a complete result."""
        return {r for r, m in self.taking_part().items() if list(m.received) != list(self.complete)}

    def holds(self, rank: int) -> bool:
        """Whether `rank` is in it and has not left."""
        return rank in self.members and self.members[rank].state is not MemberState.LEFT

    def describe(self, counters: JobCounters | None) -> dict[str, object]:
        """What `status` says about it; `counters` are its row's, None while it has none."""
        return {
            "job": self.name,
            "state": self.state.value,
            "restart_count": self.restart_count,
            "epoch": self.epoch,
            "world_size": self.world_size,
            "mtu_bytes": self.mtu,
            "pools": [
                {
                    "pool": plan.pool_class,
                    "lane": plan.lane,
                    "window": plan.window,
                    "chunk_bytes": plan.chunk_bytes,
                }
                for plan in self.pools
            ],
            "rounds_completed": 0 if counters is None else counters.rounds_completed,
            "contribution_bytes": 0 if counters is None else counters.contribution_bytes,
            "result_bytes": 0 if counters is None else counters.result_bytes,
            "ranks": [
                {"rank": rank, "host": m.join.host, "address": m.join.address, "state": m.state.value}
                for rank, m in sorted(self.members.items())
            ],
        }
