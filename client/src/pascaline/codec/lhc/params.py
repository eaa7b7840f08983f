"""Numbers of the codec lhc, to the bit as docs/lhc.md says: pure integers."""

from __future__ import annotations

from dataclasses import dataclass

from pascaline.errors import ConfigurationError

LANES = 32
"""Elements of a block, buckets of a row, bits of a word of a bitmap."""
TABLES = 3
PERMILLE = 1300
"""Buckets for 1000 elements of the union; below 1222 nothing long peels (docs/lhc.md)."""
CROWDED = 255
"""A bucket with so many elements is never peeled."""
MAX_ELEMS = 1 << 30
"""Of a chunk."""
MAX_ROWS = (1 << 27) // TABLES


@dataclass(frozen=True)
class Params:
    """What the ranks of a job agree on. Raises ConfigurationError."""

    seed: int
    permille: int = PERMILLE

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise ConfigurationError(f"a seed is a number of 64 bits, 0 to {2**64 - 1}, not {self.seed}")
        if not 100 <= self.permille <= 10000:
            raise ConfigurationError(
                f"lhc has 100 to 10000 buckets for 1000 elements, not {self.permille}: 1300 peels nearly always"
            )

    def rows(self, union: int) -> int:
        """Rows of each sub-table for so many elements in the union; at least one."""
        return max(1, -(-self.permille * union // (1000 * TABLES * LANES)))


def blocks(elems: int) -> int:
    """Of a chunk; also the words of its bitmaps."""
    return -(-elems // LANES)


def buckets(rows: int) -> int:
    """Of the three sub-tables together."""
    return TABLES * LANES * rows
