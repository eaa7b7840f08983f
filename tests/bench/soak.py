"""The soak: the load generator and an appliance, two processes, one job after the other for as long as is wished. Every
sum is looked at, every packet is counted at both ends, and nothing may be left over: no mbuf, slot or queue pair beyond
what an idle appliance holds, and no memory.

    python -m tests.bench.soak --minutes 5 --out build/bench/soak.json      exit status 1: something was objected to
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.appliance.job import at_rest
from tests.appliance.rack import PATIENCE_S, Appliance
from tests.bench.load import OPS, Job, Load, LoadError, LoadRack, Wishes, start_appliance, start_load

JOBS = (
    Wishes(ranks=4, ops=OPS, odd=True, chunk_bytes=32768),
    Wishes(ranks=2, ops=OPS, odd=True, chunk_bytes=65536, window=8),
    Wishes(ranks=8, ops=OPS, odd=True, chunk_bytes=16384, window=2, mtu=1024),
    Wishes(ranks=1, ops=("sum_i32", "sum_f32"), odd=True, chunk_bytes=4096, window=1),
)
"""In turn."""
EXPECTED_DROPS = {"duplicate", "stale_ack", "no_buffer"}
"""What a sound peer may cause without loss: the answer to a retransmission that a late ACK has crossed."""
LOSS_DROPS = EXPECTED_DROPS | {"gap"}
SHARED = ("packets", "bytes")
REFILL_MBUFS = {"memif": 64, "af_packet": 0}
"""How many a driver takes at once to receive into, so that what it holds is one number or another."""
FLAT_KIB = 1024
"""By how much the memory of a process may differ after the first jobs: what an interpreter keeps."""
WARM_UP_JOBS = len(JOBS)
"""Each kind once: after them nobody has a reason to want more memory."""


def anonymous_kib(pid: int) -> int:
    """RssAnon. Packet buffers and slots lie in files, or in huge pages; their count is looked at, not their pages."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise LoadError(f"process {pid} says nothing about its memory")


@dataclass
class Soak:
    """One appliance and one generator on one wire."""

    rack: LoadRack
    load: Load
    appliance: Appliance
    wire: str
    loss: int
    objections: list[str] = field(default_factory=list)
    rests: list[dict[str, int]] = field(default_factory=list)
    memory_kib: dict[str, list[int]] = field(default_factory=lambda: {"appliance": [], "load": []})
    rounds: int = 0
    ranks: set[int] = field(default_factory=set)

    def object(self, true: bool, sentence: str) -> None:
        if not true:
            self.objections.append(sentence)

    @property
    def appliance_pid(self) -> int:
        """Of the interpreter itself: `ip netns exec` becomes what it runs."""
        return self.appliance.process.pid

    def job(self, number: int, wishes: Wishes, seconds: float) -> None:
        """From joining to leaving, and what is left."""
        before = self.load.ask("rest")
        job = Job(self.rack, self.load, wishes, f"soak-{number}")
        job.join()
        after = job.run(seconds)
        status = self.appliance.status()["jobs"][0]
        rounds = after["received_data"] + after["received_small"]
        grown = {
            name: after[name] - before[name] for name in ("contribution_bytes", "results", "result_bytes")
        }
        expected = {"rounds_completed": rounds, "contribution_bytes": grown["contribution_bytes"]}
        for name, value in expected.items():
            self.object(
                status[name] == value,
                f"job {number}: {name} is {status[name]} at the appliance, {value} at the workers",
            )
        self.object(
            grown["results"] == rounds * wishes.ranks,
            f"job {number}: {grown['results']} results came for {rounds} rounds of {wishes.ranks} ranks",
        )
        self.object(rounds > 0, f"job {number}: not one round")
        self.rounds += rounds
        job.leave(after)
        self.rest()

    def rest(self) -> None:
        """What is held when no job is there. A memif gives sent buffers back when something more is sent."""
        self.load.ask("peer")
        self.load.ask("peer")
        self.rests.append(at_rest(self.appliance) | {"slots": self.appliance.status()["lanes"][0]["slots"]})
        self.memory_kib["appliance"].append(anonymous_kib(self.appliance_pid))
        self.memory_kib["load"].append(anonymous_kib(self.load.pid))

    def lost(self) -> int:
        """Packets that the generator's dice have taken, both ways."""
        load = self.load.ask("rest")
        return int(load["lost_rx_packets"] + load["lost_tx_packets"])

    def judge(self) -> dict[str, Any]:
        """Both ends' counts, which must be the same ones."""
        load, status = self.load.ask("rest"), self.appliance.status()
        (lane,) = status["lanes"]
        for there, here in (("rx", "tx"), ("tx", "rx")):
            for what in SHARED:
                self.object(
                    lane[f"{there}_{what}"] == load[f"{here}_{what}"],
                    f"the appliance has {lane[f'{there}_{what}']} {there}_{what},"
                    f" the workers {load[f'{here}_{what}']} {here}_{what}",
                )
        lost = {name: lane[name] for name in ("rx_missed", "rx_no_mbuf")}
        self.object(not any(lost.values()), f"the appliance's port has lost packets: {lost}")
        self.object(
            load["wrong_packets"] == 0,
            f"{load['wrong_packets']} packets of wrong sums, the first: {load.get('first_wrong')}",
        )
        self.object(load["wrong_messages"] == 0, f"{load['wrong_messages']} results that were not due")
        for who, drops in (("the appliance", lane["drops"]), ("the workers", load["drops"])):
            strange = set(drops) - (LOSS_DROPS if self.loss else EXPECTED_DROPS)
            self.object(not strange, f"{who} dropped for reasons that nobody gave: {drops}")
        self._judge_leaks()
        return {
            "rounds": self.rounds,
            "jobs": len(self.rests),
            "load": load,
            "lane": lane,
            "at_rest": {"first": self.rests[0], "last": self.rests[-1]},
            "memory_kib": self.memory_kib,
        }

    def _judge_leaks(self) -> None:
        first = self.rests[0]
        for number, rest in enumerate(self.rests):
            difference = abs(rest["mbufs_in_use"] - first["mbufs_in_use"])
            same = rest | {"mbufs_in_use": 0} == first | {"mbufs_in_use": 0}
            self.object(
                same and difference <= REFILL_MBUFS[self.wire],
                f"after job {number} the appliance holds {rest}, after the first {first}",
            )
        for who, sizes in self.memory_kib.items():
            settled = sizes[min(WARM_UP_JOBS, len(sizes)) - 1 :]
            self.object(
                settled[-1] - settled[0] <= FLAT_KIB,
                f"the memory of the {who} process grew from {settled[0]} to {settled[-1]} KiB in {len(settled)} jobs",
            )


@contextmanager
def soaking(
    wire: str, loss: int, environment: dict[str, str] | None = None, ring_log2: int = 9
) -> Iterator[Soak]:
    """Both processes on a wire. They sleep when idle, for they share the machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rack = LoadRack(f"psc-soak-{os.getpid()}")
        ends = rack.ends(wire, folder, ring_log2)
        arguments = {"idle_sleep_us": 50, "loss": loss, "retransmit_exponent": 16, "seed": 1}
        appliance = None
        try:
            with start_load(rack, ends, **arguments) as load:
                appliance = start_appliance(rack, folder, ends, environment)
                appliance.ready()
                load.ask("peer")
                yield Soak(rack, load, appliance, wire, loss)
                load.quit()
        finally:
            if appliance is not None and appliance.stop() != 0:
                print(appliance.stderr, file=sys.stderr)
            rack.close()


def soak(
    wire: str,
    loss: int,
    seconds: float,
    job_seconds: float,
    environment: dict[str, str] | None = None,
    least_jobs: int = WARM_UP_JOBS + 2,
    least_lost: int = 0,
) -> dict[str, Any]:
    """Jobs for so long, at least so many, until so many packets have been lost; `objections` says what was wrong."""
    with soaking(wire, loss, environment) as run:
        end = time.monotonic() + seconds
        try:
            for number in itertools.count():
                late = time.monotonic() - end
                if number >= least_jobs and late >= 0 and (late > PATIENCE_S or run.lost() >= least_lost):
                    break
                run.job(number, JOBS[number % len(JOBS)], job_seconds)
            found = run.judge()
        except LoadError as error:
            run.objections.append(str(error))
            found = {}
    return {"wire": wire, "loss_per_million": loss, **found, "objections": run.objections}


def say(result: dict[str, Any]) -> None:
    """For people."""
    print(f"{result['wire']}, {result['loss_per_million']} lost of a million:")
    if "load" in result:
        load, lane = result["load"], result["lane"]
        print(
            f"  {result['rounds']} rounds of {result['jobs']} jobs, {load['results']} results, 0 wrong"
            if load["wrong_packets"] == 0
            else f"  {load['wrong_packets']} packets were wrong"
        )
        print(
            f"  workers -> appliance {load['tx_packets']} packets, {load['tx_bytes']} bytes; there"
            f" {lane['rx_packets']},"
        )
        print(
            f"    {lane['rx_bytes']}; back {lane['tx_packets']}, {lane['tx_bytes']}; here {load['rx_packets']},"
        )
        print(f"    {load['rx_bytes']}. Dropped there {lane['drops']}, here {load['drops']}")
        print(f"  at rest {result['at_rest']['last']}, after the first job {result['at_rest']['first']}")
        for who, sizes in result["memory_kib"].items():
            print(
                f"  memory of the {who} process: {sizes[0]} KiB after the first job, {sizes[-1]} after the last"
            )
    for objection in result["objections"]:
        print(f"  OBJECTION: {objection}")


def main() -> int:
    """Half of the time on a memif, half on a veth that loses packets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--job-seconds", type=float, default=5)
    parser.add_argument("--loss", type=int, default=200, help="packets of a million, each way, on the veth")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = []
    for wire, loss in (("memif", 0), ("af_packet", options.loss)):
        results.append(soak(wire, loss, options.minutes * 30, options.job_seconds))
        say(results[-1])
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    return 1 if any(result["objections"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
