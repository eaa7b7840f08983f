"""Codecs whose encoding is the array itself: f32 sums, int32 sums, and the maximum that scales are made of.

Laws: int32 is exact modulo 2^32. f32 is a sum of IEEE additions in arrival order, identical on all ranks
because it is made once, within (n-1) * 2^-24 * sum|x_i| of the exact sum, and exact where every partial sum
is representable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dense:
    """Identity: values travel as they are."""

    op: str
    wire_dtype: np.dtype[Any]
    scaled: bool = False

    def encode(self, values: NDArray[Any], _maximum: np.float32, encoded: NDArray[Any]) -> None:
        """Encoded = values."""
        encoded[:] = values

    def decode(self, encoded: NDArray[Any], _maximum: np.float32, values: NDArray[Any]) -> None:
        """Values = encoded."""
        values[:] = encoded


SUM_F32 = Dense("sum_f32", np.dtype("<f4"))
SUM_I32 = Dense("sum_i32", np.dtype("<i4"))
MAX_F32 = Dense("max_f32", np.dtype("<f4"))
