"""What `make numerics` keeps of lhc's measurements: keys, bounds, docs/lhc.json and the plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from . import lhc
from .lhc import Progress

Data = dict[str, Any]
BOUNDS = {"lhc_trials": 2000, "lhc_repairs": 200, "lhc_inexact": 0}
"""At least so many; but inexact, at most."""
ADVERSARIAL, ONE_PHASE = 50, 500
"""Trials, at least."""


def measured(progress: Progress) -> Data:
    """Everything but the long target's."""
    exactness = lhc.exactness(progress)
    return {
        "keys": {f"lhc_{key}": exactness[key] for key in ("trials", "repairs", "inexact")},
        "exactness": exactness,
        "margins": lhc.margins(progress),
        "recovery": lhc.recovery(lhc.SIZES, 10, progress),
        "loads": list(lhc.LOADS),
        "curves": lhc.curves(progress),
        "threshold": round(lhc.threshold(), 4),
    }


def missed(data: Data) -> list[str]:
    """A sentence for each bound that is not kept."""
    keys = data["keys"]
    said = [
        f"{key} is {keys[key]}, below {least}"
        for key, least in BOUNDS.items()
        if key != "lhc_inexact" and keys[key] < least
    ]
    if keys["lhc_inexact"] > BOUNDS["lhc_inexact"]:
        said.append(f"lhc_inexact is {keys['lhc_inexact']}: that many sums were not the dense ones")
    if data["exactness"]["adversarial"] < ADVERSARIAL:
        said.append(f"lhc has had {data['exactness']['adversarial']} adversarial trials, below {ADVERSARIAL}")
    if data["exactness"]["one_phase"] < ONE_PHASE:
        said.append(f"lhc has had {data['exactness']['one_phase']} trials in one phase, below {ONE_PHASE}")
    return said


def write(data: Data, folder: Path) -> None:
    """docs/lhc.json, with what the long target has left there, and the plot."""
    path = folder / "lhc.json"
    known: Data = json.loads(path.read_text()) if path.exists() else {}
    kept = {key: known[key] for key in ("long", "long recovery") if key in known}
    path.write_text(json.dumps(data | kept, indent=1) + "\n")
    _plot(data, folder / "lhc-recovery.svg")


def _plot(data: Data, path: Path) -> None:
    plt.switch_backend("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "pascaline"  # the same data give the same file
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for name, curve in data["curves"].items():
        style = "--" if "paper" in name else "-"
        axes[0].plot(data["loads"], curve["whole"], style, marker="o", markersize=3, label=name)
        axes[1].plot(data["loads"], curve["unpeeled"], style, marker="o", markersize=3, label=name)
    for axis in axes:
        axis.axvline(1 / 1.3, color="grey", linewidth=0.8)
        axis.axvline(data["threshold"], color="grey", linewidth=0.8, linestyle=":")
        axis.set(xlabel="load: elements of the union for each bucket")
    axes[0].set(title="share of hashes by which all peels")
    axes[1].set(title="mean share of elements that do not peel", yscale="symlog")
    axes[1].set_yscale("symlog", linthresh=1e-6)
    axes[0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
