"""The codec lhc: whether its sums are exact, and how much peels at which load, beside the published scheme.

A trial is exact if every rank's result is the dense fixed32 sum's, bit for bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from pascaline import codec as codecs
from pascaline.codec.lhc import Hash, Params, blocks, buckets, kernels, paper, reference
from pascaline.codec.sparse.reference import bitmap_of, count
from tests.client.lhc_rack import KINDS, adversarial, dense, drawn, inexact
from tests.client.lockstep import reduce_chunk

Array = np.ndarray
Progress = Callable[[str], None]
LENGTHS = 2100
SEED = 0x0123456789ABCDEF
RANKS = (1, 2, 3, 5, 8, 16, 64)
DENSITIES = (0.001, 0.01, 0.05, 0.2)
SIZES = (1 << 18, 1 << 20, 1 << 22)
LOADS = (0.50, 0.60, 0.65, 0.70, 0.74, 0.77, 0.79, 0.81, 0.82, 0.83, 0.85, 0.90, 1.0, 1.2)
"""Elements of the union for each bucket; 1.30 buckets for each element are a load of 0.769."""


class Trial(NamedTuple):
    """One sum of all ranks."""

    options: codecs.Lhc
    sequence: int
    gradients: list[Array]
    is_adversarial: bool = False


def every_length(rng: np.random.Generator) -> Iterator[Trial]:
    """From 1 to 2,100, of any support and number of ranks; one in four with sizes fixed in advance."""
    for elems in range(1, LENGTHS + 1):
        share, ranks = float(rng.choice([*DENSITIES, 0.5])), int(rng.choice(RANKS))
        kind = str(rng.choice(list(KINDS)))
        options = codecs.Lhc(expected=0.05) if elems % 4 == 0 else codecs.Lhc()
        yield Trial(options, elems, drawn(rng, KINDS[kind](rng, elems, share, ranks)))


def overloaded(rng: np.random.Generator) -> Iterator[Trial]:
    """More elements than buckets."""
    for number in range(240):
        elems, kind = int(rng.integers(4_000, 40_000)), list(KINDS)[number % 4]
        ranks = (2, 8, 3, 64)[number // 4 % 4]
        options = codecs.Lhc(permille=int(rng.integers(300, 990)))
        yield Trial(options, number, drawn(rng, KINDS[kind](rng, elems, 0.15, ranks)))


def hostile(rng: np.random.Generator) -> Iterator[Trial]:
    """Elements that somebody who knows the seed has chosen."""
    for number in range(60):
        elems, share = int(rng.integers(8_000, 60_000)), float(rng.choice(DENSITIES[1:]))
        hash_ = Hash(SEED, number, 0, Params(SEED).rows(round(share * elems)))
        chosen = adversarial(rng, hash_, elems, share)
        yield Trial(codecs.Lhc(), number, drawn(rng, [chosen] * RANKS[number % 5]), True)


def large(rng: np.random.Generator) -> Iterator[Trial]:
    """A quarter of a million elements."""
    for number, share in enumerate(DENSITIES):
        for kind in KINDS:
            ranks = 64 if kind == "shared" else (1, 2, 4, 8)[number]
            yield Trial(codecs.Lhc(), number, drawn(rng, KINDS[kind](rng, 1 << 18, share, ranks)))


def exactness(progress: Progress) -> dict[str, Any]:
    """The counts of all trials."""
    found: Counter[str] = Counter({"trials": 0, "repairs": 0, "adversarial": 0, "inexact": 0})
    encodings: Counter[str] = Counter()
    for seed, group in enumerate((every_length, overloaded, hostile, large)):
        progress(f"lhc: {group.__name__}")
        for trial in group(np.random.default_rng(seed)):
            ranks = [trial.options.build(0, len(trial.gradients), SEED)] * len(trial.gradients)
            got = reduce_chunk(ranks, trial.gradients, sequence=trial.sequence)
            wanted = dense(trial.gradients)
            encoding = got.outcomes[0].encoding
            found["trials"] += 1
            found["repairs"] += encoding == "sketch and repair"
            found["adversarial"] += trial.is_adversarial
            found["inexact"] += any(inexact(values, wanted) for values in got.values)
            encodings[encoding] += 1
    return {**found, "encodings": dict(encodings)}


# ---- Recovery ----


def unpeeled_share(hash_: Hash, union: Array, elems: int, scratch: Array) -> float:
    """Of the union's elements."""
    marked = np.empty(blocks(elems), np.uint32)
    return kernels.check(hash_, union, elems, marked, scratch) / max(1, count(union))


def unions(kind: str, elems: int, share: float, ranks: int = 4) -> Array:
    """The bitmap of one draw."""
    supports = KINDS[kind](np.random.default_rng(elems), elems, share, ranks)
    return bitmap_of(np.logical_or.reduce(supports))


def recovery(sizes: tuple[int, ...], trials: int, progress: Progress) -> dict[str, Any]:
    """At 1.30 buckets: size -> density -> support -> share of hashes by which all peels, mean share that does not."""
    found: dict[str, Any] = {}
    for elems in sizes:
        progress(f"lhc: recovery, {elems} elements")
        for share in DENSITIES:
            row = found.setdefault(str(elems), {}).setdefault(f"{share:g}", {})
            for kind in KINDS:
                row[kind] = recovered(kind, elems, share, trials)
    return found


def recovered(kind: str, elems: int, share: float, trials: int) -> dict[str, float]:
    """Of so many hashes of one union."""
    union = unions(kind, elems, share)
    rows = Params(SEED).rows(count(union))
    scratch = np.empty(kernels.scratch_words(elems, rows), np.uint32)
    left = [unpeeled_share(Hash(SEED, i, 0, rows), union, elems, scratch) for i in range(trials)]
    return {"whole": sum(one == 0 for one in left) / trials, "unpeeled": float(f"{np.mean(left):.3g}")}


def by_load(elems: int, kind: str, share: float, trials: int) -> dict[str, list[float]]:
    """Curves over LOADS."""
    union = unions(kind, elems, share)
    scratch = np.empty(kernels.scratch_words(elems, Params(SEED).rows(3 * elems)), np.uint32)
    curve: dict[str, list[float]] = {"whole": [], "unpeeled": []}
    for load in LOADS:
        rows = max(1, round(count(union) / load / buckets(1)))
        left = [unpeeled_share(Hash(SEED, i, 0, rows), union, elems, scratch) for i in range(trials)]
        curve["whole"].append(sum(one == 0 for one in left) / trials)
        curve["unpeeled"].append(float(f"{np.mean(left):.3g}"))
    return curve


def by_load_of_paper(elems: int, kind: str, share: float, trials: int) -> dict[str, list[float]]:
    """The published scheme's curves; and its float32 values' largest relative error, of those that peel."""
    union = unions(kind, elems, share)
    elements = reference.elements_of(union)
    curve: dict[str, list[float]] = {"whole": [], "unpeeled": [], "error": []}
    values = np.zeros(elems, np.float32)
    values[elements] = np.random.default_rng(1).standard_normal(elements.size)
    for load in LOADS:
        left, worst = [], 0.0
        for trial in range(trials):
            hash_ = paper.PaperHash(SEED, trial, 0, paper.rows(elems, elements.size / elems / load))
            got, unpeeled = reference.peel(hash_, union, elems, reference.sketch(hash_, values))
            recovered = np.setdiff1d(elements, reference.elements_of(unpeeled))
            left.append(1 - recovered.size / elements.size)
            error = np.abs(got[recovered] - values[recovered]) / np.abs(values[recovered])
            worst = max(worst, float(error.max(initial=0)))
        curve["whole"].append(sum(one == 0 for one in left) / trials)
        curve["unpeeled"].append(float(f"{np.mean(left):.3g}"))
        curve["error"].append(float(f"{worst:.3g}"))
    return curve


def curves(progress: Progress) -> dict[str, Any]:
    """What the plot shows."""
    found: dict[str, Any] = {}
    for elems, name in ((1 << 18, "0.26 M"), (1 << 22, "4.2 M")):
        for kind in ("independent", "rows"):
            progress(f"lhc: load, {name}, {kind}")
            found[f"lhc, {name}, {kind}"] = by_load(elems, kind, 0.05, 20 if elems < 1 << 20 else 8)
    for elems, name in ((1 << 18, "0.26 M"), (1 << 20, "1.0 M")):
        progress(f"lhc-paper: load, {name}")
        found[f"lhc-paper, {name}, independent"] = by_load_of_paper(elems, "independent", 0.05, 6)
    return found


def threshold() -> float:
    """The load above which a random 3-uniform hypergraph keeps a 2-core: min over x of x / (3 (1 - e^-x)^2)."""
    return min(x / 1000 / (3 * (1 - math.exp(-x / 1000)) ** 2) for x in range(1, 5000))
