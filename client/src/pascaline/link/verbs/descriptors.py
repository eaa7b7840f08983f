"""Which of this process's descriptors are whose: pyverbs shows none. Reads /proc/self/fd only."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

opening = threading.Lock()
"""Held while something opens descriptors and looks which are new: those of two sessions are never mixed up."""


def event_descriptors() -> set[int]:
    """Completion channels, and other RDMA event files."""
    return {number for number, target in _open() if target == "anon_inode:[infinibandevent]"}


def rdma_descriptors() -> set[int]:
    """Whatever keeps RDMA objects alive: a forked child must not hold it."""
    devices = {number for number, target in _open() if target.startswith("/dev/infiniband/")}
    return devices | event_descriptors()


def _open() -> list[tuple[int, str]]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append((int(link.name), str(link.readlink())))
    return found
