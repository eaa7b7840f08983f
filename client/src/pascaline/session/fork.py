"""What a forked child does with its parent's sessions: it neither uses nor holds them.

A DataLoader forks its workers. Were they to hold the descriptors, the appliance would not see the parent's
end; were they to run a destructor, it would destroy the parent's queue pairs. Touches descriptors of the
child only.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Protocol


class Held(Protocol):
    """Something with descriptors that belong to one process."""

    def descriptors(self) -> set[int]:
        """All of them."""
        ...


_Mark = tuple[int, int, str]
"""What a descriptor stands for: device, inode and, since anonymous inodes are one for all, its name."""

_open: weakref.WeakKeyDictionary[Held, dict[int, _Mark]] = weakref.WeakKeyDictionary()
"""The marks of their descriptors: after a fault a number may be a stranger's."""
_forgotten: list[Held] = []
"""In a child: referenced for ever, so that no destructor runs there."""


def track(session: Held) -> None:
    """From now on a forked child forgets `session`."""
    _open[session] = {number: mark for number in session.descriptors() if (mark := _mark(number))}


def untrack(session: Held) -> None:
    """It holds nothing any more."""
    _open.pop(session, None)


def sessions() -> list[Held]:
    """All that are open in this process."""
    return list(_open)


def _mark(number: int) -> _Mark | None:
    try:
        status = os.fstat(number)
        return status.st_dev, status.st_ino, str(Path(f"/proc/self/fd/{number}").readlink())
    except OSError:
        return None


def _forget() -> None:
    """Let the child's copies of all descriptors lead nowhere; their numbers stay taken, so no later file gets them."""
    held = {
        number
        for session, marks in _open.items()
        for number in session.descriptors()
        if number in marks and _mark(number) == marks[number]
    }
    _forgotten.extend(_open)
    _open.clear()
    if not held:
        return
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in held:
        os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_forget)
