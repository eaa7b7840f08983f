"""`make numerics`: measures codecs, writes docs/numerics.* and build/numerics/summary.json, fails on a missed bound."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from . import gradients, lhc_report, measure, report, schemes, sparse_report

ROOT = Path(__file__).parents[2]
N = 8
BOUNDS = {
    "thc_nmse_ratio_c0_n8": ("c = 0", 0.68),
    "thc_nmse_ratio_c05_n8": ("c = 0.5", 0.55),
    "thc_nmse_ratio_c1_n8": ("c = 1", 0.35),
    "thc_nmse_ratio_layers_c0_n8": ("layers, c = 0", 0.10),
    "thc_nmse_ratio_layers_c05_n8": ("layers, c = 0.5", 0.10),
}
"""Key of the summary: column of the table, and the most that thc's NMSE may be of thc-paper's."""
BEGIN = time.monotonic()


def progress(line: str) -> None:
    """What is being done, and since when."""
    print(f"{time.monotonic() - BEGIN:6.1f} s  {line}", flush=True)


def measured() -> dict[str, Any]:
    """All the data of the page."""
    data: dict[str, Any] = {"n": N}
    progress("schemes")
    data["schemes"] = measure.errors(schemes.settings(N) + schemes.baselines(), N)
    data["widths"] = measure.errors(schemes.widths(N), N)
    progress("switches")
    data["switches"] = measure.errors(schemes.switches(N), N)
    for name, value in measure.repeated(schemes.switches(N), N).items():
        data["switches"][name]["c = 1, 16 steps"] = value
    progress("bias")
    data["unbiased"] = measure.unbiased()
    data["slopes"] = measure.slopes(N)
    progress("number of ranks")
    data["by_ranks"] = measure.by_ranks()
    data["prediction"] = measure.predictions(data["by_ranks"])
    rows = data["schemes"]
    data["ratios"] = {
        key: round(rows["thc"][column] / rows["thc-paper"][column], 4) for key, (column, _) in BOUNDS.items()
    }
    data["bounds"] = {key: bound for key, (_, bound) in BOUNDS.items()}
    return data


def main() -> int:
    """0 if every bound is kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.numerics", description=__doc__)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the page, plots and data go")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "numerics", help="where summary.json goes"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = measured()
    options.docs.mkdir(parents=True, exist_ok=True)
    (options.docs / "numerics.json").write_text(json.dumps(data, indent=1) + "\n")
    report.write(data, options.docs)
    sparse = sparse_report.measured(progress)
    sparse_report.write(sparse, options.docs)
    lhc = lhc_report.measured(progress)
    lhc_report.write(lhc, options.docs)
    data["lossless"] = {
        "keys": sparse["keys"] | lhc["keys"],
        "missed": sparse_report.missed(sparse["keys"]) + lhc_report.missed(lhc),
    }
    captured = measure.on_captured(progress)
    if captured:
        (options.docs / "numerics-captured.json").write_text(json.dumps(captured, indent=1) + "\n")
        print(report.table(captured, "captured gradients"))
    else:
        print(
            f"no captured gradients: {gradients.CAPTURED.relative_to(ROOT)} has none; training leaves them there"
        )
    return verdict(data, options.out)


def verdict(data: dict[str, Any], folder: Path) -> int:
    """Write the summary, say what was missed."""
    unbiased = all(row["inside"] for row in data["unbiased"].values())
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lossless = data.get("lossless", {"keys": {}, "missed": []})
    summary = data["ratios"] | {"rounding_unbiased": unbiased} | lossless["keys"]
    summary["commit"] = commit.stdout.strip()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    missed = [
        f"{key} is {value}, above its bound of {data['bounds'][key]}"
        for key, value in data["ratios"].items()
        if not value <= data["bounds"][key]
    ]
    missed += [
        f"rounding is biased: {name}, {row}" for name, row in data["unbiased"].items() if not row["inside"]
    ]
    missed += lossless["missed"]
    print(report.table({key: {"": value} for key, value in summary.items()}, "summary"))
    print("\n".join(missed) or "every bound is kept")
    progress("done")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
