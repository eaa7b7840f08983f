"""Links: bytes only, between registered memory and the appliance. Knows neither tensors nor plans.

`verbs` is RoCEv2 through pyverbs and the only room that imports it. What every link offers stands here as
protocols, so that the story in `reduce` depends on no particular one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Result(NamedTuple):
    """A result has landed whole: the completion of the appliance's WRITE_WITH_IMM."""

    pool: int
    immediate: int
    length_bytes: int


class LinkFault(Exception):
    """A QP of this worker failed; the message says how. Turned into EpochEnded by the session."""


class Pool(Protocol):
    """One pool's QP and its registered memory. Slot s of both buffers serves rounds r with r mod window = s."""

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

    def close(self) -> None:
        """Flush and destroy everything. Afterwards nothing reads or writes the buffers."""
        ...


__all__ = ["Link", "LinkFault", "Pool", "Result"]
