"""What the ranks of a job agree on about thc (docs/thc.md, "Numbers of a job"), and what follows from it.

Pure numbers: no tensor passes here. A `Params` that exists is one that cannot overflow the aggregator.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pascaline.errors import ConfigurationError

BLOCK = 1024
"""Coordinates of a whole block: what is rotated together, and what one scale is for."""
MIN_NORM = 2.0**-100
"""A smaller norm counts as 0, so that its inverse times the largest kappa is finite in float32."""

Norm = Literal["l2", "max"]
ScalePer = Literal["block", "tensor"]
Rounding = Literal["stratified", "independent", "shared"]
_MAX_SUM = {8: 255, 16: 65535}


@dataclass(frozen=True)
class Params:
    """One setting of the machine, alike on all ranks; the names are those of docs/thc.md.

    `t` and `debias` are rounded to float32 here, so that equal Params mean equal bits. Raises ConfigurationError.
    """

    bits: int
    table: tuple[int, ...]
    t: float
    n: int
    seed: int
    norm: Norm = "l2"
    rotate: bool = True
    scale_per: ScalePer = "block"
    rounding: Rounding = "stratified"
    fresh_rotation: bool = True
    debias: float = 1.0

    def __post_init__(self) -> None:
        for name in ("t", "debias"):
            object.__setattr__(self, name, float(np.float32(getattr(self, name))))
        object.__setattr__(self, "table", tuple(int(value) for value in self.table))
        self._check_choices()
        self._check_table()
        if not 1 <= self.n <= 65535:
            raise ConfigurationError(f"thc adds 1 to 65535 ranks, not {self.n}")
        if not 0 <= self.seed < 2**64:
            raise ConfigurationError(f"a seed is a number of 64 bits, 0 to {2**64 - 1}, not {self.seed}")
        if self.g * self.n > (most := _MAX_SUM[16]):
            raise ConfigurationError(
                f"g = {self.g} times {self.n} ranks is {self.g * self.n}, above the {most} that a u16 sum holds: "
                f"choose a table with g of at most {most // self.n}"
            )

    def _check_choices(self) -> None:
        choices: tuple[tuple[str, object, tuple[object, ...]], ...] = (
            ("bits", self.bits, (2, 3, 4, 8)),
            ("norm", self.norm, ("l2", "max")),
            ("scale_per", self.scale_per, ("block", "tensor")),
            ("rounding", self.rounding, ("stratified", "independent", "shared")),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise ConfigurationError(
                    f"thc's {name} is one of {', '.join(map(str, allowed))}, not {value!r}"
                )
        for name, number in (("t", self.t), ("debias", self.debias)):
            if not (math.isfinite(number) and number > 0):
                raise ConfigurationError(f"thc's {name} is a finite number above 0, not {number}")

    def _check_table(self) -> None:
        if len(self.table) != 2**self.bits:
            raise ConfigurationError(
                f"a table for {self.bits} bits has {2**self.bits} entries, this one has {len(self.table)}"
            )
        if any(a > b for a, b in zip(self.table, self.table[1:], strict=False)):
            raise ConfigurationError(f"a table must not fall, this one does: {list(self.table)}")
        if self.table[0] != 0 or not 1 <= self.table[-1] <= 255:
            raise ConfigurationError(
                f"a table goes from 0 to a g of 1 to 255, this one from {self.table[0]} to {self.table[-1]}"
            )

    @property
    def g(self) -> int:
        """The table's last entry: steps in the range of a coordinate."""
        return self.table[-1]

    @property
    def wire_bits(self) -> int:
        """Bits that an index occupies: 3 rides in 4."""
        return 4 if self.bits == 3 else self.bits

    @property
    def wire_table(self) -> tuple[int, ...]:
        """The aggregator's table, one entry for each value of `wire_bits`; what no index reaches is g."""
        return (*self.table, *(self.g,) * (2**self.wire_bits - len(self.table)))

    @property
    def sum_bits(self) -> int:
        """Width of an element of the sum: 8 where g * n fits (and no index is as wide), else 16."""
        return 8 if self.g * self.n <= _MAX_SUM[8] and self.bits != 8 else 16

    @property
    def op(self) -> str:
        """The aggregator's op."""
        return f"lut{self.wire_bits}_u{self.sum_bits}"

    @property
    def unit(self) -> int:
        """Coordinates in 64 bytes of the wire."""
        return 64 * 8 // self.wire_bits

    @property
    def s_pos(self) -> np.float32:
        """Steps per unit of a coordinate."""
        return np.float32(self.g / (2 * self.t))

    @property
    def half_inc(self) -> np.float32:
        """Half a step, in units of a coordinate."""
        return np.float32(self.t / self.g)

    @functools.cached_property
    def cells(self) -> tuple[int, ...]:
        """K: for each integer i in [0, g) the last index whose table value is at most i; it is below the next one's."""
        return tuple(max(k for k, value in enumerate(self.table) if value <= i) for i in range(self.g))

    def blocks(self, elems: int) -> int:
        """Blocks of a chunk or tensor."""
        return -(-elems // BLOCK)

    def coordinates(self, elems: int) -> int:
        """Coordinates of a chunk or tensor: whole blocks, and a last of a power of two that fills its wire bytes."""
        rest = elems % BLOCK
        return elems - rest + (max(self.unit, 1 << (rest - 1).bit_length()) if rest else 0)

    def packed_bytes(self, elems: int) -> int:
        """Bytes of a chunk's encoding."""
        return self.coordinates(elems) * self.wire_bits // 8

    def kappa(self, tensor_coordinates: int, size: int) -> np.float32:
        """What makes coordinates of one scale per tensor as large as those of one scale per block, on average."""
        if self.scale_per == "block" or not self.rotate:
            return np.float32(1)
        return np.float32(math.sqrt(tensor_coordinates / size))
