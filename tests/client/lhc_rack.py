"""What lhc's tests and numerics share: the dense sum, and supports to draw from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pascaline import codec as codecs
from pascaline.codec.lhc import LANES, Hash

from .lockstep import reduce_chunk

Floats = NDArray[np.float32]
Support = NDArray[np.bool_]


def dense(contributions: Sequence[Floats]) -> Floats:
    """The dense fixed32 sum."""
    codec = codecs.Fixed32(len(contributions))
    return reduce_chunk([codec] * len(contributions), contributions).values[0]


def inexact(got: Floats, wanted: Floats) -> int:
    """Elements that differ in a bit."""
    return int(np.count_nonzero(got.view(np.uint32) != wanted.view(np.uint32)))


# ---- Supports: which elements are not 0, for each rank ----


def independent(rng: np.random.Generator, elems: int, share: float, ranks: int) -> list[Support]:
    """Each rank's own, so that the union has about `share`."""
    own = 1 - (1 - share) ** (1 / ranks)
    return [rng.random(elems) < own for _ in range(ranks)]


def identical(rng: np.random.Generator, elems: int, share: float, ranks: int) -> list[Support]:
    """One for all."""
    return [rng.random(elems) < share] * ranks


def shared(rng: np.random.Generator, elems: int, share: float, ranks: int) -> list[Support]:
    """Four fifths of each rank's are everybody's."""
    common = rng.random(elems) < 0.8 * share
    return [common | one for one in independent(rng, elems, 0.2 * share, ranks)]


def rows(rng: np.random.Generator, elems: int, share: float, ranks: int) -> list[Support]:
    """Whole rows of 64, as embeddings have them; each rank's own."""
    width = 64
    picked = independent(rng, -(-elems // width), share, ranks)
    return [np.repeat(one, width)[:elems] for one in picked]


KINDS = {"independent": independent, "identical": identical, "shared": shared, "rows": rows}


def adversarial(rng: np.random.Generator, hash_: Hash, elems: int, share: float) -> Support:
    """Elements that somebody who knows the seed would choose: those whose buckets lie in the fewest rows of each
    sub-table, for the number of rows that their own number makes.
    """
    every = np.arange(elems)
    buckets = hash_.buckets(every)
    row = buckets // LANES % hash_.rows
    worst = np.argsort(row.max(0) * elems + rng.permutation(elems), kind="stable")
    support = np.zeros(elems, np.bool_)
    support[worst[: max(1, int(share * elems))]] = True
    return support


def drawn(rng: np.random.Generator, supports: Sequence[Support]) -> list[Floats]:
    """Normal values of scales over six decades, 0 elsewhere."""
    return [
        np.where(s, rng.standard_normal(s.size) * 10.0 ** rng.uniform(-5, 1, s.size), 0).astype(np.float32)
        for s in supports
    ]
