"""docs/sparse-numerics.md, its data and its plot; the keys of the summary and their bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from . import ratings, sparse, sparse_models
from .report import table

Data = dict[str, Any]
BOUNDS: dict[str, tuple[str, float]] = {
    "sparse_trials": (">=", 2000),
    "sparse_inexact": ("<=", 0),
    "sparse_over_formula_max": ("<=", 1.02),
    "sparse_over_lhc_bytes_max": ("<=", 1.0),
    "sparse_over_dense_bytes_max": ("<=", 1.05),
    "sparse_over_blocks_bytes": ("<=", 0.999),
    "sparse_one_phase_over_formula_max": ("<=", 1.02),
    "sparse_one_phase_over_lhc_bytes_max": ("<=", 1.0),
    "sparse_one_phase_over_dense_bytes_max": ("<=", 1.05),
    "sparse_one_phase_over_blocks_bytes": ("<=", 0.999),
}
"""Key of the summary: the least or the most that it may be."""
SHOWN = (
    "sparse",
    "one phase",
    "dense",
    "pairs",
    "blocks of 256",
    "LHC, 1.23",
    "1/8 + 4 rho",
    "entropy bound",
)


def measured(progress: Callable[[str], None]) -> Data:
    """All that the page says."""
    data: Data = {"sweep": sparse.sweep(progress)}
    progress("sparse: models")
    data["models"] = sparse_models.measured()
    progress("sparse: trials")
    data["keys"] = {
        **sparse.exactness(),
        **sparse.ratios(data["sweep"]),
        "sparse_over_blocks_bytes": sparse_models.over_blocks(data["models"]),
        "sparse_one_phase_over_blocks_bytes": sparse_models.over_blocks(data["models"], "one phase"),
    }
    return data


def missed(keys: dict[str, float]) -> list[str]:
    """A sentence for each bound that is not kept."""
    found = []
    for key, (relation, bound) in BOUNDS.items():
        kept = keys[key] >= bound if relation == ">=" else keys[key] <= bound
        if not kept:
            found.append(f"{key} is {keys[key]}, not {relation} {bound}")
    return found


def write(data: Data, folder: Path) -> None:
    """Page, data and plot."""
    plt.switch_backend("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "pascaline"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sparse-numerics.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / "sparse-numerics.md").write_text(_page(data))
    _plot(data, folder / "sparse-density.svg")


def _page(data: Data) -> str:
    keys = {
        key: {"measured": data["keys"][key], "bound": f"{relation} {bound:g}"}
        for key, (relation, bound) in BOUNDS.items()
    }
    sweep = "\n\n".join(
        f"Supports {kind}:\n\n{table({str(row['k']): _shown(row) for row in rows}, 'k')}"
        for kind, rows in data["sweep"].items()
    )
    return f"""# What sparse sends

Written by `make numerics`; the data are in [sparse-numerics.json](sparse-numerics.json), the measurements in
`tests/numerics/sparse*.py`. [sparse.md](sparse.md) is the codec.

{table(keys, "key")}

A trial is one tensor on 1 to 64 ranks, in two phases or in one: every length from 1 to 2,100, and longer ones, of every
support; its sum is compared with the dense codec's, `fixed32` in every bit, `f32` in every bit but the sign of a zero.

## By density

Bytes for each element, up and down together ({sparse.SWEEP_ELEMS} elements, {sparse.SWEEP_RANKS} ranks, chunks of 1
MiB). k: density of one rank's support, rho: of the union. `sparse` is what its messages have in two phases, `one phase`
in one; the others are formulas at the same supports: pairs 8 k up and 8 rho down; blocks (as OmniReduce) those that are
not all zero with a number each, own ones up and the union's down; LHC a bitmap and 1.23 buckets of 4 bytes for each
element of the union; the entropy bound the index's entropy and 4 bytes for each value, own ones up. *rows*: 64
neighbours together. *halves*: two ranks with half of the elements each, the worst case of two phases. *in each
sub-block*, *all in one*: of 2048 neighbours, other elements on each rank.

![Bytes by density](sparse-density.svg)

{sweep}

(index, value) pairs are smaller below k = 1/100 with identical supports and k = 1/30 with independent ones, since
what is sent up is a rank's own support and not the union. They save at most {_pairs_save(data):.1%} of dense's bytes:
not built.

## Models

The same with the headers of RoCEv2 frames at an MTU of 4096, in every way. The recommender (neural collaborative
filtering, four workers with {sparse_models.BATCH} ratings each) has its gradients as they are: of MovieLens's "latest
small" (671 users, 9,066 films), of InstEval (2,972 students, 1,128 lecturers), and of drawn ratings for larger tables
({ratings.DRAWN_USERS:,} users, {ratings.DRAWN_ITEMS:,} items); `tests/numerics/ratings.py` says where they come from.
The others are captured gradients of four workers behind top-k, one step, no residual from earlier ones.

{table({name: _shown(row) for name, row in data["models"].items()}, "model")}

Rows that one rank alone has touched travel up from all ranks in the union in two phases: there blocks of 32, which
send a rank's own alone, are smaller. One phase sends a rank's own alone too, but its bitmap covers 2048 elements
wherever one row of 64 is. Behind top-k nothing is in blocks.
"""


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "k"}


def _pairs_save(data: Data) -> float:
    rows = [row for kind in data["sweep"].values() for row in kind]
    return max((row["sparse"] - row["pairs"]) / row["dense"] for row in rows)


def _plot(data: Data, path: Path) -> None:
    kinds = [kind for kind, rows in data["sweep"].items() if len(rows) > 1]
    figure, axes = plt.subplots(1, len(kinds), figsize=(15, 4.5), sharey=True, layout="constrained")
    for axis, kind in zip(axes, kinds, strict=True):
        rows = [row for row in data["sweep"][kind] if row["k"] > 0]
        for way in SHOWN:
            axis.plot(
                [row["k"] for row in rows],
                [row[way] for row in rows],
                label=way,
                linewidth=2.5 if way == "sparse" else 1,
                linestyle="--" if way in ("1/8 + 4 rho", "entropy bound") else "-",
            )
        axis.set(title=f"supports {kind}", xlabel="density of one rank's support", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("bytes for each element, up and down")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SHOWN), fontsize=8
    )
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
