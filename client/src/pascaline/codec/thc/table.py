"""Tables for thc: the best one for (bits, g, p), and the best (g, p) for a number of ranks.

A coordinate of a rotated block is close to standard normal. It is clipped to [-t, t], t = Phi^-1(1 - p/2), and rounded
up or down between neighbouring levels -t + T[k] * 2t/g so that its expectation stays. Rounding costs (x - l)(u - x)
between levels l and u: a sum over segments between levels, so a dynamic programme over the g + 1 points finds the best
2^bits of them exactly. The problem is the paper's (arXiv 2302.08545); docs/thc.md, "Tables", has the model of n ranks.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.thc.params import Rounding
from pascaline.errors import ConfigurationError

Floats = NDArray[np.float64]
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Solution:
    """A table, what it is for, and its rounding cost per coordinate of unit variance."""

    table: tuple[int, ...]
    p: float
    cost: float

    @property
    def g(self) -> int:
        """Steps in the range."""
        return self.table[-1]

    @property
    def t(self) -> float:
        """Half the range."""
        return half_range(self.p)

    @classmethod
    def of(cls, table: tuple[int, ...], t: float) -> Solution:
        """A given table on a given half range `t`, with its cost."""
        costs, levels = _segment_costs(t, table[-1]), sorted(set(table))
        return cls(table, tail_mass(t), sum(float(costs[a, b]) for a, b in itertools.pairwise(levels)))


def half_range(p: float) -> float:
    """t: a standard normal value is outside [-t, t] with probability `p`, in (0, 1)."""
    if not 0 < p < 1:
        raise ConfigurationError(f"p is a probability between 0 and 1, not {p}: 1/32 is the paper's")
    return _NORMAL.inv_cdf(1 - p / 2)


def tail_mass(t: float) -> float:
    """p: the inverse of `half_range`."""
    return math.erfc(t / math.sqrt(2))


def _density(x: Floats) -> Floats:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _cumulative(x: Floats) -> Floats:
    erf = np.fromiter((math.erf(v) for v in (x / math.sqrt(2)).flat), np.float64, x.size)
    return 0.5 * (1 + erf.reshape(x.shape))


def _segment_costs(t: float, g: int) -> Floats:
    """(g+1, g+1): the integral of (x - l)(u - x) phi(x) over [l, u], for points l < u of the grid; infinite elsewhere.

    By parts: int x phi = phi(l) - phi(u) and int x^2 phi = Phi(u) - Phi(l) + l phi(l) - u phi(u).
    """
    x = np.linspace(-t, t, g + 1)
    phi, cumulative = _density(x), _cumulative(x)
    lower, upper = x[:, None], x[None, :]
    mass = cumulative[None, :] - cumulative[:, None]
    first = phi[:, None] - phi[None, :]
    second = mass + (x * phi)[:, None] - (x * phi)[None, :]
    cost = (lower + upper) * first - second - lower * upper * mass
    return np.where(np.arange(g + 1)[None, :] > np.arange(g + 1)[:, None], cost, np.inf)


def _cheapest_paths(costs: Floats, segments: int) -> tuple[Floats, NDArray[np.int64]]:
    """best[k, j]: the least cost of `k` segments from point 0 to point j; parent[k, j]: the point before."""
    points = len(costs)
    best = np.full((segments + 1, points), np.inf)
    best[0, 0] = 0
    parent = np.zeros((segments + 1, points), np.int64)
    for k in range(1, segments + 1):
        total = best[k - 1, :, None] + costs
        parent[k] = total.argmin(0)
        best[k] = total.min(0)
    return best, parent


def _path(parent: NDArray[np.int64], segments: int, end: int) -> list[int]:
    """The points of a cheapest path to `end`, ascending."""
    points = [end]
    for k in range(segments, 0, -1):
        points.append(int(parent[k, points[-1]]))
    return points[::-1]


@functools.lru_cache(maxsize=4096)
def solve(bits: int, g: int, p: float, symmetric: bool = True) -> Solution:
    """The table of 2^bits levels on g + 1 points with the least rounding cost; `symmetric`: T[last-k] = g - T[k]."""
    levels = 2**bits
    if not levels - 1 <= g <= 255:
        raise ConfigurationError(f"{bits} bits need a g of {levels - 1} to 255 for distinct levels, not {g}")
    costs = _segment_costs(half_range(p), g)
    if not symmetric:
        best, parent = _cheapest_paths(costs, levels - 1)
        return Solution(tuple(_path(parent, levels - 1, g)), p, float(best[-1, g]))
    half = levels // 2 - 1  # segments below the middle one
    best, parent = _cheapest_paths(costs, half)
    ends = np.arange((g + 1) // 2)
    totals = 2 * best[half, ends] + costs[ends, g - ends]
    end = int(totals.argmin())
    lower = _path(parent, half, end)
    return Solution(tuple(lower + [g - point for point in lower[::-1]]), p, float(totals[end]))


def clipping_cost(p: float) -> float:
    """The expected square of what clipping takes from a standard normal value."""
    t = half_range(p)
    return 2 * ((1 + t * t) * p / 2 - t * _NORMAL.pdf(t))


# ---- The error of the mean over n ranks ----


def _clipping_covariance(t: float, correlation: float) -> float:
    """E[d(x) d(y)] with d(x) what clipping takes, for standard normal x and y of this correlation, 0 to below 1.

    E[d(y) | x] is closed (y given x is normal); over x by the midpoint rule, beyond t alone.
    """
    step = 1 / 256
    x = t + step * (np.arange(6 / step) + 0.5)
    deviation = math.sqrt(1 - correlation**2)

    def excess(mean: Floats) -> Floats:  # E[(y - t)+]
        d = (mean - t) / deviation
        return deviation * _density(d) + (mean - t) * _cumulative(d)

    taken = excess(correlation * x) - excess(-correlation * x)
    return float(2 * step * np.sum((x - t) * _density(x) * taken))


@functools.lru_cache(maxsize=1)
def _pairs() -> tuple[Floats, Floats]:
    """Nodes for expectations over two independent standard normal values: a two-dimensional additive recurrence.

    Steps 1/phi and 1/phi^2 of the plastic number phi spread 2^14 points over the unit square.
    """
    phi = 1.32471795724474602596
    i = np.arange(1, 2**14 + 1)
    quantile = np.vectorize(_NORMAL.inv_cdf, otypes=[np.float64])
    return quantile((0.5 + i / phi) % 1), quantile((0.5 + i / phi**2) % 1)


def _cell(solution: Solution, z: Floats) -> tuple[Floats, Floats]:
    """Where clipped `z` is between its levels, 0 to 1, and how far these are apart."""
    levels = (np.asarray(solution.table) * (2 / solution.g) - 1) * solution.t
    z = np.clip(z, levels[0], levels[-1])
    k = np.clip(np.searchsorted(levels, z, side="right") - 1, 0, len(levels) - 2)
    gap = levels[k + 1] - levels[k]
    return (z - levels[k]) / gap, gap


def _rounding_covariance(solution: Solution, n: int, correlation: float, rounding: Rounding) -> float:
    """The covariance of two ranks' rounding errors.

    A rank goes up with u < a. shared: both have the same u, so cov = min(a, b) - ab. stratified: (u, v) is uniform on
    the square without its n diagonal blocks, which gives (ab - n * sum over strata of their parts below a and b,
    multiplied) / (n - 1).
    """
    if rounding == "independent" or n == 1:
        return 0.0
    x, y = _pairs()
    a, gap_a = _cell(solution, x)
    b, gap_b = _cell(solution, correlation * x + math.sqrt(1 - correlation**2) * y)
    low, high = np.minimum(a, b), np.maximum(a, b)
    if rounding == "shared":
        return float(np.mean(gap_a * gap_b * (low - a * b)))
    stratum = np.minimum(np.floor(low * n), n - 1) / n
    both = stratum + n * (low - stratum) * np.minimum(high - stratum, 1 / n)
    return float(np.mean(gap_a * gap_b * (a * b - both))) / (n - 1)


def predicted_nmse(
    solution: Solution, n: int, correlation: float, rounding: Rounding, debias: float = 1.0
) -> float:
    """E|mean decoded - mean|^2 / E|mean|^2 over `n` ranks whose coordinates are standard normal with this correlation.

    Decoded = debias * (z + clipping + rounding error). The mean's error is 1/n of one rank's square plus (n-1)/n of two
    ranks' covariance; a clipped value's regression on z has slope 1 - p, which gives the debias terms.
    """
    clipped = clipping_cost(solution.p)
    together = clipped if correlation == 1 else _clipping_covariance(solution.t, correlation)
    rounded_together = _rounding_covariance(solution, n, correlation, rounding)
    one, two = 1 / n, 1 - 1 / n
    clip, bias = one * clipped + two * together, one + two * correlation
    noise = one * solution.cost + two * rounded_together
    kept, shrink = debias * debias, debias - 1
    # E(debias*(m + c) - m)^2 = debias^2 E c^2 + 2 debias (debias-1) E mc + (debias-1)^2 E m^2, with E mc = -p E m^2
    error = kept * (clip + noise) - 2 * debias * shrink * solution.p * bias + shrink * shrink * bias
    return error / bias


# ---- The choice ----

_MAX_SUM = {8: 255, 16: 65535}


def default_sum_bits(bits: int, n: int) -> int:
    """8 while the sum of `n` ranks leaves two grid points to each level, as the paper's g = 30 for 4 bits; else 16."""
    return 8 if _MAX_SUM[8] // n >= 2 * (2**bits - 1) else 16


@functools.lru_cache(maxsize=256)
def choose(
    bits: int,
    n: int,
    correlation: float = 0.5,
    rounding: Rounding = "stratified",
    sum_bits: int | None = None,
    uniform: bool = False,
) -> Solution:
    """The symmetric table whose predicted error of the mean over `n` ranks is least among the grids that fit the sum.

    `correlation`: of two ranks' gradients, 0 to 1. `sum_bits`: 8 or 16; None is `default_sum_bits`. `uniform`: only the
    identity, so only p is chosen.
    """
    if not 0 <= correlation <= 1:
        raise ConfigurationError(f"the correlation of ranks' gradients is between 0 and 1, not {correlation}")
    least = 2**bits - 1
    most = min(255, _MAX_SUM[sum_bits or default_sum_bits(bits, n)] // n)
    if most < least:
        raise ConfigurationError(
            f"{bits} bits need a g of at least {least}, but the sum of {n} ranks holds a g of {most} "
            f"in {sum_bits or 16} bits: choose fewer bits or a wider sum"
        )
    scored, step = [], 12
    for g in [least] if uniform else _grids(least, most):
        score, step = _best_step(bits, g, n, correlation, rounding, step)
        scored.append((score, g, step))
    _, g, step = min(scored)
    return solve(bits, g, _tail(step))


def _grids(least: int, most: int) -> list[int]:
    """Every g up to twice the levels, then ever fewer: beyond, a finer grid gains less than 1 % (docs/thc.md)."""
    fine = list(range(least, min(most, 2 * least + 2) + 1))
    coarse = [g for g in (3 * least, 4 * least, 6 * least, 8 * least) if fine[-1] < g <= most]
    return fine + coarse


def _tail(step: int) -> float:
    """The p that are tried: half powers of two."""
    return math.exp2(-step / 2)


def _best_step(
    bits: int, g: int, n: int, correlation: float, rounding: Rounding, start: int
) -> tuple[float, int]:
    """(predicted error, step of p), by descent from `start`: the error has one minimum in p."""

    def score(step: int) -> float:
        return predicted_nmse(solve(bits, g, _tail(step)), n, correlation, rounding)

    best: tuple[float, int] = (score(start), start)
    for direction in (1, -1):
        while 1 <= best[1] + direction <= 48:
            moved = (score(best[1] + direction), best[1] + direction)
            if moved >= best:
                break
            best = moved
    return best
