"""The codec sparse: that its sums are exact, and what it sends against the other ways to send the same values.

Bytes are of messages as a session posts them, flags, index and padding included, in chunks of `SLOT_BYTES`; those of
the other schemes are their formulas at the same supports, which flatters them by their headers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from pascaline import codec as codecs
from pascaline.codec.sparse import SparseCodec
from pascaline.contract import wire
from pascaline.link.emulated.ops import combine
from tests.client.lockstep import reduce_chunk

Array = np.ndarray
SLOT_BYTES = 1 << 20
SUPPORTS = ("independent", "identical", "shared", "rows", "one in each group")
DENSITIES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97, 0.99, 1.0)
SUB_BLOCK = wire.SUB_BLOCK_ELEMS["expand_sum_f32"]
ADVERSARIAL = (
    "one in each sub-block",
    "all but one in each sub-block",
    "all in one sub-block",
    "empty",
    "full",
)
"""What costs a stream most, and least; of each rank other elements."""
SWEEP_ELEMS, SWEEP_RANKS = 1 << 19, 8
BLOCK = 256
"""Elements of a block of OmniReduce (Fei et al., SIGCOMM'21), which sends whole blocks that are not all zero."""
LENGTHS = 2100


class Sent(NamedTuple):
    """One tensor's bytes and its sums."""

    bytes_up: float
    """Mean of the ranks'."""
    bytes_down: int
    values: Array
    encodings: set[str]


def support(rng: np.random.Generator, kind: str, elems: int, density: float, n: int) -> Iterator[Array]:
    """Each rank's, (elems,) bool."""
    if kind in ADVERSARIAL:
        yield from (adversarial(rng, kind, elems) for _ in range(n))
        return
    common = rng.random(elems) < density
    rows = np.repeat(rng.random(-(-elems // 64)) < density, 64)[:elems]
    spread = np.arange(elems) % 32 == 7
    for _ in range(n):
        own = rng.random(elems) < density
        yield {
            "independent": own,
            "identical": common,
            "shared": np.where(rng.random(elems) < 0.8, common, own),
            "rows": rows,
            "one in each group": spread,
        }[kind]


def adversarial(rng: np.random.Generator, kind: str, elems: int) -> Array:
    """One rank's, (elems,) bool."""
    there = np.zeros(elems, np.bool_)
    begins = np.arange(0, elems, SUB_BLOCK)
    if "in each" in kind:
        there[begins + rng.integers(0, np.minimum(SUB_BLOCK, elems - begins))] = True
        return there ^ kind.startswith("all but")
    if kind == "all in one sub-block":
        begin = int(rng.choice(begins))
        there[begin : begin + SUB_BLOCK] = True
    return there | (kind == "full")


def gradients(seed: int, kind: str, elems: int, density: float, n: int) -> list[Array]:
    """Normal values on a support of this kind."""
    rng = np.random.default_rng(seed)
    return [
        np.where(chosen, rng.standard_normal(elems, np.float32), np.float32(0))
        for chosen in support(rng, kind, elems, density, n)
    ]


def sent(options: codecs.Options, xs: list[Array], slot_bytes: int = SLOT_BYTES) -> Sent:
    """All ranks' tensors through their codecs, chunk by chunk."""
    return through([options.build(rank, len(xs), 0) for rank in range(len(xs))], xs, slot_bytes)


def in_one_phase(values: str, n: int) -> list[codecs.Codec]:
    """A codec for each rank that makes streams of the smallest chunks too, which a session sends as they are."""
    return [SparseCodec("sparse", values, n, direct_elems=0, phases=1) for _ in range(n)]  # type: ignore[arg-type]


def through(ranks: list[codecs.Codec], xs: list[Array], slot_bytes: int = SLOT_BYTES) -> Sent:
    """As `sent`, by codecs that are there."""
    elems, up, down, parts, encodings = ranks[0].chunk_elems(slot_bytes), 0, 0, [], set()

    def combined_by(op: str, encodings: list[Array]) -> Array:
        nonlocal up
        up += sum(one.size for one in encodings)
        return combine(op, encodings, ())

    for begin in range(0, xs[0].size, elems):
        chunk = reduce_chunk(ranks, [x[begin : begin + elems] for x in xs], combined_by=combined_by)
        down += chunk.bytes_down
        parts.append(chunk.values[0])
        encodings.add(chunk.outcomes[0].encoding)
        assert all(values.tobytes() == parts[-1].tobytes() for values in chunk.values)
    return Sent(up / len(xs), down, np.concatenate(parts), encodings)


def is_exact(kind: str, xs: list[Array], values: Array) -> bool:
    """Whether the sum is that of the dense codec: of fixed32 every bit, of f32 every one but the sign of a zero."""
    dense = sent(codecs.resolve(kind), xs)
    if kind == "fixed32":
        return values.tobytes() == dense.values.tobytes()
    return bool(np.array_equal(values, dense.values, equal_nan=True))


def trials() -> Iterator[tuple[str, list[Array]]]:
    """Every length from 1 to 2,100, and longer ones of every support and density, for 1 to 64 ranks."""
    ranks, values, kinds = (1, 2, 3, 8, 2, 5), ("f32", "fixed32"), SUPPORTS + ADVERSARIAL
    for elems in range(1, LENGTHS + 1):
        n = 64 if elems % 175 == 0 else ranks[elems % len(ranks)]
        density = (0.001, 0.02, 0.3, 1.0)[elems % 4]
        kind = kinds[elems // 2 % len(kinds)]
        yield values[elems % 2], gradients(elems, kind, elems, density, n)
    drawn = [
        (kind, density, n) for kind in SUPPORTS for density in (0.001, 0.01, 0.05, 0.2, 0.97) for n in (2, 64)
    ]
    drawn += [(kind, 0.0, n) for kind in ADVERSARIAL for n in (2, 64)]
    for number, (kind, density, n) in enumerate(drawn):
        elems = (1 << 14) + 77 * number
        yield values[number % 2], gradients(number, kind, elems, density, n)


def exactness() -> dict[str, int]:
    """How many trials, each in two phases and in one, and in how many a bit is not the dense codec's."""
    count = inexact = 0
    for values, xs in trials():
        for got in (sent(codecs.Sparse(values), xs), through(in_one_phase(values, len(xs)), xs)):  # type: ignore[arg-type]
            count += 1
            inexact += not is_exact(values, xs, got.values)
    return {"sparse_trials": count, "sparse_inexact": inexact}


def shares(xs: list[Array]) -> tuple[float, float]:
    """Density of the union, and mean density of a rank's own."""
    union = np.logical_or.reduce([x != 0 for x in xs])
    return float(union.mean()), float(np.mean([(x != 0).mean() for x in xs]))


def blocks(xs: list[Array], size: int = BLOCK) -> float:
    """Bytes for each element, up and down: own blocks go up, the union's come down, each with its number."""
    padded = [np.pad(x != 0, (0, -x.size % size)).reshape(-1, size).any(1) for x in xs]
    up = float(np.mean([own.sum() for own in padded]))
    return (up + float(np.logical_or.reduce(padded).sum())) * (4 * size + 4) / xs[0].size


def entropy(density: float) -> float:
    """Bits for each element of an index that nothing is known of but its density."""
    if density in (0, 1):
        return 0.0
    return -density * math.log2(density) - (1 - density) * math.log2(1 - density)


def formulas(xs: list[Array]) -> dict[str, float]:
    """Bytes for each element, up and down together, of the other ways."""
    rho, k = shares(xs)
    return {
        "dense": 8.0,
        "pairs": 8 * (k + rho),
        f"blocks of {BLOCK}": blocks(xs),
        "blocks of 32": blocks(xs, 32),
        "LHC, 1.23": 2 * (1 / 8 + 4 * 1.23 * rho),
        "1/8 + 4 rho": 2 * (1 / 8 + 4 * rho),
        "1/8 + 4 k, 1/8 + 4 rho": 2 / 8 + 4 * (k + rho),
        "entropy bound": (entropy(k) + entropy(rho)) / 8 + 4 * (k + rho),
    }


def row(xs: list[Array]) -> dict[str, Any]:
    """Everything that is said of one set of gradients."""
    said, one = sent(codecs.Sparse(), xs), sent(codecs.Sparse(phases=1), xs)
    rho, k = shares(xs)
    return {
        "k": round(k, 5),
        "rho": round(rho, 5),
        "sparse": (said.bytes_up + said.bytes_down) / xs[0].size,
        "one phase": (one.bytes_up + one.bytes_down) / xs[0].size,
        **formulas(xs),
        "encodings": ", ".join(sorted(said.encodings)),
    }


def sweep(progress: Callable[[str], None]) -> dict[str, list[dict[str, Any]]]:
    """By support, for densities of one rank."""
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in SUPPORTS + ADVERSARIAL:
        progress(f"sparse: {kind}")
        densities = (1 / 32,) if kind == "one in each group" else (0.0,) if kind in ADVERSARIAL else DENSITIES
        found[kind] = [row(gradients(7, kind, SWEEP_ELEMS, density, SWEEP_RANKS)) for density in densities]
    # Half of the elements each, all of them together: nobody can know beforehand that an index is of no use.
    halves = gradients(9, "identical", SWEEP_ELEMS, 1.0, 2)
    for rank, x in enumerate(halves):
        x[rank::2] = 0
    found["halves"] = [row(halves)]
    return found


def ratios(found: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """The worst of all supports and densities."""
    rows = [one for kind in found.values() for one in kind]
    worst = {
        "sparse_over_formula_max": ("sparse", "1/8 + 4 rho"),
        "sparse_over_lhc_bytes_max": ("sparse", "LHC, 1.23"),
        "sparse_over_dense_bytes_max": ("sparse", "dense"),
        "sparse_one_phase_over_formula_max": ("one phase", "1/8 + 4 k, 1/8 + 4 rho"),
        "sparse_one_phase_over_lhc_bytes_max": ("one phase", "LHC, 1.23"),
        "sparse_one_phase_over_dense_bytes_max": ("one phase", "dense"),
    }
    return {key: round(max(one[way] / one[other] for one in rows), 4) for key, (way, other) in worst.items()}
