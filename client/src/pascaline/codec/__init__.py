"""Codecs: arrays in, encodings out, and back. Tensors only: knows neither chunks' places nor links.

A codec's encodings combine by one op of the aggregator; its law, tested in tests/client, is that
decode(op(encode(x_1) .. encode(x_n))) equals sum(x_i), exactly or within the bound that it states.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.dense import MAX_F32, SUM_F32, SUM_I32
from pascaline.codec.fixed32 import Fixed32
from pascaline.errors import ConfigurationError

Array = NDArray[Any]
FLOAT_CODECS = ("f32", "fixed32")


class Codec(Protocol):
    """Encode and decode of one chunk. `values`, `encoded`: (elems,), 4-byte elements, little-endian on the wire."""

    @property
    def op(self) -> str:
        """What the aggregator does to these encodings: a key of contract.wire.OPS."""
        ...

    @property
    def wire_dtype(self) -> np.dtype[Any]:
        """Of `encoded`."""
        ...

    @property
    def scaled(self) -> bool:
        """Whether encode and decode need the maximum of |x| over all ranks' chunks."""
        ...

    def encode(self, values: Array, maximum: np.float32, encoded: Array) -> None:
        """Write the encoding of `values` to `encoded`, of the same length."""
        ...

    def decode(self, encoded: Array, maximum: np.float32, values: Array) -> None:
        """Write what the combined `encoded` stands for to `values`."""
        ...


def for_array(dtype: np.dtype[Any], name: str, world_size: int) -> Codec:
    """The codec for arrays of `dtype`: int32 is summed as it is, float32 by the codec called `name`."""
    check_name(name)
    if dtype == np.int32:
        return SUM_I32
    return Fixed32(world_size) if name == "fixed32" else SUM_F32


def check_name(name: str) -> None:
    """Refuse a codec that does not exist."""
    if name not in FLOAT_CODECS:
        raise ConfigurationError(f"there is no codec {name!r}: choose one of {', '.join(FLOAT_CODECS)}")


__all__ = [
    "FLOAT_CODECS",
    "MAX_F32",
    "SUM_F32",
    "SUM_I32",
    "Array",
    "Codec",
    "Fixed32",
    "check_name",
    "for_array",
]
