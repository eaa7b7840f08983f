"""What the data plane is told and what it tells, as plain records: to talk about it, nobody needs its door."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address


@dataclass(frozen=True)
class PoolPlan:
    """One pool of a job: its class by name, W, bytes of a slot, and its lane."""

    pool_class: str
    window: int
    chunk_bytes: int
    lane: int = 0
    stream_bytes: int = 0
    """Beside the slots: where each rank's stream of sub-blocks stands, if an op of the job has some."""


@dataclass(frozen=True)
class QueuePairEnd:
    """The appliance's end of one QP."""

    qpn: int
    start_psn: int
    rkey: int
    va_base: int


@dataclass(frozen=True)
class PeerEnd:
    """The worker's end of one QP."""

    address: IPv4Address | IPv6Address
    qpn: int
    start_psn: int
    result_rkey: int
    result_va: int
    received: int = 0
    """Rounds of the pool whose result the worker has; not 0 only when it resumes."""


@dataclass(frozen=True)
class Event:
    """What a lane tells; which fields mean something is written at enum psc_ctl_event_kind."""

    kind: str
    job: int
    pool: int
    rank: int
    round: int
    ranks: tuple[int, ...]
    fault: str
    expected: int
    got: int
    complete: tuple[int, ...]


@dataclass(frozen=True)
class JobCounters:
    """The counters of one job's row."""

    contribution_bytes: int
    result_bytes: int
    rounds_completed: int
