"""What a session needs of whatever it is a member of: the appliance's job, or an emulated one.

`appliance` and `emulated` each are one; a session asks no further which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pascaline.errors import ConfigurationError, PascalineError
from pascaline.link import Link, LinkFault
from pascaline.reduce import Line

PLAN_MAX_CHARS = 128


@dataclass(frozen=True)
class Wishes:
    """What the caller asked for beyond who it is."""

    plan: str
    chunk_bytes: int | None
    window: int | None
    lanes: int | None
    timeout_s: float
    """For the join."""
    ops: tuple[str, ...]
    """Op windows from 1 up, alike on all ranks."""
    tables: dict[str, tuple[int, ...]]
    """Of the ops that look indices up."""

    def check(self) -> None:
        """Refuse what the contract would, before any device is opened."""
        if len(self.plan) > PLAN_MAX_CHARS:
            raise ConfigurationError(
                f"plan has {len(self.plan)} characters, with the codec: pass a digest, of at most {PLAN_MAX_CHARS}"
            )
        for name, wish in (
            ("chunk_bytes", self.chunk_bytes),
            ("window", self.window),
            ("lanes", self.lanes),
        ):
            if wish is not None and wish < 1:
                raise ConfigurationError(
                    f"{name} is {wish}: pass a positive number, or nothing for the appliance's choice"
                )


class Life(Protocol):
    """What can happen to a link while a job lasts; the progress thread asks, `end` is anybody's."""

    wake: Callable[[], None]
    """Ends the progress thread's sleep, once it has one."""
    silent: str
    """Who is waited for when nobody has said who, and what to look at."""

    def check(self) -> None:
        """Raise Halted when an epoch has ended, and the verdict when there is one."""
        ...

    def resume(self, ended: Any) -> None:
        """From a resumable end to the next epoch. Raises what ends the session."""
        ...

    def report(self, fault: LinkFault) -> None:
        """The link has failed: go on, or raise what ends the session."""
        ...

    def leave(self) -> None:
        """Everything that this worker wanted is here."""
        ...

    def drain(self) -> None:
        """The end: what has landed whole is a result, then nothing is."""
        ...

    def end(self, error: PascalineError) -> None:
        """The session is over; the first verdict stands."""
        ...


class Listener(Protocol):
    """Who hears of a membership's turns, from any thread."""

    def left(self) -> None:
        """The leave is confirmed."""
        ...

    def parted(self, error: PascalineError) -> None:
        """It is over, and nothing more will be heard; after `left` that is as it should be."""
        ...

    def waiting(self, ranks: Sequence[int], message: str) -> None:
        """A round waits for these."""
        ...


class Membership(Protocol):
    """One worker's place in a job: who it is from the start, and after `join` the link and what was negotiated."""

    rank: int
    world_size: int
    job: str
    classes: list[str]
    """Of the link's pools: "data" or "small"."""
    where: str
    """For messages: of whom this is a membership."""
    straggler_timeout_s: float
    leave_timeout_s: float

    @property
    def link(self) -> Link:
        """The progress thread's from `begin` on."""
        ...

    def join(self, wishes: Wishes) -> None:
        """Return when every rank is ready, or raise what ended the join with nothing left open."""
        ...

    def begin(self, lines: Sequence[Line]) -> Life:
        """Rounds may begin on these lines."""
        ...

    def listen(self, listener: Listener) -> None:
        """From now on `listener` hears."""
        ...

    def descriptors(self) -> set[int]:
        """That a forked child must not hold, besides the link's."""
        ...

    def hang_up(self) -> None:
        """The others hear that this worker has gone."""
        ...

    def release(self) -> None:
        """Give the device back; nothing uses the link any more."""
        ...

    def stats(self) -> dict[str, Any]:
        """What was negotiated."""
        ...
