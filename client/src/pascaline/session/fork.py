"""What a forked child does with its parent's sessions: it neither uses nor holds them.

A DataLoader forks its workers. Were they to hold the descriptors, the appliance would not see the parent's
end; were they to run a destructor, it would destroy the parent's queue pairs. Touches descriptors of the
child only.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Held(Protocol):
    """Something with descriptors that belong to one process."""

    def descriptors(self) -> set[int]:
        """All of them."""
        ...


_open: weakref.WeakSet[Held] = weakref.WeakSet()
_forgotten: list[Held] = []
"""In a child: referenced for ever, so that no destructor runs there."""


def track(session: Held) -> None:
    """From now on a forked child forgets `session`."""
    _open.add(session)


def untrack(session: Held) -> None:
    """It holds nothing any more."""
    _open.discard(session)


def sessions() -> list[Held]:
    """All that are open in this process."""
    return list(_open)


def _forget() -> None:
    """Let the child's copies of all descriptors lead nowhere; their numbers stay taken, so no later file gets them."""
    _forgotten.extend(_open)
    _open.clear()
    held = set().union(*(session.descriptors() for session in _forgotten))
    if not held:
        return
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in held:
        os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_forget)
