"""What a packet costs a lane on a wire: appliance and load generator as two processes over memif (zero-copy: the
appliance owns the buffers) and over af_packet on a veth, beside the same lane at the end of two rings, and beside
testpmd, which forwards the same frames on the same device in the same mode. All of them in turn, again and again.

A lane's packet is one contribution received and one result sent, acknowledgements both ways included; its cost is the
lane's own count of nanoseconds in turns that received or sent something (busy_ns). testpmd's is its own count of cycles
for a packet that it receives and sends (--record-core-cycles). So neither depends on whether the generator, which is
one core too, keeps up. Not measured on a NIC.

    python -m tests.bench.wire      exit status 1: the bound is missed
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.appliance.rack import APPLIANCE_IP, PATIENCE_S, WORKER_IP
from tests.bench.load import Ends, Job, Load, LoadRack, Wishes, start_appliance, start_load
from tests.bench.report import record, spread, summarize

WISHES = Wishes(ranks=4, ops=("sum_i32",), chunk_bytes=32768, window=4)
LOAD_CORE, LANE_CORE = 0, 1
IN_FLIGHT = WISHES.ranks * WISHES.window * WISHES.chunk_bytes // WISHES.mtu
"""As many frames as the workers' windows let out."""
RING_LOG2 = 8
"""Of the memif: holds the frames in flight and as many again."""
BOUND = 1.20
BURST = 64
"""As the lane's."""
OPTIONS: dict[str, object] = {"core": LOAD_CORE, "retransmit_exponent": 17, "icrc_every": 16}
"""Every sum is compared; the ICRC, which costs the generator more than the lane, on every 16th result."""


def huge_pages(mib: int) -> bool:
    """Whether so much is free in pages of 2 MiB, three times: generator, appliance, and what is just going."""
    path = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    return path.exists() and int(path.read_text()) >= mib // 2 * 2


MEMORY_MIB = 192
HUGE = huge_pages(MEMORY_MIB)


@contextlib.contextmanager
def measuring(*threads: int) -> Iterator[None]:
    """These threads go before others of the machine; with PSC_BENCH_LOCK, a file, nobody else measures meanwhile."""
    with contextlib.ExitStack() as stack:
        if path := os.environ.get("PSC_BENCH_LOCK"):
            lock = stack.enter_context(Path(path).open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        for thread in threads:
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(10))
                stack.callback(back_to_normal, thread)
        yield


def back_to_normal(thread: int) -> None:
    """A thread that has ended needs nothing."""
    with contextlib.suppress(ProcessLookupError):
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def worker_thread(pid: int) -> int:
    """The lcore of a DPDK process that is not its main one."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if re.match(r"(rte|lcore)-worker", (task / "comm").read_text()):
            return int(task.name)
    raise LookupError(f"process {pid} has no worker lcore")


def rates(counters: dict[str, Any]) -> dict[str, float]:
    """Of one run of the generator."""
    tensor_bytes = counters["contribution_bytes"] / WISHES.ranks
    return {
        "gbit_s": tensor_bytes * 8 / counters["seconds"] / 1e9,
        "mpackets_s": counters["contribution_packets"] / counters["seconds"] / 1e6,
        "wrong_packets": counters["wrong_packets"],
    }


def on_rings(seconds: float) -> dict[str, float]:
    """One process, two cores: the lane's cost when no driver copies."""
    arguments = dict(OPTIONS, lane_core=LANE_CORE, memory_mib=MEMORY_MIB, huge=int(HUGE))
    with Load([], address=WORKER_IP, peer=APPLIANCE_IP, **arguments) as load:
        load.say("job", WISHES.ranks, WISHES.mtu)
        for seed in range(1, WISHES.seeds + 1):
            load.say("shape", 0, 1, 1, WISHES.chunk_bytes, seed)
        load.ask("lane", WISHES.ranks, WISHES.mtu, WISHES.window, WISHES.chunk_bytes, 1)
        before = load.ask("rest")
        with measuring(load.pid, worker_thread(load.pid)):
            counters = load.ask("run", 0xFFFFFFFF, 0, seconds)
        busy_ns = counters["lane_busy_ns"] - before["lane_busy_ns"]
        load.quit()
    return {"ns": busy_ns / counters["contribution_packets"], **rates(counters)}


def on_wire(
    rack: LoadRack, ends: Ends, folder: Path, seconds: float, *, first: bool = True
) -> dict[str, float]:
    """Two processes: appliance and generator, which go before others of the machine if they are to be `first`."""
    memory = {"huge_pages": HUGE, "memory_mib": MEMORY_MIB}
    arguments = dict(OPTIONS, memory_mib=MEMORY_MIB, huge=int(HUGE))
    with start_load(rack, ends, **arguments) as load:
        lanes = {"cores": [LANE_CORE], "idle_sleep_us": 0}
        appliance = start_appliance(rack, folder, ends, memory=memory, lanes=lanes)
        try:
            appliance.ready()
            load.ask("peer")
            job = Job(rack, load, WISHES)
            job.join()
            job.run(0.1)
            start, before = load.ask("rest"), appliance.status()["lanes"][0]
            threads = (load.pid, worker_thread(appliance.process.pid)) if first else ()
            with measuring(*threads):
                counters = job.run(seconds)
            after = appliance.status()["lanes"][0]
            job.leave(counters)
            load.quit()
        finally:
            appliance.stop()
    for name in ("contribution_packets", "contribution_bytes"):
        counters[name] -= start[name]
    return {
        "ns": (after["busy_ns"] - before["busy_ns"]) / counters["contribution_packets"],
        **rates(counters),
    }


def testpmd(ends: Ends) -> list[str]:
    """Forwards what its one port receives back to it."""
    pages = ["--in-memory"] if HUGE else ["--no-huge", "--no-shconf"]
    return [
        "dpdk-testpmd",
        f"--lcores=0@{LOAD_CORE},1@{LANE_CORE}",
        "--main-lcore=0",
        *pages,
        f"-m{MEMORY_MIB}",
        "--single-file-segments",
        "--iova-mode=va",
        "--no-pci",
        "--no-telemetry",
        f"--vdev={ends.appliance}",
        "--",
        "--interactive",
        "--mbuf-size=9600",
        "--total-num-mbufs=8192",
        f"--rxd={ends.ring_packets}",
        f"--txd={ends.ring_packets}",
        f"--burst={BURST}",
        "--forward-mode=io",
        "--record-core-cycles",
    ]


def forwarded(rack: LoadRack, ends: Ends, seconds: float) -> dict[str, float]:
    """testpmd instead of the appliance."""
    arguments = dict(OPTIONS, memory_mib=MEMORY_MIB, huge=int(HUGE))
    with start_load(rack, ends, **arguments) as load:
        process = subprocess.Popen(
            [*rack.prefix, *testpmd(ends)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdin is not None
        try:
            process.stdin.write("start\n")
            process.stdin.flush()
            time.sleep(3)
            blind_job(load)
            with measuring(load.pid, worker_thread(process.pid)):
                counters = load.ask("blind", seconds, IN_FLIGHT)
            text, _ = process.communicate("stop\nquit\n", PATIENCE_S)
        finally:
            process.kill()
        load.quit()
    cycles = re.search(r"CPU cycles/packet=([\d.]+) .*at (\d+) MHz Clock", text, re.DOTALL)
    if cycles is None or counters["rx_packets"] == 0:
        raise RuntimeError(f"testpmd has not forwarded: {text}")
    return {
        "ns": float(cycles[1]) / float(cycles[2]) * 1e3,
        "mpackets_s": counters["rx_packets"] / counters["seconds"] / 1e6,
    }


def blind_job(load: Load) -> None:
    """The frames of the real job: they differ in numbers that testpmd does not look at."""
    load.say("job", WISHES.ranks, WISHES.mtu)
    load.say("shape", 0, 1, 1, WISHES.chunk_bytes, 1)
    for rank in range(WISHES.ranks):
        load.say("qp", rank, 0, 100 + rank, 1, 200 + rank, 1, 1, 1, 0, 0, WISHES.window, WISHES.chunk_bytes)


def repetition(seconds: float) -> dict[str, dict[str, float]]:
    """Each once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rack = LoadRack(f"psc-wire-{os.getpid()}")
        try:
            found = {"rings": on_rings(seconds)}
            for wire in ("memif", "af_packet"):
                ends = rack.ends(wire, folder, RING_LOG2)
                found[wire] = on_wire(rack, ends, folder, seconds)
                found[f"testpmd_{wire}"] = forwarded(rack, ends, seconds)
                found[f"rings_after_{wire}"] = on_rings(seconds)
        finally:
            rack.close()
    return found


def over_sum(found: dict[str, dict[str, float]], wire: str) -> float:
    """A lane's packet on this wire, over that on rings, just before and after it, and testpmd's on the wire."""
    before = "rings" if wire == "memif" else "rings_after_memif"
    rings_ns = (found[before]["ns"] + found[f"rings_after_{wire}"]["ns"]) / 2
    return found[wire]["ns"] / (rings_ns + found[f"testpmd_{wire}"]["ns"])


def main() -> int:
    """Measure, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    runs = []
    for number in range(options.repetitions):
        runs.append(repetition(options.seconds))
        line = ", ".join(f"{name} {row['ns']:.0f} ns" for name, row in runs[-1].items())
        print(f"{number + 1}: {line}", flush=True)
    rows = {
        name: {what: spread([run[name][what] for run in runs]) for what in row}
        for name, row in runs[0].items()
    }
    ratios = {wire: spread([over_sum(run, wire) for run in runs]) for wire in ("memif", "af_packet")}
    wrong = sum(run[name].get("wrong_packets", 0) for run in runs for name in run)
    record(
        "wire",
        {
            "rows": rows,
            "cost_over_sum": ratios,
            "runs": runs,
            "huge_pages": HUGE,
            "job": {"ranks": WISHES.ranks, "chunk_bytes": WISHES.chunk_bytes, "window": WISHES.window},
        },
    )
    cost = ratios["memif"]["median"]
    af_packet_gbit_s = rows["af_packet"]["gbit_s"]["median"]
    summarize({"memif_cost_over_sum": cost, "pascaline_af_packet_gbit_s": af_packet_gbit_s})
    for name, row in rows.items():
        print(f"{name:18}" + "  ".join(f"{what} {value['median']:.3f}" for what, value in row.items()))
    print(f"memif over rings + testpmd: {cost:.3f}, at most {BOUND}")
    if wrong:
        print(f"{wrong} packets of wrong sums")
    return 1 if cost > BOUND or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
