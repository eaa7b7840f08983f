"""The codec lhc: whether its sums are exact, and how much peels at which load, beside the published scheme.

A trial is exact if every rank's result is the dense fixed32 sum's, bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from pascaline import codec as codecs
from pascaline.codec.lhc import Hash, Params, blocks, buckets, kernels, paper, reference
from pascaline.codec.lhc.sizes import Expected
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


ONE_PHASE = codecs.Lhc(phases=1)
STEPS, STEP_ELEMS = 24, 1 << 16
SERIES: dict[str, Callable[[int], float]] = {
    "steady": lambda _: 1.0,
    "growing": lambda step: 1.03**step,
    "swinging": lambda step: 1.0 + step % 2,
    "jumping": lambda step: 8.0 if step % 8 == 5 else 1.0,
}
"""How large a union is at each step, for what it is at first."""


class Trial(NamedTuple):
    """One sum of all ranks."""

    options: codecs.Lhc
    sequence: int
    gradients: list[Array]
    is_adversarial: bool = False
    tensor: str = ""
    """Whose trial follows the last one: the ranks remember it. "": nobody's."""


def every_length(rng: np.random.Generator) -> Iterator[Trial]:
    """From 1 to 2,100, of any support and number of ranks; one in four in one phase, once more than it is long."""
    for elems in range(1, LENGTHS + 1):
        share, ranks = float(rng.choice([*DENSITIES, 0.5])), int(rng.choice(RANKS))
        kind = str(rng.choice(list(KINDS)))
        if elems % 4:
            yield Trial(codecs.Lhc(), elems, drawn(rng, KINDS[kind](rng, elems, share, ranks)))
            continue
        for step in range(3):
            grads = drawn(rng, KINDS[kind](rng, elems, share, ranks))
            yield Trial(ONE_PHASE, 3 * elems + step, grads, tensor=f"{elems}")


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


def in_one_phase(rng: np.random.Generator) -> Iterator[Trial]:
    """Unions that stay, grow, swing and jump, step after step of one tensor."""
    for number, (series, kind) in enumerate(itertools.product(SERIES, KINDS)):
        ranks = (2, 3, 8, 16)[number % 4]
        for step in range(STEPS):
            grads = drawn(rng, KINDS[kind](rng, STEP_ELEMS, 0.02 * SERIES[series](step), ranks))
            yield Trial(ONE_PHASE, step, grads, tensor=f"{series}, {kind}")


def hostile_in_one_phase(rng: np.random.Generator) -> Iterator[Trial]:
    """Somebody who knows the seed and all unions so far chooses the third step's elements, and many more of them."""
    for number in range(30):
        elems, share, ranks = (
            int(rng.integers(8_000, 60_000)),
            float(rng.choice(DENSITIES[1:])),
            2 + number % 3,
        )
        expected: Expected | None = None
        for step in range(5):
            supports = KINDS["independent"](rng, elems, share, ranks)
            if step == 2 and expected:
                hash_ = Hash(SEED, step, 0, Params(SEED).rows(expected.elems))
                supports = [adversarial(rng, hash_, elems, share * (1 + number % 2))] * ranks
            union = int(np.count_nonzero(np.logical_or.reduce(supports)))
            expected = expected.after(union) if expected else Expected.first(union)
            yield Trial(ONE_PHASE, step, drawn(rng, supports), step == 2, f"{number}")


def margins(progress: Progress) -> dict[str, dict[str, float]]:
    """What one phase costs beside two, of the same gradients, but for the first step: bytes for each of two phases',
    and the share of sums with a repair in either.
    """
    found: dict[str, dict[str, float]] = {}
    ranks: list[list[codecs.Codec]] = []
    tensor = ""
    bytes_sent: dict[str, list[int]] = {}
    repairs: dict[str, list[int]] = {}
    for trial in in_one_phase(np.random.default_rng(7)):
        if trial.tensor != tensor:
            progress(f"lhc: margins, {trial.tensor}")
            tensor, n = trial.tensor, len(trial.gradients)
            ranks = [
                [options.build(rank, n, SEED) for rank in range(n)] for options in (ONE_PHASE, codecs.Lhc())
            ]
            bytes_sent[tensor], repairs[tensor] = [0, 0], [0, 0]
        for phase, each in enumerate(ranks):
            got = reduce_chunk(each, trial.gradients, sequence=trial.sequence)
            if trial.sequence:
                bytes_sent[tensor][phase] += got.bytes_up
                repairs[tensor][phase] += got.outcomes[0].encoding == "sketch and repair"
    for tensor, (one, two) in bytes_sent.items():
        found[tensor] = {
            "bytes": round(one / two, 3),
            "repairs": round(repairs[tensor][0] / (STEPS - 1), 3),
            "repairs of two phases": round(repairs[tensor][1] / (STEPS - 1), 3),
        }
    return found


def exactness(progress: Progress) -> dict[str, Any]:
    """The counts of all trials."""
    names = ("trials", "repairs", "adversarial", "inexact", "one_phase", "one_phase_repairs")
    found: Counter[str] = Counter(dict.fromkeys(names, 0))
    encodings: Counter[str] = Counter()
    ranks: list[codecs.Codec] = []
    tensor = ""
    for seed, group in enumerate(
        (every_length, overloaded, hostile, large, in_one_phase, hostile_in_one_phase)
    ):
        progress(f"lhc: {group.__name__}")
        for trial in group(np.random.default_rng(seed)):
            if not trial.tensor or trial.tensor != tensor:
                tensor, n = trial.tensor, len(trial.gradients)
                # What ranks remember is each one's own; who remembers nothing may be all of them.
                ranks = [trial.options.build(rank, n, SEED) for rank in range(n if tensor else 1)]
                ranks *= 1 if tensor else n
            got = reduce_chunk(ranks, trial.gradients, sequence=trial.sequence)
            wanted = dense(trial.gradients)
            encoding = got.outcomes[0].encoding
            found["trials"] += 1
            found["repairs"] += encoding == "sketch and repair"
            found["one_phase"] += trial.options.phases == 1
            found["one_phase_repairs"] += trial.options.phases == 1 and encoding == "sketch and repair"
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
