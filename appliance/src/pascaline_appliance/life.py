"""One life of a job: its ranks between the first Join and the last Left or Ended. Data and questions about it; what
happens to it is the registry's.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel

from pascaline_appliance.contract.control import Join
from pascaline_appliance.dataplane import JobCounters, PoolPlan, QueuePairEnd


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
    ENDING = "ending"
    """Told to all ranks; the lane still holds it."""


class MemberState(enum.Enum):
    """Where a rank stands."""

    JOINED = "joined"
    OFFERED = "offered"
    CONNECTING = "connecting"
    PROBING = "probing"
    READY = "ready"
    LEAVING = "leaving"
    LEFT = "left"


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


@dataclass(eq=False)
class Life:
    """One life of a job."""

    name: str
    restart_count: int
    world_size: int
    deadline: float
    """Monotonic seconds: of the barrier, then of connecting."""
    state: LifeState = LifeState.JOINING
    members: dict[int, Member] = field(default_factory=dict)
    handle: int | None = None
    """The data plane's number for it; None: not open, or gone."""
    epoch: int = 0
    mtu: int = 0
    pools: Sequence[PoolPlan] = ()
    ends: Sequence[Sequence[QueuePairEnd]] = ()
    """Our QP ends as [pool][rank]."""
    waiting: tuple[str, int, float] | None = None
    """What is waited for, rounds completed then, and since when (monotonic seconds)."""

    @property
    def joins(self) -> dict[int, Join]:
        """What each rank said."""
        return {rank: member.join for rank, member in self.members.items()}

    @property
    def pool_classes(self) -> list[str]:
        """Names of its pools, for sentences."""
        return [pool.pool_class for pool in self.pools]

    @property
    def complete(self) -> bool:
        """Whether all ranks have joined."""
        return len(self.members) == self.world_size

    def present(self) -> list[Member]:
        """Members that have not left."""
        return [member for member in self.members.values() if member.state is not MemberState.LEFT]

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
                {"pool": plan.pool_class, "window": plan.window, "chunk_bytes": plan.chunk_bytes}
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
