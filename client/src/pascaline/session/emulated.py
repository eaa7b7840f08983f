"""Membership of a job without an appliance: the ranks of a process group exchange and add among themselves.

It has one life: whatever fails ends it, since there is nobody who could resume it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pascaline.errors import EpochEnded, JoinRefused, PascalineError
from pascaline.link import LinkFault, Result
from pascaline.reduce import Line
from pascaline.session.membership import Listener, Wishes

if TYPE_CHECKING:
    from pascaline.link.emulated.link import EmulatedLink

CHUNK_BYTES = 1 << 20
WINDOW = 4
LANES = 1
SMALL_BYTES = 4096
SMALL_WINDOW = 2
_GRACE_S = 10.0
"""So that a wait ends by the session's time-out before it ends by the process group's."""
STRAGGLER_TIMEOUT_S = 1800.0
"""As torch.distributed's."""


class OneLife:
    """The verdict, and the end."""

    def __init__(self, link: EmulatedLink, lines: Sequence[Line], left: Callable[[], None]) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.silent = (
            "the other ranks, of which one has not called all_reduce: see what each of them is doing"
        )
        self._link, self._lines, self._left = link, lines, left
        self._lock = threading.Lock()
        self._verdict: PascalineError | None = None

    def check(self) -> None:
        """Raise the verdict when there is one."""
        if self._verdict:
            raise self._verdict

    def resume(self, ended: Any) -> None:
        """Nobody can."""
        raise EpochEnded(str(ended), "local")

    def report(self, fault: LinkFault) -> None:
        """The process group has failed: that is the end."""
        raise EpochEnded(str(fault), "local") from fault

    def leave(self) -> None:
        """What this rank contributed is with the others."""
        self._left()

    def drain(self) -> None:
        """What has landed is a result."""
        for result in self._link.halt():
            self._arrived(result)

    def _arrived(self, result: Result) -> None:
        self._lines[result.pool].arrived(result)

    def end(self, error: PascalineError) -> None:
        """The first verdict stands."""
        with self._lock:
            self._verdict = self._verdict or error
        self.wake()


class EmulatedMembership:
    """One rank's in `process_group` (None: the default), whose ranks all join together."""

    where = "the emulated job"
    leave_timeout_s = 10.0
    link: EmulatedLink

    def __init__(self, process_group: Any, timeout_s: float | None) -> None:
        # Here, so that this package can be imported without PyTorch.
        from pascaline.link.emulated import link as emulated

        self.rank, self.world_size = emulated.ranks_of(process_group)
        self.job = "emulated"
        self.classes: list[str] = []
        self.straggler_timeout_s = STRAGGLER_TIMEOUT_S if timeout_s is None else timeout_s
        self._process_group = process_group
        self._listener: Listener | None = None

    def join(self, wishes: Wishes) -> None:
        """Compare what the ranks want, and open the pools."""
        from pascaline.link.emulated import link as emulated

        patience_s = max(wishes.timeout_s, self.straggler_timeout_s + _GRACE_S)
        self.link = emulated.EmulatedLink(self._process_group, patience_s)
        data = emulated.PoolSize(wishes.window or WINDOW, wishes.chunk_bytes or CHUNK_BYTES)
        try:
            self._agree(wishes, data)
            small = emulated.PoolSize(SMALL_WINDOW, SMALL_BYTES)
            lanes = wishes.lanes or LANES
            self.link.open(wishes.ops, wishes.tables, [data] * lanes + [small])
            self.classes[:] = ["data"] * lanes + ["small"]
        except BaseException:
            self.link.close()
            raise

    def _agree(self, wishes: Wishes, data: tuple[int, int]) -> None:
        """As an appliance compares what the ranks join with."""
        window, chunk_bytes = data
        mine: dict[str, Any] = {
            "plan": wishes.plan,
            "ops": list(wishes.ops),
            "tables": {op: list(table) for op, table in wishes.tables.items()},
            "chunk_bytes": chunk_bytes,
            "window": window,
            "lanes": wishes.lanes or LANES,
        }
        everyone = [json.loads(text) for text in self.link.gather(json.dumps(mine))]
        for rank, other in enumerate(everyone):
            for what, value in everyone[0].items():
                if other[what] != value:
                    raise JoinRefused(
                        f"rank 0 joins with {what} {value!r} and rank {rank} with {other[what]!r}: they must be alike",
                        what,
                    )

    def begin(self, lines: Sequence[Line]) -> OneLife:
        """Rounds may begin."""
        return OneLife(self.link, lines, self._left)

    def _left(self) -> None:
        if self._listener:
            self._listener.left()

    def listen(self, listener: Listener) -> None:
        """Nobody speaks but this rank itself."""
        self._listener = listener

    def descriptors(self) -> set[int]:
        """None but the link's: the process group is the user's."""
        return set()

    def hang_up(self) -> None:
        """The others see it when they next exchange."""

    def release(self) -> None:
        """There is no device."""

    def stats(self) -> dict[str, Any]:
        """No device, no packets."""
        return {"link": "emulated", "epoch": 1, "mtu_bytes": 0, "device": "", "address": ""}
