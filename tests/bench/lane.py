"""One lane without wire and NIC: psc_bench_lane's cases, and the bounds that its figures must keep.

A lane is fed on its own core by N workers whose frames were built beforehand; building, checking and acknowledging
results is timed beside the lane's turns and not counted. Every ratio is one of neighbours in one interleaved run, and
the medians of these ratios are the result. None of this was measured on a NIC.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import counters, report
from tests.summary import ROOT, commit

OPS = {
    "sum_i32": 1,
    "sum_f32": 2,
    "max_f32": 3,
    "sum_f16": 4,
    "sum_bf16": 5,
    "lut4_u8": 6,
    "lut4_u16": 7,
    "lut2_u8": 8,
    "lut2_u16": 9,
    "lut8_u16": 10,
    "or_u32": 11,
    "expand_sum_i32": 12,
    "expand_sum_f32": 13,
}
STREAMS = ("expand_sum_i32", "expand_sum_f32")
"""Their contributions are streams of sub-blocks, as long as what is there (docs/expand-sum.md)."""
EXPANSIONS = {
    "sum_f16": 2,
    "sum_bf16": 2,
    "lut4_u8": 2,
    "lut4_u16": 4,
    "lut2_u8": 4,
    "lut2_u16": 8,
    "lut8_u16": 2,
}
WINDOW, CHUNK_BYTES, BURST = 4, 65536, 64
"""The chunk is what an appliance derives from 1 MiB of L2."""
STREAM_CHUNK_BYTES = 65536
"""An appliance's default: streams are a few packets of it."""
HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
MEMORY_MIB = 192
PAUSES_US = (0, 10, 50, 200)
"""Values of idle_sleep_us whose cost is measured."""

MUST = {
    "lane_int32_over_memcpy": (">=", 0.45),
    "lane_f32_over_int32_pps": (">=", 0.95),
    "lane_thc_over_int32_coords": (">=", 4.5),
    "lane_1k_over_4k_bytes": (">=", 0.30),
    "counters_cost": ("<=", 1.01),
}
"""The last four count only where the first is met."""


@dataclass(frozen=True)
class Case:
    """One job on the lane.

    `packets`: of a contribution, of a stream those of its slot; `lag`: packets that each rank is behind the one before
    it; `density`: percent of a stream's elements that are there; `shared`: the same ones on all ranks.
    """

    name: str
    op: str = "sum_i32"
    ranks: int = 4
    mtu: int = 4096
    window: int = WINDOW
    packets: int = 16
    lag: int = 0
    burst: int = BURST
    density: int = 0
    shared: bool = False

    def argument(self) -> str:
        """As psc_bench_lane wants it."""
        numbers = [OPS[self.op], self.ranks, self.mtu, self.window, self.packets, self.lag, self.burst]
        return ",".join([self.name, *map(str, [*numbers, self.density, int(self.shared)])])


def filled(name: str, op: str = "sum_i32", mtu: int = 4096) -> Case:
    """Its result fills a slot."""
    return Case(name, op, mtu=mtu, packets=CHUNK_BYTES // (mtu * EXPANSIONS.get(op, 1)))


def stream(op: str, ranks: int, density: int, shared: bool = False) -> Case:
    """At 4 KiB: streams with as many elements as a slot takes."""
    name = f"{op.removeprefix('expand_sum_')}_{ranks}_{density}%{'_shared' if shared else ''}"
    return Case(name, op, ranks, packets=STREAM_CHUNK_BYTES // 4096, density=density, shared=shared)


MAIN = [
    filled("int32"),
    filled("f32", "sum_f32"),
    filled("thc", "lut4_u8"),
    filled("int32_1k", mtu=1024),
]
GROUPS = {
    "main": MAIN,
    "ops": [filled(op, op) for op in OPS if op not in STREAMS],
    "ops_1k": [filled(f"{op}_1k", op, 1024) for op in OPS if op not in STREAMS],
    "streams": [
        stream(op, ranks, 10, shared) for op in STREAMS for ranks in (4, 16) for shared in (False, True)
    ]
    + [stream("expand_sum_i32", 4, density) for density in (1, 30, 100)],
    "ranks": [Case(f"ranks_{n}", ranks=n, packets=max(1, 32 // n)) for n in (2, 4, 8, 16, 64)],
    "ranks_1k": [
        Case(f"ranks_{n}_1k", ranks=n, mtu=1024, packets=max(1, 128 // n)) for n in (2, 4, 8, 16, 64)
    ],
    "window": [Case(f"window_{w}", window=w) for w in (1, 2, 4, 8, 16, 32, 64)],
    "chunk": [Case(f"chunk_{4 * packets}K", packets=packets) for packets in (1, 2, 4, 8, 16, 32, 64)],
    "lag": [Case(f"lag_{lag}", lag=lag) for lag in (0, 1, 2, 4)],
    "burst": [Case(f"burst_{burst}", burst=burst) for burst in (4, 8, 16, 32, 64)],
}


@contextmanager
def huge_pages(memory_mib: int = MEMORY_MIB) -> Iterator[bool]:
    """Reserves what the run needs, where this user may; else ordinary pages are used, and the report says so."""
    before = int(HUGE_PAGES.read_text()) if HUGE_PAGES.exists() else 0
    wanted = before + memory_mib // 2
    try:
        HUGE_PAGES.write_text(str(wanted))
    except OSError:
        yield False
        return
    try:
        yield int(HUGE_PAGES.read_text()) == wanted
    finally:
        HUGE_PAGES.write_text(str(before))


def output_of(command: list[str]) -> str:
    """Standard output of a benchmark that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip() or f"{' '.join(command)} ends with {done.returncode}")
    return done.stdout


class Runner:
    """Runs the three executables. The run's options are the same for all."""

    def __init__(self, folder: Path, options: list[str], cpu: int) -> None:
        self.folder, self.options, self.cpu = folder, options, cpu

    def command(self, cases: list[Case], *options: str, without: str = "", under: str = "") -> list[str]:
        """`without`: "icrc", "counters"; `under`: a program of the benchmarks that runs it."""
        program = self.folder / ("psc_bench_lane" + (f"_no_{without}" if without else ""))
        above = [str(self.folder / under)] if under else []
        pinned = ["taskset", "-c", str(self.cpu), *above, str(program), *self.options, *options]
        return pinned + [case.argument() for case in cases]

    def run(self, cases: list[Case], repetitions: int, without: str = "") -> list[dict[str, Any]]:
        """The rows of the cases, in order."""
        command = self.command(cases, "--repetitions", str(repetitions), without=without)
        return self.rows(output_of(command))

    def rows(self, text: str) -> list[dict[str, Any]]:
        """Those that a benchmark has printed, with the ops' names."""
        output = json.loads(text)
        rows: list[dict[str, Any]] = output["cases"]
        for row in rows:
            row["op"] = next(name for name, number in OPS.items() if number == row["op"])
            row |= {key: output[key] for key in ("variant", "compiler")}
        return rows


def ratios(above: list[float], below: list[float]) -> list[float]:
    """Repetition by repetition: neighbours in time."""
    return [a / b for a, b in zip(above, below, strict=True)]


def figures_of(row: dict[str, Any]) -> dict[str, Any]:
    """What a row's samples say. Bytes are payload of contributions; results are not counted."""
    lane_ns = statistics.median(row["lane_ns"])
    per_copy = 4096 / row["payload_bytes_per_packet"]
    return {key: value for key, value in row.items() if not isinstance(value, list)} | {
        "lane_ns_per_packet": report.spread(row["lane_ns"]),
        "feed_ns_per_packet_not_counted": report.spread(row["feed_ns"]),
        "memcpy_ns_per_4k": report.spread(row["copy_ns"]),
        "kernel_share": report.spread(ratios(row["kernel_ns"], row["lane_ns"])),
        "bytes_over_memcpy": report.spread(
            [c / (n * per_copy) for c, n in zip(row["copy_ns"], row["lane_ns"], strict=True)]
        ),
        "gbit_per_s": round(8 * row["payload_bytes_per_packet"] / lane_ns, 2),
        "packets_per_s": round(1e9 / lane_ns),
        "coordinates_per_s": round(row["coordinates_per_packet"] * 1e9 / lane_ns),
        "values_per_s": round(row["values_per_packet"] * 1e9 / lane_ns),
        "last_to_first_us": dict(zip(("p50", "p99", "p99_9"), row["latency_us"], strict=True)),
    }


def summary(main: list[dict[str, Any]], cost: float) -> dict[str, float]:
    """The keys of build/bench/summary.json."""
    int32, f32, thc, small = main
    median = statistics.median

    def faster(row: dict[str, Any], weight: float) -> float:
        return round(weight * median(ratios(int32["lane_ns"], row["lane_ns"])), 4)

    return {
        "lane_int32_over_memcpy": round(median(ratios(int32["copy_ns"], int32["lane_ns"])), 4),
        "lane_f32_over_int32_pps": faster(f32, 1),
        "lane_thc_over_int32_coords": faster(
            thc, thc["coordinates_per_packet"] / int32["coordinates_per_packet"]
        ),
        "lane_1k_over_4k_bytes": faster(small, small["mtu"] / int32["mtu"]),
        "kernel_share_of_lane": round(median(ratios(int32["kernel_ns"], int32["lane_ns"])), 4),
        "counters_cost": cost,
        "lane_int32_gbit_s": round(8 * 4096 / median(int32["lane_ns"]), 2),
        "lane_thc_gbit_s": round(8 * 4096 / median(thc["lane_ns"]), 2),
        "last_to_first_p99_us": int32["latency_us"][1],
    }


def missed(figures: dict[str, float]) -> list[str]:
    """A sentence for each bound that is not kept."""
    return [
        f"{key} = {figures[key]} must be {sign} {bound}"
        for key, (sign, bound) in MUST.items()
        if not (figures[key] >= bound if sign == ">=" else figures[key] <= bound)
    ]


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    elements = row["coordinates_per_s"] / 1e9
    print(
        f"{row['name']:16} {row['ranks']:3} ranks  MTU {row['mtu']:4}  {row['lane_ns_per_packet']['median']:7.1f} ns"
        f" (feed {row['feed_ns_per_packet_not_counted']['median']:5.1f} beside it)  {row['gbit_per_s']:6.1f} Gbit/s"
        f"  {elements:5.2f} G elements/s"
        f"  {row['bytes_over_memcpy']['median']:.3f} of memcpy  kernels {row['kernel_share']['median']:.2f}"
        f"  p99 {row['last_to_first_us']['p99']:6.1f} us"
    )


def main() -> None:
    """Measure, write the JSON, say which bounds are missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binaries", type=Path, default=ROOT / "build/dpdk_c/bench")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--realtime", action="store_true", help="for a machine that others use")
    parser.add_argument(
        "--repetitions", type=int, default=21, help="of the main cases; the others take a third"
    )
    parser.add_argument(
        "--groups", nargs="*", default=list(GROUPS), choices=list(GROUPS), help="besides main"
    )
    options = parser.parse_args()
    load_before, at, rows = os.getloadavg()[0], commit(), {}
    with huge_pages(2 * MEMORY_MIB) as huge:  # counters.py runs two at once
        flags = (
            ["--memory-mib", str(MEMORY_MIB)] + ["--huge-pages"] * huge + ["--realtime"] * options.realtime
        )
        runner = Runner(options.binaries, flags, options.cpu)
        for name in (name for name in GROUPS if name == "main" or name in options.groups):
            repetitions = options.repetitions if name == "main" else max(3, options.repetitions // 3)
            rows[name] = runner.run(GROUPS[name], repetitions)
        without_icrc = runner.run(MAIN, options.repetitions // 3, "icrc")
        counting = counters.cost(runner, filled("int32"), 2 * options.repetitions)
        idle = output_of([str(runner.folder / "psc_bench_idle"), *runner.options, *map(str, PAUSES_US)])
    tables = {name: [figures_of(row) for row in group] for name, group in rows.items()}
    tables["without_icrc"] = [figures_of(row) for row in without_icrc]
    figures = summary(rows["main"], counting["ratio"]["median"])
    path = report.write(
        "lane",
        figures
        | {"not_measured_on_a_nic": True, "tables": tables, "counters": counting, "idle": json.loads(idle)}
        | {
            "huge_pages": huge,
            "realtime": options.realtime,
            "load_average": [load_before, os.getloadavg()[0]],
        }
        | {"machine": report.machine(), "compiler": rows["main"][0]["compiler"], "commit": at},
    )
    report.summarize(figures, at)
    for group, table in tables.items():
        print(group)
        for row in table:
            show(row)
    print("counters", json.dumps(counting))
    for pause in json.loads(idle)["pauses"]:
        print("idle", json.dumps(pause))
    print(json.dumps(figures, indent=2), path, sep="\n")
    sys.exit("\n".join(missed(figures)) or 0)


if __name__ == "__main__":
    main()
