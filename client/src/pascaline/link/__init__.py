"""Links: bytes only, between registered memory and the appliance. Knows neither tensors nor plans.

`verbs` is RoCEv2 through pyverbs and the only room that imports it; `emulated` stands in for an appliance over a
process group. What every link offers stands here as protocols, so that the story in `reduce` depends on no
particular one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True)
class PoolSpec:
    """What the appliance has built for this worker, in one epoch."""

    index: int
    window: int
    chunk_bytes: int
    qpn: int
    start_psn: int
    rkey: int
    va_base: int
    address: str
    """IP address of the appliance's port for it."""


@dataclass(frozen=True)
class PoolEnd:
    """The worker's end of one pool's queue pair, for the appliance to connect to."""

    index: int
    qpn: int
    start_psn: int
    result_rkey: int
    result_va: int
    result_bytes: int


class Result(NamedTuple):
    """A result has landed whole: the completion of the appliance's WRITE_WITH_IMM."""

    pool: int
    immediate: int
    length_bytes: int


class LinkFault(Exception):
    """A QP of this worker failed; the message says how. The session tells the appliance, which ends the epoch."""


class Pool(Protocol):
    """One pool's QP and its registered memory. Slot s of both buffers serves rounds r with r mod window = s.

    The memory stays over epochs, the QP and `va_base` do not.
    """

    index: int
    window: int
    chunk_bytes: int
    va_base: int

    @property
    def contributions(self) -> Sequence[memoryview]:
        """What this worker writes from."""
        ...

    @property
    def results(self) -> Sequence[memoryview]:
        """What the appliance writes to."""
        ...

    def can_write(self) -> bool:
        """Whether the send queue has room."""
        ...

    def write(self, slot: int, length_bytes: int, remote_address: int, immediate: int) -> None:
        """RDMA WRITE_WITH_IMM of the first `length_bytes` bytes of a contribution slot."""
        ...

    def post_receive(self) -> None:
        """One more result may come."""
        ...


class Link(Protocol):
    """All pools of one worker, with one completion queue and the descriptor that becomes readable on completions."""

    completion_fd: int

    @property
    def pools(self) -> Sequence[Pool]:
        """By number."""
        ...

    def completions(self) -> list[Result]:
        """Results that have landed since the last call, in order per pool. Raises LinkFault."""
        ...

    def halt(self) -> list[Result]:
        """End the epoch. Returns results that had landed; no other will."""
        ...

    def close(self) -> None:
        """Halt, if that is not done, and give the memory back. Afterwards nothing reads or writes the buffers."""
        ...


class QueuePairs(Link, Protocol):
    """A link that an appliance connects to: its queue pairs end with an epoch (ERR, flushed, destroyed) and new ones
    follow on the same buffers.
    """

    def renew(self, specs: Sequence[PoolSpec]) -> None:
        """New queue pairs on the same buffers, after `halt`."""
        ...

    def ends(self) -> list[PoolEnd]:
        """What the appliance must know."""
        ...

    def receive_from(self, mtu_bytes: int, traffic_class: int) -> None:
        """All queue pairs to RTR, their receives posted. Raises ApplianceUnreachable."""
        ...

    def send(self, deadline_s: float) -> None:
        """All queue pairs to RTS; their retries end well before `deadline_s`."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Sleep until completions may have come, without the GIL."""
        ...


__all__ = ["Link", "LinkFault", "Pool", "PoolEnd", "PoolSpec", "QueuePairs", "Result"]
