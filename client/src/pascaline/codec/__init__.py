"""Codecs: arrays in, encodings out, and back. Tensors only: knows neither chunks' places nor links.

A codec's encodings combine by one op of the aggregator; its law, tested in tests/client, is that
decode(op(encode(x_1) .. encode(x_n))) equals sum(x_i), exactly or within the bound that it states.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pascaline.codec.base import (
    NOTHING,
    Array,
    Bytes,
    Carry,
    Codec,
    Floats,
    OneRound,
    Outcome,
    Place,
    Round,
    Rounds,
)
from pascaline.codec.dense import MAX_F32, SUM_F32, SUM_I32, Half
from pascaline.codec.feedback import ErrorFeedback
from pascaline.codec.fixed32 import Fixed32
from pascaline.codec.measure import CodecStats, Measure
from pascaline.codec.options import (
    NAMES,
    Lhc,
    Options,
    Plain,
    Sparse,
    Thc,
    Threshold,
    TopK,
    describe,
    in_words,
    resolve,
)
from pascaline.codec.sparse import SparseCodec


def for_array(dtype: np.dtype[Any], codec: str | Options, rank: int, world_size: int, seed: int = 0) -> Codec:
    """The codec for arrays of `dtype`: int32 is summed as it is, float32 by `codec`."""
    options = resolve(codec)
    return SUM_I32 if dtype == np.int32 else options.build(rank, world_size, seed)


__all__ = [
    "MAX_F32",
    "NAMES",
    "NOTHING",
    "SUM_F32",
    "SUM_I32",
    "Array",
    "Bytes",
    "Carry",
    "Codec",
    "CodecStats",
    "ErrorFeedback",
    "Fixed32",
    "Floats",
    "Half",
    "Lhc",
    "Measure",
    "OneRound",
    "Options",
    "Outcome",
    "Place",
    "Plain",
    "Round",
    "Rounds",
    "Sparse",
    "SparseCodec",
    "Thc",
    "Threshold",
    "TopK",
    "describe",
    "for_array",
    "in_words",
    "resolve",
]
