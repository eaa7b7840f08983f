"""The long target, `python -m tests.numerics.lhc_long`: lhc with 67 M elements by 64 ranks, density 0.1 to 20 %, and
how much peels of tensors of that size; into docs/lhc.json.

Each row is printed and kept in build/numerics/long.json as soon as it is there: what was interrupted goes on, and
begins anew without that file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pascaline.codec import fixed32
from pascaline.codec.lhc import Hash, Params, blocks, kernels, reference
from pascaline.codec.sparse import kernels as sparse_kernels
from pascaline.codec.sparse.reference import count
from tests.client.lhc_rack import KINDS, inexact

from .lhc import DENSITIES, SEED, Progress, recovered

Array = np.ndarray
Row = dict[str, Any]
ROOT = Path(__file__).parents[2]
SIZES = (1 << 24, 1 << 26)
TRIALS = (("shared", 64), ("independent", 64), ("rows", 64), ("identical", 64))
"""Supports of 67 M elements, and ranks: each at every density."""
LIMIT, WIDTH = 7.5, 64


def places(rng: np.random.Generator, elems: int, share: float) -> Array:
    """Ascending places below `elems`, each there with this chance: as many draws as there are places."""
    drawn: list[Array] = []
    last = -1
    while last < elems:
        drawn.append(last + np.cumsum(rng.geometric(share, 1024 + int(elems * share / 8))))
        last = int(drawn[-1][-1])
    every = np.concatenate(drawn)
    return every[: np.searchsorted(every, elems)]


class Tensor:
    """A tensor that ranks add to one after the other: four arrays of its size, however many ranks there are."""

    def __init__(self, elems: int, share: float, ranks: int, kind: str) -> None:
        self.elems, self.share, self.ranks, self.kind = elems, share, ranks, kind
        own = 1 - (1 - share) ** (1 / ranks)
        self._own = {"shared": own / 5, "identical": 0.0}.get(kind, own)
        common = {"shared": 0.8 * share, "identical": share}.get(kind, 0.0)
        rng = np.random.default_rng(elems)
        self._common = places(rng, elems, common) if common else np.zeros(0, np.int64)
        self._x, self._written = np.zeros(elems, np.float32), np.zeros(0, np.int64)

    def support(self, rank: int) -> Array:
        """Where one rank is not 0, ascending; the same at every call."""
        rng = np.random.default_rng([rank, self.elems])
        if self.kind == "rows":
            rows = places(rng, -(-self.elems // WIDTH), self._own)
            chosen = (WIDTH * rows[:, None] + np.arange(WIDTH)).reshape(-1)
            return chosen[: np.searchsorted(chosen, self.elems)]
        chosen = places(rng, self.elems, self._own) if self._own else np.zeros(0, np.int64)
        return np.union1d(self._common, chosen) if chosen.size else self._common

    def gradient(self, rank: int) -> tuple[Array, Array]:
        """One rank's, f32 (elems,), below LIMIT in size, and where it is not 0; it holds until the next call."""
        chosen = self.support(rank)
        values = np.random.default_rng([rank, self.elems, 1]).standard_normal(chosen.size, np.float32)
        self._x[self._written] = 0
        self._x[chosen] = np.clip(values, -LIMIT, LIMIT)
        self._written = chosen
        return self._x, chosen

    def trial(self, progress: Progress) -> Row:
        """Index, check, sketch and peel of all ranks, against the dense sum of the same integers."""
        k = fixed32.exponent(LIMIT, self.ranks)
        union = np.zeros(blocks(self.elems), np.uint32)
        own, exact = np.empty_like(union), np.zeros(self.elems, np.int32)
        for rank in range(self.ranks):
            x, chosen = self.gradient(rank)
            sparse_kernels.mark(x, 1, own)
            union |= own
            exact[chosen] += fixed32.integers(x[chosen], k)
        progress(f"lhc: {self.elems} elements, {self.kind}: index and dense sum of {self.ranks} ranks")
        hash_ = Hash(SEED, 1, 0, Params(SEED).rows(count(union)))
        scratch = np.empty(kernels.scratch_words(self.elems, hash_.rows), np.uint32)
        unpeeled = np.empty_like(union)
        left = kernels.check(hash_, union, self.elems, unpeeled, scratch)
        table, repair, missing = self._sums(hash_, k, unpeeled)
        progress(f"lhc: {self.elems} elements, {self.kind}: sketches of {self.ranks} ranks")
        values = np.empty(self.elems, np.float32)
        kernels.peel(hash_, union, table, fixed32.factors(-k), values, unpeeled, scratch)
        values[missing] = reference.floats(repair, fixed32.factors(-k))
        return {
            "elements": self.elems,
            "ranks": self.ranks,
            "support": self.kind,
            "density": count(union) / self.elems,
            "unpeeled": left,
            "inexact": inexact(values, reference.floats(exact, fixed32.factors(-k))),
        }

    def _sums(self, hash_: Hash, k: int, unpeeled: Array) -> tuple[Array, Array, Array]:
        """Of all ranks: sketches, and the integers of what does not peel, whose places come last."""
        missing = reference.elements_of(unpeeled)
        table, part = np.zeros(hash_.size, np.int32), np.empty(hash_.size, np.int32)
        repair = np.zeros(missing.size, np.int32)
        for rank in range(self.ranks):
            x, _ = self.gradient(rank)
            kernels.sketch(hash_, x, fixed32.factors(k), unpeeled, part)
            table += part
            repair += fixed32.integers(x[missing], k)
        return table, repair, missing


class Kept:
    """Rows that are there already."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path, self._progress = path, progress
        self.rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}

    def row(self, title: str, measured: Callable[[], Row]) -> Row:
        """The one of this title, measured if need be."""
        if title not in self.rows:
            begin = time.monotonic()
            self.rows[title] = measured()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self.rows, indent=1) + "\n")
            self._progress(f"{title}: {json.dumps(self.rows[title])}, {time.monotonic() - begin:.0f} s")
        return self.rows[title]

    def sums(self) -> list[Row]:
        """Those of sums."""
        return [row for title, row in self.rows.items() if title.startswith("sum")]


def write(key: str, found: Any, path: Path) -> None:
    """Into docs/lhc.json, where `make numerics` leaves it alone."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {key: found}, indent=1) + "\n")


def _sum(tensor: tuple[int, float, int, str], progress: Progress) -> Row:
    return Tensor(*tensor).trial(progress)


def main() -> int:
    """0 if every sum was the dense one."""

    def progress(line: str) -> None:
        print(line, flush=True)

    kept, docs = Kept(ROOT / "build" / "numerics" / "long.json", progress), ROOT / "docs" / "lhc.json"
    recovery: dict[str, Any] = {}
    for elems in SIZES:
        for share in DENSITIES:
            row = recovery.setdefault(str(elems), {}).setdefault(f"{share:g}", {})
            for kind in KINDS:
                union = (kind, elems, share)
                row[kind] = kept.row(f"recovery of {union}", partial(recovered, *union, 4))
    write("long recovery", recovery, docs)
    for share in DENSITIES:  # what takes hours comes last
        for kind, ranks in TRIALS:
            tensor = (SIZES[-1], share, ranks, kind)
            kept.row(f"sum of {tensor}", partial(_sum, tensor, progress))
            write("long", kept.sums(), docs)
    return 1 if any(one["inexact"] for one in kept.sums()) else 0


if __name__ == "__main__":
    sys.exit(main())
