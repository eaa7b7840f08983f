"""From the runs' records to what is reported: paired differences to float32, and steps to its loss. Pure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from .runs import EXACT

SMOOTHED = 5
"""Validations that a smoothed loss is the mean of: the one at a step and those before it."""
TARGET_AT = 0.8
"""Of float32's training: the point whose median loss the others are timed to."""
Record = dict[str, Any]


def number(value: float) -> float | None:
    """Four significant digits; JSON has no infinity."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def smoothed(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the smoothed validation loss there; infinite from where it was not finite."""
    steps = np.array([int(step) for step in record["losses"]], float)
    losses = np.array([math.inf if loss is None else loss for loss in record["losses"].values()])
    means = np.array([losses[max(0, i + 1 - SMOOTHED) : i + 1].mean() for i in range(len(losses))])
    return steps, means


def final(record: Record) -> float:
    """Smoothed validation loss at the end."""
    return float(smoothed(record)[1][-1])


def at_share(record: Record, share: float) -> float:
    """Smoothed validation loss at this share of the training."""
    steps, losses = smoothed(record)
    return float(np.interp(share * steps[-1], steps, losses))


def steps_to(record: Record, target: float) -> float:
    """First step at which the smoothed loss is at most `target`, by straight lines between validations; or infinity."""
    steps, losses = smoothed(record)
    reached = np.flatnonzero(losses <= target)
    if not reached.size:
        return math.inf
    i = reached[0]
    if i == 0 or not math.isfinite(losses[i - 1]):
        return float(steps[i])
    share = (losses[i - 1] - target) / (losses[i - 1] - losses[i])
    return float(steps[i - 1] + share * (steps[i] - steps[i - 1]))


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Student's 95 % interval of their mean; endless for a single one."""
    n, mean = len(differences), float(differences.mean())
    if n < 2 or not math.isfinite(mean):
        return -math.inf, math.inf
    half = float(stats.t.ppf(0.975, n - 1) * differences.std(ddof=1) / math.sqrt(n))
    return mean - half, mean + half


def row(own: dict[int, Record], f32: dict[int, Record], target: float, deviation: float) -> dict[str, Any]:
    """One codec of one model, over the seeds that f32 has too."""
    seeds = sorted(own.keys() & f32.keys())
    finals = np.array([final(own[seed]) for seed in seeds])
    gaps = finals - np.array([final(f32[seed]) for seed in seeds])
    low, high = interval(gaps)
    mine = [steps_to(own[seed], target) for seed in seeds]
    theirs = float(np.median([steps_to(f32[seed], target) for seed in seeds]))
    return {
        "seeds": len(seeds),
        "loss": number(float(finals.mean())),
        "gap": number(float(gaps.mean())),
        "gap_low": number(low),
        "gap_high": number(high),
        "gap_sd": number(float(gaps.mean()) / deviation) if deviation else None,
        "steps": number(float(np.median(mine))),
        "steps_ratio": number(float(np.median(mine)) / theirs),
        "never_reached": sum(not math.isfinite(steps) for steps in mine),
        "bits_up": number(float(np.mean([own[seed]["bits_up"] for seed in seeds]))),
        "bits_down": number(float(np.mean([own[seed]["bits_down"] for seed in seeds]))),
        "nmse": number(float(np.mean([own[seed]["nmse"] or 0.0 for seed in seeds]))),
        "sources": sorted({own[seed]["setting"]["sources"][:12] for seed in seeds}),
    }


def equal(own: dict[int, Record], other: dict[int, Record]) -> dict[str, int]:
    """How many seeds both have, and in how many of them every validation's loss is the same in all bits."""
    seeds = own.keys() & other.keys()
    return {"seeds": len(seeds), "equal": sum(own[seed]["losses"] == other[seed]["losses"] for seed in seeds)}


def curve(own: dict[int, Record]) -> dict[str, list[float | None]]:
    """Mean over the seeds of the smoothed validation loss."""
    steps = smoothed(next(iter(own.values())))[0]
    means = np.mean([smoothed(record)[1] for record in own.values()], axis=0)
    return {"step": steps.tolist(), "loss": [number(float(loss)) for loss in means]}


def model(records: list[Record]) -> dict[str, Any] | None:
    """One model, all codecs; None before float32 has two seeds."""
    by_codec: dict[str, dict[int, Record]] = {}
    for record in records:
        by_codec.setdefault(record["codec"], {})[record["seed"]] = record
    f32 = by_codec.get("f32", {})
    if len(f32) < 2:
        return None
    deviation = float(np.std([final(record) for record in f32.values()], ddof=1))
    target = float(np.median([at_share(record, TARGET_AT) for record in f32.values()]))
    codecs = {codec: own for codec, own in by_codec.items() if own.keys() & f32.keys()}
    first = next(iter(f32.values()))
    return {
        "parameters": first["parameters"],
        "workers": first["setting"]["workers"],
        "steps": max(map(int, first["losses"])),  # of the last validation
        "f32_sd": number(deviation),
        "target": number(target),
        "codecs": {codec: row(own, f32, target, deviation) for codec, own in codecs.items()},
        "exact": {
            codec: {"as": other, **equal(codecs[codec], codecs[other])}
            for codec, other in EXACT.items()
            if codecs.keys() >= {codec, other}
        },
        "curves": {codec: curve(own) for codec, own in codecs.items()},
    }


def summarise(records: list[Record]) -> dict[str, Any]:
    """`models`: name -> model(); `summary`: the worst of the models, and the least number of seeds behind it."""
    models = {}
    for name in dict.fromkeys(record["model"] for record in records):
        if found := model([record for record in records if record["model"] == name]):
            models[name] = found
    rows = [found["codecs"].get("thc") for found in models.values()]
    summary: dict[str, Any] = {"thc_loss_gap_sd": None, "thc_steps_ratio": None, "seeds": 0}
    present = [one for one in rows if one]
    if present and len(present) == len({record["model"] for record in records}):
        summary["seeds"] = min(one["seeds"] for one in present)
        for key, column in (("thc_loss_gap_sd", "gap_sd"), ("thc_steps_ratio", "steps_ratio")):
            values = [one[column] for one in present]
            summary[key] = None if None in values else max(values)
    return {"models": models, "summary": summary}
