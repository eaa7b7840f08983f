"""docs/numerics.md and its plots, from the data alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

Data = dict[str, Any]
SHOWN = ("thc", "thc-paper", "thc-release", "thc-uniform", "thc-uniform-max", "terngrad", "top-k 1/8")
"""Schemes of the plot over n; f16 and bf16 lie far below."""


def write(data: Data, folder: Path) -> None:
    """The page and both plots."""
    plt.switch_backend("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "pascaline"  # the same data give the same file
    _plot_ranks(data, folder / "numerics-ranks.svg")
    _plot_switches(data, folder / "numerics-switches.svg")
    (folder / "numerics.md").write_text(_page(data))


def table(rows: dict[str, dict[str, Any]], first: str) -> str:
    """A Markdown table: one line for each key."""
    columns = list(next(iter(rows.values())))
    lines = [[first, *columns], ["---"] + ["---:"] * len(columns)]
    lines += [[name, *(_cell(row[column]) for column in columns)] for name, row in rows.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _ratios(rows: dict[str, dict[str, float]], to: dict[str, float]) -> dict[str, dict[str, float]]:
    columns = [column for column in to if "bits" not in column]
    return {name: {column: row[column] / to[column] for column in columns} for name, row in rows.items()}


def _page(data: Data) -> str:
    n = data["n"]
    paper = data["schemes"]["thc-paper"]
    bounds = {
        key: {"measured": value, "bound": data["bounds"][key], "reached": value <= data["bounds"][key]}
        for key, value in data["ratios"].items()
    }
    return f"""# Numerics of the codecs

Written by `make numerics`; the data are in [numerics.json](numerics.json), the measurements in `tests/numerics`. NMSE
is the squared error of the decoded mean over the squared mean. Rank i's gradient is sqrt(c) * common + sqrt(1-c) * own,
standard normal; *layers* multiplies each of 32 layers of 4096 values by its own scale, from 0.1 to 10. No error
feedback: one round. {n} ranks, unless a table says otherwise.

## Against the paper

{table(bounds, "NMSE over thc-paper's")}

## Schemes

NMSE of the mean. Bits for each coordinate, one way, scales included.

{table(data["schemes"], "scheme")}

As ratios to `thc-paper`:

{table(_ratios(data["schemes"], paper), "scheme")}

Other widths, and (g, p) chosen for a correlation that is known:

{table(data["widths"], "setting")}

![NMSE of the mean by number of ranks](numerics-ranks.svg)

## Switches

Each row has one part as the paper has it. NMSE of the mean; in the last column that of the average over 16 steps of the
same gradients (c = 1): what one rotation for the whole job clips once, it clips every time.

{table(data["switches"], "switched")}

![Ratio to everything on](numerics-switches.svg)

## Bias

Rounding, 256 draws of one block with nothing clipped: z scores of the mean error and of its spread over coordinates;
the 99.9 % interval is 3.29 to either side.

{table(data["unbiased"], "setting, rounding")}

Clipping shrinks. Slope of the decoded on the exact sum, end to end (c = 0.5); `debias` is 1/(1-p):

{table(data["slopes"], "setting")}

## The model

`table.predicted_nmse` chooses (g, p). Its largest relative deviation from what was measured, n = 1 to 64:

{table(data["prediction"], "setting")}

With c = 1 and many ranks the error is what clipping takes, from a few hundred values here; and clipping takes 3 to 6 %
less than the model says, since a block of 1024 has a fixed norm and so lighter tails than normal ones.
"""


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _plot_ranks(data: Data, path: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.5), sharey=True, layout="constrained")
    for axis, (title, rows) in zip(axes, data["by_ranks"].items(), strict=True):
        for name in SHOWN:
            row = rows[name]
            axis.plot([int(n) for n in row], list(row.values()), marker="o", markersize=3, label=name)
        axis.set(title=title, xlabel="ranks", xscale="log", yscale="log", xticks=[1, 2, 4, 8, 16, 32, 64])
        axis.xaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("NMSE of the mean")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SHOWN), fontsize=8
    )
    _save(figure, path)


def _plot_switches(data: Data, path: Path) -> None:
    rows = data["switches"]
    base = rows["everything on"]
    columns = [column for column in base if "bits" not in column]
    figure, axis = plt.subplots(figsize=(11, 4.2), layout="constrained")
    others = [name for name in rows if name != "everything on"]
    width = 0.8 / len(others)
    for i, name in enumerate(others):
        places = [j + (i - (len(others) - 1) / 2) * width for j in range(len(columns))]
        axis.bar(places, [rows[name][column] / base[column] for column in columns], width, label=name)
    axis.set_xticks(range(len(columns)), columns)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set(yscale="log", ylabel="NMSE over everything on")
    axis.legend(fontsize=8)
    _save(figure, path)
