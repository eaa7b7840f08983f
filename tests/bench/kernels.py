"""The data plane's kernels, op by op and variant by variant, against memcpy in calls of 4 KiB and against reading.

dpdk_c/bench/kernels.c measures: payloads that lie as in an mbuf, working sets in L1, L2, L3 and memory, each repetition
between two copies. Here the variants take turns, ratios are made repetition by repetition, and their medians are the
result: build/bench/kernels.json. Nothing here was measured on a NIC.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from tests.bench import report
from tests.summary import ROOT, commit

BINARY = ROOT / "build/dpdk_c/bench/psc_bench_kernels"
VARIANTS = (("avx512", "vpclmul"), ("avx2", "pclmul"), ("scalar", "slicing"))
"""Of the ops and of the CRC."""
TURNS = 4
"""How often each variant comes: a machine that drifts meanwhile drifts for all."""
LEVELS = ("L1", "L2", "L3", "DRAM")
Key = tuple[str, str, int, str]
"""Work, op, values in a pass, level."""


def measured(variant: tuple[str, str], repetitions: int) -> dict[str, Any] | None:
    """What one run prints; None if this CPU does not run the variant."""
    environment = {**os.environ, "PASCALINE_ARITH": variant[0], "PASCALINE_CRC": variant[1]}
    run = subprocess.run(
        [BINARY, str(repetitions)], env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode == 2:
        return None
    run.check_returncode()
    printed: dict[str, Any] = json.loads(run.stdout)
    return printed


def joined(runs: list[dict[str, Any]]) -> dict[Key, dict[str, list[float]]]:
    """The repetitions of all runs of a variant, by what they measured."""
    found: dict[Key, dict[str, list[float]]] = {}
    for run in runs:
        for row in run["rows"]:
            key = (row["work"], row["op"], row["values"], row["level"])
            one = found.setdefault(key, {"ns": [], "memcpy_ns": []})
            one["ns"] += row["ns"]
            one["memcpy_ns"] += row["memcpy_ns"]
    return found


def rows(variant: tuple[str, str], found: dict[Key, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Medians and quartiles; over_memcpy and over_read are speeds: 1 is as fast."""
    made = []
    for (work, op, values, level), one in found.items():
        read_ns = statistics.median(found["read", "", 1, level]["ns"])
        ratios = [copy / own for own, copy in zip(one["ns"], one["memcpy_ns"], strict=True)]
        made.append(
            {
                "arith": variant[0],
                "crc": variant[1],
                "work": work,
                "op": op,
                "values": values,
                "level": level,
                "ns_of_4_kib": report.spread(one["ns"]),
                "over_memcpy": report.spread(ratios),
                "over_read": round(read_ns / statistics.median(one["ns"]), 4),
            }
        )
    return made


def show(made: list[dict[str, Any]]) -> None:
    """The table for people: ns of one packet, and memcpy's time divided by it."""
    titles = "".join(f"{level:>16}" for level in LEVELS)
    print(f"{'variants':16} {'work':16} {'op':9} {'values':>6} {titles}   ns of 4 KiB (speed over memcpy's)")
    by_line: dict[tuple[str, ...], dict[str, str]] = {}
    for row in made:
        line = (f"{row['arith']} {row['crc']}", row["work"], row["op"], str(row["values"]))
        cell = f"{row['ns_of_4_kib']['median']:.0f} ({row['over_memcpy']['median']:.2f})"
        by_line.setdefault(line, {})[row["level"]] = cell
    for (variant, work, op, values), cells in by_line.items():
        numbers = "".join(f"{cells[level]:>16}" for level in LEVELS)
        print(f"{variant:16} {work:16} {op:9} {values:>6} {numbers}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15, help=f"of each of {TURNS} turns")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(TURNS):
        for variant in VARIANTS:
            if (run := measured(variant, options.repetitions)) is not None:
                runs.setdefault(variant, []).append(run)
    if not runs:
        sys.exit(f"{BINARY} runs none of {VARIANTS}")
    made = [row for variant, of_it in runs.items() for row in rows(variant, joined(of_it))]
    first = next(iter(runs.values()))[0]
    path = report.write(
        "kernels",
        {
            "machine": report.machine(),
            "compiler": first["compiler"],
            "commit": commit(),
            "note": "not measured on a NIC",
            "clock": "CPU time of one thread",
            "repetitions": TURNS * options.repetitions,
            "packet_bytes": first["packet_bytes"],
            "working_set_bytes": first["working_sets"],
            "load_average": [load_before, os.getloadavg()[0]],
            "rows": made,
        },
    )
    show(made)
    print(f"written to {path}; not measured on a NIC")


if __name__ == "__main__":
    main()
