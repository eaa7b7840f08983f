"""Two lanes on two cores, a dispatcher at full speed, a quiet job beside a noisy one: psc_bench_lanes and its bounds.

What two lanes give is told beside what two cores give to a copy of memory in the same run: neighbours in time, medians
of their ratios. Needs two CPUs. None of this was measured on a NIC.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.lane import huge_pages
from tests.summary import ROOT, commit

OVER_ONE, OVER_COPY = 1.7, 0.92
"""Two lanes over one must reach the first, or the scaling of a copy's the second."""
RANKS, PACKET_BYTES = 4, 4096
MEMORY_MIB = 256


def scaling(one: list[float], both: list[list[float]]) -> list[float]:
    """How many times the rate of one core alone both have together, repetition by repetition. All are times."""
    return [alone / a + alone / b for alone, a, b in zip(one, *both, strict=True)]


def figures_of(output: dict[str, Any]) -> dict[str, Any]:
    """The report's rows, of psc_bench_lanes' samples."""
    lanes = scaling(output["lane_one_ns"], [output[f"lane_two_ns_{i}"] for i in (0, 1)])
    copies = scaling(output["copy_one_ns"], [output[f"copy_two_ns_{i}"] for i in (0, 1)])
    loaded_ns = statistics.median(output["dispatch_rewritten_ns"])
    lane_ns = statistics.median(output["lane_one_ns"])
    return {
        "lane_ns_per_packet": report.spread(output["lane_one_ns"]),
        "lane_ns_per_packet_beside_another": [report.spread(output[f"lane_two_ns_{i}"]) for i in (0, 1)],
        "two_lanes_over_one": report.spread(lanes),
        "two_copies_over_one": report.spread(copies),
        "two_lanes_over_memcpy_scaling": report.spread([a / b for a, b in zip(lanes, copies, strict=True)]),
        "dispatch_ns_per_frame": report.spread(output["dispatch_ns"]),
        "dispatch_ns_per_frame_beside_lanes": report.spread(output["dispatch_beside_ns"]),
        "dispatch_ns_per_frame_loaded": report.spread(output["dispatch_rewritten_ns"]),
        "dispatch_million_frames_per_s": report.spread(output["dispatch_frames_per_us"]),
        "lanes_that_saturate_a_dispatcher": round(lane_ns / loaded_ns, 1),
        "latency_us": {
            name: dict(zip(("p50", "p99", "p99_9"), output[f"{name}_us"], strict=True))
            for name in ("quiet_alone", "quiet_beside", "noisy_beside")
        },
    }


def summary(figures: dict[str, Any]) -> dict[str, float]:
    """The keys of build/bench/summary.json."""
    latency = figures["latency_us"]
    return {
        "two_lanes_over_one": figures["two_lanes_over_one"]["median"],
        "two_lanes_over_memcpy_scaling": figures["two_lanes_over_memcpy_scaling"]["median"],
        "dispatch_ns_per_frame": figures["dispatch_ns_per_frame"]["median"],
        "dispatch_ns_per_frame_loaded": figures["dispatch_ns_per_frame_loaded"]["median"],
        "lanes_that_saturate_a_dispatcher": figures["lanes_that_saturate_a_dispatcher"],
        "quiet_p99_beside_over_alone": round(
            latency["quiet_beside"]["p99"] / latency["quiet_alone"]["p99"], 2
        ),
    }


def missed(keys: dict[str, float]) -> str:
    """What is not kept, with both numbers; nothing: ''."""
    over_one, over_copy = keys["two_lanes_over_one"], keys["two_lanes_over_memcpy_scaling"]
    if over_one >= OVER_ONE or over_copy >= OVER_COPY:
        return ""
    return (
        f"two_lanes_over_one = {over_one} must be >= {OVER_ONE}, or two_lanes_over_memcpy_scaling = {over_copy} >="
        f" {OVER_COPY}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binaries", type=Path, default=ROOT / "build/dpdk_c/bench")
    parser.add_argument("--repetitions", type=int, default=25)
    parser.add_argument("--realtime", action="store_true", help="for a machine that others use, as root")
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two lanes want two CPUs, this process may use one")
    with huge_pages(MEMORY_MIB) as huge:
        command = [str(arguments.binaries / "psc_bench_lanes"), "--repetitions", str(arguments.repetitions)]
        command += ["--memory-mib", str(MEMORY_MIB)]
        command += ["--huge-pages"] * huge + ["--realtime"] * arguments.realtime
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip() or f"psc_bench_lanes ends with {done.returncode}")
    output = json.loads(done.stdout)
    figures = figures_of(output)
    keys = summary(figures)
    facts = {key: output[key] for key in ("variant", "compiler", "huge_pages", "realtime", "repetitions")}
    about = {"machine": report.machine(), "commit": commit(), "ranks": RANKS, "packet_bytes": PACKET_BYTES}
    report.write("lanes", {**about, **facts, **figures, "summary": keys})
    report.summarize(keys)
    print(json.dumps(keys, indent=2))
    if sentence := missed(keys):
        sys.exit(sentence)


if __name__ == "__main__":
    main()
