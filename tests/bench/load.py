"""The load generator's driver: joins a job for all of its ranks over real control connections and tells `psc_load`,
over its standard input, what has been agreed. What it speaks is in dpdk_c/bench/load_main.c.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.appliance.rack import APPLIANCE_IP, PATIENCE_S, WORKER_IP, Appliance, Rack, ip, tables
from tests.appliance.worker import Control

ROOT = Path(__file__).parents[2]
PSC_LOAD = Path(os.environ.get("PSC_LOAD", ROOT / "build/dpdk_c/bench/psc_load"))
QPNS = iter(range(0x10000, 0x1000000))
"""Of the workers; one after the other, so that no two are ever equal."""
OPS = (
    "sum_i32",
    "sum_f32",
    "max_f32",
    "sum_f16",
    "sum_bf16",
    "lut4_u8",
    "lut4_u16",
    "lut2_u8",
    "lut2_u16",
    "lut8_u16",
    "or_u32",
)
"""By enum psc_op, from 1."""
UNIT_BYTES = dict.fromkeys(OPS, 4) | dict.fromkeys((op for op in OPS if op.startswith("lut")), 64)
EXPANSION = dict.fromkeys(OPS, 1) | {
    "sum_f16": 2,
    "sum_bf16": 2,
    "lut4_u8": 2,
    "lut4_u16": 4,
    "lut2_u8": 4,
    "lut2_u16": 8,
    "lut8_u16": 2,
}
TABLES = {
    "lut4_u8": [index * index // 15 for index in range(16)],
    "lut4_u16": [index * index for index in range(16)],
    "lut2_u8": [0, 3, 4, 15],
    "lut2_u16": [0, 1, 100, 255],
    "lut8_u16": [index * index // 255 for index in range(256)],
}
"""Neither equal to their index nor all different, so that a table that is not used is seen. Up to 17 ranks."""


def _drop_names() -> dict[str, str]:
    """Number -> name of enum psc_drop, from the contract."""
    text = (ROOT / "dpdk_c/contract/psc_stats.def.h").read_text()
    return {number: name.lower() for name, number in re.findall(r"PSC_DROP_(\w+) = (\d+)", text)}


DROPS = _drop_names()


class LoadError(Exception):
    """The generator, or the appliance through it, says that something is wrong."""


class Load:
    """A running `psc_load`."""

    def __init__(self, prefix: Sequence[str], **arguments: object) -> None:
        words = [f"{name}={value}" for name, value in arguments.items()]
        self.process = subprocess.Popen(
            [*prefix, str(PSC_LOAD), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def say(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            raise LoadError(f"psc_load ends: {self.process.stderr.read().strip()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LoadError(f"psc_load says: {answer['error']}")
        if "drops" in answer:
            answer["drops"] = {DROPS[number]: count for number, count in answer["drops"].items()}
        return answer

    def ask(self, *words: object) -> dict[str, Any]:
        self.say(*words)
        return self.answer()

    def quit(self) -> int:
        """Its exit status."""
        self.say("quit")
        return self.process.wait(PATIENCE_S)

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(frozen=True)
class Wishes:
    """What the job is to be."""

    ranks: int = 4
    ops: tuple[str, ...] = ("sum_i32",)
    mtu: int = 4096
    chunk_bytes: int = 65536
    window: int = 4
    seeds: int = 3
    """Full contributions of each op, with other numbers."""
    odd: bool = False
    """Two more of each op: one unit, and a length that ends within a packet; and rounds of the small pool."""


def lengths(op: str, slot_bytes: int, wishes: Wishes) -> list[int]:
    """Of the contributions of an op, in the order in which rounds take them."""
    unit = UNIT_BYTES[op]
    full = slot_bytes // EXPANSION[op] // unit * unit
    if not wishes.odd:
        return [full] * wishes.seeds
    return [full, unit, max(unit, full * 5 // 7 // unit * unit)]


@dataclass
class Job:
    """All ranks of one job, from their joins to their leaves."""

    rack: Rack
    load: Load
    wishes: Wishes
    name: str = "load"
    controls: list[Control] = field(default_factory=list)

    def expect(self, control: Control, kind: str) -> dict[str, Any]:
        while (message := control.receive())["type"] == "event":
            pass
        if message["type"] != kind:
            raise LoadError(f"the appliance says {message} instead of {kind}")
        return message

    def join(self) -> None:
        """Until rounds may begin."""
        w = self.wishes
        with_tables = {op: TABLES[op] for op in w.ops if op in TABLES}
        self.controls = [
            Control(
                self.rack,
                rank,
                world_size=w.ranks,
                job=self.name,
                ops=list(w.ops),
                tables=with_tables,
                mtu=w.mtu,
                chunk_bytes=w.chunk_bytes,
                window=w.window,
            )
            for rank in range(w.ranks)
        ]
        offers = [self.expect(control, "offer") for control in self.controls]
        self._tell_shapes(offers[0])
        for rank, (control, offer) in enumerate(zip(self.controls, offers, strict=True)):
            control.send({"type": "connect", "pools": [self._end(rank, pool) for pool in offer["pools"]]})
        for control in self.controls:
            self.expect(control, "connected")
        self.load.ask("probe")
        for control in self.controls:
            self.expect(control, "ready")

    def _tell_shapes(self, offer: dict[str, Any]) -> None:
        self.load.say("job", self.wishes.ranks, offer["mtu"])
        for op in self.wishes.ops:
            if op in TABLES:
                self.load.say("table", OPS.index(op) + 1, *TABLES[op])
        seed = 0
        for pool in offer["pools"]:
            shapes = [
                (window, op, length)
                for window, op in enumerate(self.wishes.ops, 1)
                for length in lengths(op, pool["chunk_bytes"], self.wishes)
            ]
            if len(shapes) % 2 == 0:
                shapes.append(shapes[0])
            for window, op, length in shapes:
                seed += 1
                self.load.say("shape", pool["pool"], OPS.index(op) + 1, window, length, seed)

    def _end(self, rank: int, pool: dict[str, Any]) -> dict[str, Any]:
        """Our end of a QP, told to the generator and to be told to the appliance."""
        size = pool["window"] * pool["chunk_bytes"]
        ours = {
            "pool": pool["pool"],
            "qpn": next(QPNS),
            "start_psn": secrets.randbits(24),
            "result_rkey": secrets.randbits(32),
            "result_va": secrets.randbits(40) << 12,
            "result_bytes": size,
        }
        self.load.say(
            "qp",
            rank,
            pool["pool"],
            ours["qpn"],
            ours["start_psn"],
            pool["qpn"],
            pool["start_psn"],
            pool["rkey"],
            ours["result_rkey"],
            int(pool["va_base"], 16),
            ours["result_va"],
            pool["window"],
            pool["chunk_bytes"],
        )
        return ours | {"result_va": hex(int(ours["result_va"]))}

    def run(self, seconds: float, rounds: int = 0xFFFFFFFF) -> dict[str, Any]:
        """Rounds for so long; the generator's counters then."""
        return self.load.ask("run", rounds, rounds if self.wishes.odd else 0, seconds)

    def leave(self, counters: dict[str, Any]) -> None:
        """All ranks, with every result."""
        for control in self.controls:
            control.send(
                {"type": "leave", "received": [counters["received_data"], counters["received_small"]]}
            )
        for control in self.controls:
            self.expect(control, "left")
            control.close()


# ---- Two ends of a wire ----


@dataclass(frozen=True)
class Ends:
    """EAL arguments of the appliance's device and of the generator's, and what their rings hold."""

    appliance: str
    load: str
    ring_packets: int


def af_packet(own: str, peer: str) -> Ends:
    """Two ends of a veth."""
    options = "framesz=8192,blocksz=131072,framecnt=512,qdisc_bypass=1"
    return Ends(
        f"net_af_packet0,iface={own},{options}", f"net_af_packet0,iface={peer},{options}", ring_packets=512
    )


def memif(folder: Path, ring_log2: int) -> Ends:
    """Shared memory; the appliance is the client, whose buffers both use. It goes through all of them in turn, so the
    ring is no larger than it must be: what it holds should fit into the lane's L2 cache.
    """
    common = f"socket={folder / 'memif.sock'},socket-abstract=no,bsize=8192,rsize={ring_log2}"
    return Ends(
        f"net_memif0,role=client,{common},zero-copy=yes",
        f"net_memif0,role=server,{common}",
        ring_packets=1 << ring_log2,
    )


class LoadRack(Rack):
    """A namespace whose veth belongs to the generator and the appliance alone: the kernel has no address there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        ip("-n", name, "address", "flush", "dev", "worker0")

    def ends(self, wire: str, folder: Path, ring_log2: int = 9) -> Ends:
        return memif(folder, ring_log2) if wire == "memif" else af_packet("appliance0", "worker0")

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]


def start_appliance(
    rack: Rack, folder: Path, ends: Ends, environment: dict[str, str] | None = None, **changes: dict[str, Any]
) -> Appliance:
    """On its end of the wire, and not yet ready; `changes` to the tables of tests.appliance.rack."""
    configuration = tables(folder)
    configuration["port"] = {
        "device": f"--vdev={ends.appliance}",
        "rx_ring_packets": ends.ring_packets,
        "tx_ring_packets": ends.ring_packets,
    }
    configuration["data"] = {**configuration["data"], "mtu": 4096}
    for name, table in changes.items():
        configuration[name] = {**configuration.get(name, {}), **table}
    return Appliance(rack, folder, configuration, **(environment or {}))


def start_load(rack: LoadRack, ends: Ends, *prefix: str, **arguments: object) -> Load:
    """On its end of the wire."""
    return Load(
        [*rack.prefix, *prefix],
        device=ends.load,
        address=WORKER_IP,
        peer=APPLIANCE_IP,
        ring=ends.ring_packets,
        **arguments,
    )


def can_run() -> bool:
    """Root, and a build with DPDK."""
    return os.geteuid() == 0 and PSC_LOAD.exists() and shutil.which("ip") is not None
