"""Window and chunk that a job gets where nobody has asked for any: so that its slots lie within half of a core's L2.

Pure: numbers in, numbers out. A lane's cache holds besides them what arrives and what the job's tables take. A pool has
2W slots on each lane, and all lanes have one size, so the smallest L2 counts. `[limits]` and workers override.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pascaline_appliance.config import Limits

ASSUMED_L2_BYTES = 1 << 20
"""Where the machine does not say: what server cores have had since 2017, or more."""
DEFAULT_WINDOW = 4
LEAST_WINDOW = 2
"""With one round at a time the wire waits for every result."""
LEAST_CHUNK_BYTES = 16384
"""Four packets of 4 KiB: below, headers and rounds cost what a small cache would save (docs/performance.md)."""
MOST_CHUNK_BYTES = 131072
"""Above, a lane gains nothing (docs/performance.md), and a round's latency and the port's ring grow."""


@dataclass(frozen=True)
class Sizes:
    """Of a job's data pool."""

    window: int
    chunk_bytes: int
    source: Literal["limits", "l2", "assumed_l2"]
    """What they come from; assumed_l2: no core says what it has."""
    l2_bytes: int | None = None
    """That they were derived from."""

    @property
    def slot_bytes(self) -> int:
        """Of one job on one lane, small messages apart."""
        return 2 * self.window * self.chunk_bytes


def _power_of_two(at_most: int, least: int, most: int) -> int:
    """The largest one up to `at_most`, within bounds that are powers of two."""
    return min(max(1 << max(at_most, 1).bit_length() - 1, least), most)


def of(limits: Limits, l2_bytes: Sequence[int | None]) -> Sizes:
    """Sizes before any budget, from the limits and the L2 of each lane's core (bytes, None: unknown)."""
    window: int | None = limits.window
    chunk_bytes = limits.chunk_bytes
    if window is not None and chunk_bytes is not None:
        return Sizes(window, chunk_bytes, "limits")
    known = min((size for size in l2_bytes if size is not None), default=None)
    counted = known or ASSUMED_L2_BYTES
    half = counted // 2
    if window is None:
        window = DEFAULT_WINDOW
        if chunk_bytes is not None:
            window = _power_of_two(half // (2 * chunk_bytes), LEAST_WINDOW, DEFAULT_WINDOW)
    if chunk_bytes is None:
        chunk_bytes = _power_of_two(half // (2 * window), LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES)
    return Sizes(window, chunk_bytes, "l2" if known else "assumed_l2", counted)
