"""docs/learning.md, its plot and its data, from what `compare` found alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from .compare import SMOOTHED, TARGET_AT
from .runs import CODECS, LEAST_SEEDS, LOSSLESS

BOUND_SD = 1.0
"""Of thc's mean paired gap to float32, in float32's deviations over seeds."""
TITLES = {"cnn": "Fashion-MNIST CNN", "gpt": "character GPT"}


def write(found: dict[str, Any], folder: Path, commit: str) -> None:
    """The page, the plot and the data."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {**found["summary"], "commit": commit, "models": found["models"]}
    (folder / "learning.json").write_text(json.dumps(content, indent=1) + "\n")
    _plot(found["models"], folder / "learning.svg")
    (folder / "learning.md").write_text(_page(found, commit))


def table(model: dict[str, Any]) -> str:
    """A line for each codec."""
    head = [
        "codec",
        "seeds",
        "loss",
        "minus f32's",
        "95 % interval",
        "in f32's deviations",
        "steps",
        "over f32's",
        "bits up",
        "bits down",
        "NMSE",
    ]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for codec in ordered(model):
        row = model["codecs"][codec]
        f32 = codec == "f32"
        between = f"{_cell(row['gap_low'], '+.4f')} to {_cell(row['gap_high'], '+.4f')}"
        lines.append(
            [
                codec,
                str(row["seeds"]),
                _cell(row["loss"], ".4f"),
                "" if f32 else _cell(row["gap"], "+.4f"),
                "" if f32 or row["seeds"] < 2 else between,
                "" if f32 else _cell(row["gap_sd"], "+.2f"),
                _steps(row),
                "" if f32 else _cell(row["steps_ratio"], ".3f"),
                _cell(row["bits_up"], ".2f"),
                _cell(row["bits_down"], ".2f"),
                _cell(row["nmse"], ".2g"),
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ordered(model: dict[str, Any]) -> list[str]:
    """The codecs that there are."""
    return [codec for codec in CODECS if codec in model["codecs"]]


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _steps(row: dict[str, Any]) -> str:
    """The median, and how many runs count as endless in it."""
    shown = _cell(row["steps"], ".0f")
    return f"{shown} ({row['never_reached']} never)" if row["never_reached"] else shown


def lines(found: dict[str, Any]) -> str:
    """For the terminal."""
    return "\n\n".join(f"{TITLES[name]}\n{table(model)}" for name, model in found["models"].items())


def _few(found: dict[str, Any]) -> str:
    """What a reader must know first, where it is so."""
    fewest = min(
        model["codecs"].get(codec, {"seeds": 0})["seeds"]
        for model in found["models"].values()
        for codec in CODECS
        if codec not in LOSSLESS
    )
    if fewest >= LEAST_SEEDS:
        return ""
    return (
        f"**Not complete**: some codec has {fewest} seeds, of {LEAST_SEEDS} that a statement needs; the tables say how "
        "many each has. `make learning` goes on from here.\n\n"
    )


def _exact(model: dict[str, Any]) -> str:
    """What has been seen of codecs that lose nothing."""
    said = [
        f"{codec}'s losses are {one['as']}'s in every bit, at each validation of {one['equal']} of {one['seeds']} seeds"
        for codec, one in model["exact"].items()
    ]
    return f"\n{'; '.join(said)}.\n" if said else ""


def _sources(found: dict[str, Any], commit: str) -> str:
    """Rows of earlier sources, by name."""
    rows = [row for model in found["models"].values() for row in model["codecs"].items()]
    earlier: dict[str, list[str]] = {}
    for codec, row in rows:
        for one in row["sources"]:
            if one != commit[:12] and codec not in earlier.setdefault(one, []):
                earlier[one].append(codec)
    return "".join(
        f" Runs of {', '.join(codecs)} are of commit {one}, since when these codecs have not changed."
        for one, codecs in earlier.items()
    )


def _page(found: dict[str, Any], commit: str) -> str:
    sections = []
    for name, model in found["models"].items():
        sections.append(f"""## {TITLES[name][0].upper()}{TITLES[name][1:]}

{model["parameters"]:,} parameters, {model["workers"]} workers, {model["steps"]} steps up to the last validation.
float32's final loss has a standard deviation of {model["f32_sd"]} over its seeds. Steps: to a loss of
{model["target"]}, the median of float32's at {TARGET_AT:.0%} of its training.

{table(model)}
{_exact(model)}""")
    gap, ratio = (found["summary"][key] for key in ("thc_loss_gap_sd", "thc_steps_ratio"))
    return f"""# Learning with the codecs

Written by `make learning` from sources of commit {commit[:12]}; the data are in [learning.json](learning.json), what
runs is in `tests/learning`.{_sources(found, commit)}

{_few(found)}Each run is one DDP job through the real hook, over the emulated link: an appliance's sums bit for bit, at
no speed that says anything. All codecs have their default settings, with error feedback where they profit from it. A
seed fixes initial weights and batches, so every codec is compared with float32 *at the same seed*; the interval is
Student's, of the mean of these differences. Losses are validation losses in nats, each the mean of the last {SMOOTHED}
validations. Models, steps and learning rates were chosen by what float32
learns (`tests/learning/tasks.py`). NMSE is of a rank's own encodings.

thc, worst of the models, {found["summary"]["seeds"]} seeds: the final loss is {_cell(gap, "+.2f")} of float32's
standard deviations above float32's (bound: {BOUND_SD:g}); it takes {_cell(ratio, ".3f")} times float32's steps.

{chr(10).join(sections)}
![Validation loss by step, and the final difference to float32](learning.svg)
"""


def _plot(models: dict[str, Any], path: Path) -> None:
    plt.switch_backend("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "pascaline"  # the same data give the same file
    figure, axes = plt.subplots(len(models), 2, figsize=(12, 4.2 * len(models)), squeeze=False)
    for (left, right), (name, model) in zip(axes, models.items(), strict=True):
        _plot_curves(left, model, TITLES[name])
        _plot_gaps(right, model)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _plot_curves(axis: Any, model: dict[str, Any], title: str) -> None:
    for codec in ordered(model):
        curve = model["curves"][codec]
        losses = [float("nan") if loss is None else loss for loss in curve["loss"]]
        axis.plot(curve["step"], losses, label=codec, color=f"C{CODECS.index(codec)}", linewidth=1.2)
    final = model["codecs"]["f32"]["loss"]
    axis.axhline(model["target"], color="black", linewidth=0.6, linestyle=":")
    axis.set(title=title, xlabel="step", ylabel="validation loss", ylim=(0.95 * final, 1.8 * final))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _plot_gaps(axis: Any, model: dict[str, Any]) -> None:
    """Mean and 95 % interval, in float32's deviations; the band is the bound."""
    deviation = model["f32_sd"]
    shown = [codec for codec in ordered(model) if codec != "f32"]
    for place, codec in enumerate(shown):
        row = model["codecs"][codec]
        if row["gap"] is None:
            continue
        axis.plot(row["gap"] / deviation, place, "o", color=f"C{CODECS.index(codec)}")
        if row["gap_low"] is not None:
            ends = [row["gap_low"] / deviation, row["gap_high"] / deviation]
            axis.plot(ends, [place, place], color=f"C{CODECS.index(codec)}")
    axis.axvspan(-BOUND_SD, BOUND_SD, color="black", alpha=0.06)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(shown)), [f"{codec} ({model['codecs'][codec]['seeds']})" for codec in shown])
    axis.invert_yaxis()
    axis.set(title="final loss minus f32's", xlabel="standard deviations of f32 over seeds (seeds compared)")
    axis.grid(alpha=0.3, axis="x")
