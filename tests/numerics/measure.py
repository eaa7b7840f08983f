"""The measurements of `make numerics`, each a plain dictionary for JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pascaline.codec.thc import Params, setting, table

from . import gradients, schemes
from .schemes import SEED, Scheme

RANKS = (1, 2, 4, 8, 16, 32, 64)
CORRELATIONS = (0.0, 0.5, 1.0)
ELEMS = 1 << 16
STEPS = 16
Rows = dict[str, dict[str, float]]


def digits(value: float) -> float:
    """Four significant digits: what repeated runs on other machines agree on."""
    return float(f"{value:.4g}")


def by_ranks() -> dict[str, Rows]:
    """NMSE of the mean: correlation -> scheme -> n."""
    found: dict[str, Rows] = {}
    for c in CORRELATIONS:
        rows: Rows = {}
        for n in RANKS:
            # alike on all ranks and many, the error is that of the few values which are clipped: more of them
            grads = gradients.homogeneous(4 * ELEMS if c == 1 else ELEMS, n, c, SEED + n)
            for scheme in schemes.settings(n) + schemes.baselines():
                rows.setdefault(scheme.name, {})[str(n)] = digits(
                    gradients.nmse(scheme.total(grads, n), grads)
                )
        found[f"c = {c:g}"] = rows
    return found


def columns(n: int) -> dict[str, list[Tensor]]:
    """The gradients of a table's columns."""
    drawn = {f"c = {c:g}": gradients.homogeneous(2 * ELEMS, n, c, SEED) for c in CORRELATIONS}
    return drawn | {f"layers, c = {c:g}": gradients.layers(n, c, SEED) for c in (0.0, 0.5)}


def errors(rows: list[Scheme], n: int) -> dict[str, dict[str, float]]:
    """NMSE of the mean: scheme -> column."""
    drawn = columns(n)
    return {
        scheme.name: {
            name: digits(gradients.nmse(scheme.total(grads, 1), grads)) for name, grads in drawn.items()
        }
        | {"bits up": digits(scheme.up), "bits down": digits(scheme.down)}
        for scheme in rows
    }


def repeated(rows: list[Scheme], n: int) -> dict[str, float]:
    """NMSE of the average over 16 steps of the same gradients, alike on all ranks: what does not average out."""
    grads = gradients.homogeneous(ELEMS, n, 1.0, SEED + 1)
    averages = {
        scheme.name: torch.stack([scheme.total(grads, step).double() for step in range(STEPS)]).mean(0)
        for scheme in rows
    }
    return {name: digits(gradients.nmse(average, grads)) for name, average in averages.items()}


def slopes(n: int) -> dict[str, dict[str, float]]:
    """End-to-end slope of the decoded on the exact sum, with and without debias."""
    drawn = {
        "homogeneous": gradients.homogeneous(4 * ELEMS, n, 0.5, SEED),
        "layers": gradients.layers(n, 0.5, SEED),
    }
    found: dict[str, dict[str, float]] = {}
    for name in ("thc", "thc-paper"):
        params = setting(name, n, SEED)
        tail = table.tail_mass(params.t)
        for label, debias in (("", 1.0), (", debias", 1 / (1 - tail))):
            scheme = schemes.thc(name, dataclasses.replace(params, debias=debias))
            found[name + label] = {
                kind: round(gradients.slope(scheme.total(grads, 0), grads), 4)
                for kind, grads in drawn.items()
            }
    return found


def unbiased(draws: int = 256) -> dict[str, dict[str, Any]]:
    """Whether the mean of many roundings of the same values is those: z scores in their 99.9 % interval.

    One block, decoded `draws` times; t = 6 where it is rotated, so that nothing is clipped. `mean`: of the scores,
    times the root of their number; `spread`: the sum of their squares less its expectation, over its deviation. Both
    are nearly standard normal.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, params in _unclipped(4):
        block = gradients.homogeneous(1024, 4, 0.5, SEED + 3)
        grads = [x.repeat(draws) for x in block]
        values = schemes.thc_total(params, grads, 0).reshape(draws, 1024).double()
        deviation = values.std(0)
        moving = deviation > 1e-6  # the norm itself is sent exactly where it is the maximum
        error = values.mean(0) - torch.stack(block).double().sum(0)
        scores = error[moving] / (deviation[moving] / math.sqrt(draws))
        mean = float(scores.sum()) / math.sqrt(len(scores))
        student = (draws - 1) / (draws - 3)  # the variance of a score whose deviation is estimated
        spread = (float(scores.square().sum()) / student - len(scores)) / math.sqrt(2 * len(scores))
        inside = abs(mean) < 3.29 and abs(spread) < 3.29
        found[name] = {"mean": round(mean, 2), "spread": round(spread, 2), "inside": inside}
    return found


def _unclipped(n: int) -> list[tuple[str, Params]]:
    rows = []
    for name in ("thc", "thc-uniform", "thc-uniform-max", "terngrad"):
        params = setting(name, n, SEED)
        for rounding in ("stratified", "independent", "shared"):
            changed = dataclasses.replace(params, rounding=rounding, t=6.0 if params.rotate else params.t)
            rows.append((f"{name}, {rounding}", changed))
    return rows


def predictions(measured: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Largest deviation over all n of the model that chooses (g, p) from what was measured: setting -> correlation."""
    worst: dict[str, dict[str, float]] = {}
    for name in ("thc", "thc-paper", "thc-release", "thc-uniform"):
        for c in CORRELATIONS:
            off = [measured[f"c = {c:g}"][name][str(n)] / _predicted(name, n, c) - 1 for n in RANKS]
            worst.setdefault(name, {})[f"c = {c:g}"] = round(max(map(abs, off)), 3)
    return worst


def _predicted(name: str, n: int, correlation: float) -> float:
    params = setting(name, n, SEED)
    return table.predicted_nmse(table.Solution.of(params.table, params.t), n, correlation, params.rounding)


def on_captured(
    progress: Callable[[str], None], folder: Path = gradients.CAPTURED
) -> dict[str, dict[str, float]]:
    """NMSE of the mean on gradients that training has captured: file -> scheme; empty where there are none."""
    found = {}
    for name, grads in gradients.captured(folder):
        progress(f"captured gradients {name}: {len(grads)} ranks, {grads[0].numel()} values")
        rows = schemes.settings(len(grads)) + schemes.baselines()
        found[name] = {row.name: digits(gradients.nmse(row.total(grads, 0), grads)) for row in rows}
    return found
