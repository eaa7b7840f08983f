"""Gloo and an MPI all-reduce between network namespaces, beside Pascaline's generator and appliance over af_packet: the
same kind of veth, one after the other, again and again. Report-only: nothing here has a bound.

Each rank has a namespace with one end of a veth; the other ends are ports of one bridge. gbit_s is bits of the tensor
over the time of its all-reduce, whatever the algorithm sends. Pascaline's generator has one veth for all of its ranks,
and no tensor: it measures appliance and wire. Nobody has a priority here. Not measured on a NIC.

    python -m tests.bench.peers
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.appliance.rack import CLONE_NEWNET, PATIENCE_S, ip
from tests.bench.load import LoadRack
from tests.bench.report import ROOT, record, spread, summarize
from tests.bench.wire import WISHES, on_wire

RANKS = WISHES.ranks
TENSOR_BYTES = 16 << 20
HUB_IP = "10.78.0.1"
INTERFACE = "rank0"
"""The same name in every namespace."""
STORE_PORT = 29511


class Switch:
    """A bridge, and a namespace for each rank with a veth to it."""

    def __init__(self) -> None:
        self.hub = f"psc-hub-{os.getpid()}"
        self.addresses = [f"10.78.0.{10 + rank}" for rank in range(RANKS)]

    def namespace(self, rank: int) -> str:
        return f"{self.hub}-{self.addresses[rank]}"

    def __enter__(self) -> Self:
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "br0", "mtu", "9000", "type", "bridge")
        ip("-n", self.hub, "address", "add", f"{HUB_IP}/24", "dev", "br0")
        for interface in ("lo", "br0"):
            ip("-n", self.hub, "link", "set", interface, "up")
        for rank in range(RANKS):
            self._plug(rank)
        return self

    def _plug(self, rank: int) -> None:
        name, port = self.namespace(rank), f"port{rank}"
        ip("netns", "add", name)
        ip("-n", self.hub, "link", "add", port, "mtu", "9000", "type", "veth", "peer", "name", f"r{rank}")
        ip("-n", self.hub, "link", "set", f"r{rank}", "netns", name, "name", INTERFACE, "mtu", "9000")
        ip("-n", self.hub, "link", "set", port, "master", "br0", "up")
        ip("-n", name, "address", "add", f"{self.addresses[rank]}/24", "dev", INTERFACE)
        for interface in ("lo", INTERFACE):
            ip("-n", name, "link", "set", interface, "up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in [*(self.namespace(rank) for rank in range(RANKS)), self.hub]:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


# ---- Gloo ----


def gloo_rank(switch: Switch, rank: int, repetitions: int, pipe: Connection) -> None:
    """One rank, in its namespace: seconds of each all-reduce."""
    import torch
    from torch import distributed

    with Path(f"/run/netns/{switch.namespace(rank)}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{switch.addresses[0]}:{STORE_PORT}", rank=rank, world_size=RANKS
    )
    pattern = torch.arange(TENSOR_BYTES // 4) % 7
    expected = (RANKS * (RANKS - 1) // 2 + RANKS * pattern).float()
    seconds = []
    for _ in range(repetitions):
        tensor = (pattern + rank).float()
        distributed.barrier()
        begin = time.monotonic()
        distributed.all_reduce(tensor)
        distributed.barrier()
        seconds.append(time.monotonic() - begin)
        assert torch.equal(tensor, expected), "a wrong sum"
    pipe.send(seconds)
    distributed.destroy_process_group()


def gloo(switch: Switch, repetitions: int) -> list[float]:
    """Seconds on rank 0. Forked, for torch takes longer to import than to measure."""
    import torch.distributed  # noqa: F401

    fork = multiprocessing.get_context("fork")
    ours, theirs = zip(*(fork.Pipe(duplex=False) for _ in range(RANKS)), strict=True)
    ranks = [
        fork.Process(target=gloo_rank, args=(switch, rank, repetitions, theirs[rank]), daemon=True)
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    try:
        if not ours[0].poll(PATIENCE_S):
            raise TimeoutError("Gloo has no result")
        seconds: list[float] = ours[0].recv()
        for process in ranks:
            process.join(PATIENCE_S)
    finally:
        for process in ranks:
            process.kill()
    return seconds


# ---- MPI ----


def compile_mpi(folder: Path) -> Path:
    """The driver, by the installed MPI's compiler."""
    program = folder / "allreduce_mpi"
    subprocess.run(
        ["mpicc", "-O2", "-o", str(program), str(ROOT / "tests/bench/allreduce_mpi.c")], check=True
    )
    return program


def mpi_version() -> str:
    """As it calls itself."""
    text = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    return text.splitlines()[0]


def mpi(switch: Switch, program: Path, folder: Path, repetitions: int) -> list[float]:
    """Seconds on rank 0. What Open MPI takes for a remote shell enters the namespace of the host's address."""
    agent = folder / "enter"
    agent.write_text(f'#!/bin/sh\nhost=$1; shift\nexec ip netns exec "{switch.hub}-$host" sh -c "$*"\n')
    agent.chmod(0o755)
    settings = {
        "plm_rsh_agent": agent,
        "plm_rsh_no_tree_spawn": 1,
        "pml": "ob1",
        "btl": "tcp,self",  # not the memory that namespaces of one machine share
        "btl_tcp_if_include": "10.78.0.0/24",
        "oob_tcp_if_include": "10.78.0.0/24",
        "mpi_yield_when_idle": 1,  # more ranks than cores
    }
    command = ["ip", "netns", "exec", switch.hub, "mpirun", "--allow-run-as-root", "--bind-to", "none"]
    command += ["--host", ",".join(f"{address}:1" for address in switch.addresses)]
    for name, value in settings.items():
        command += ["--mca", name, str(value)]
    command += [str(program), str(TENSOR_BYTES // 4), str(repetitions)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"mpirun ends with {run.returncode}: {run.stderr or run.stdout}")
    return [float(line) for line in run.stdout.split()]


# ---- All of them ----


def pascaline(seconds: float) -> dict[str, float]:
    """Generator and appliance over af_packet, without priority."""
    with tempfile.TemporaryDirectory() as name:
        rack = LoadRack(f"psc-peers-{os.getpid()}")
        try:
            return on_wire(rack, rack.ends("af_packet", Path(name)), Path(name), seconds, first=False)
        finally:
            rack.close()


def gbit_s(seconds: list[float]) -> float:
    """The middle one; the first opens connections."""
    return TENSOR_BYTES * 8 / statistics.median(seconds[1:]) / 1e9


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    found: dict[str, list[float]] = {"gloo": [], "mpi": [], "pascaline_af_packet": []}
    with tempfile.TemporaryDirectory() as name, Switch() as switch:
        program = compile_mpi(Path(name))
        for number in range(options.repetitions):
            found["gloo"].append(gbit_s(gloo(switch, 6)))
            found["mpi"].append(gbit_s(mpi(switch, program, Path(name), 6)))
            found["pascaline_af_packet"].append(pascaline(2)["gbit_s"])
            print(
                f"{number + 1}: " + ", ".join(f"{who} {rows[-1]:.2f} Gbit/s" for who, rows in found.items()),
                flush=True,
            )
    rows: dict[str, Any] = {who: {"gbit_s": spread(values)} for who, values in found.items()}
    record(
        "peers",
        {"rows": rows, "runs": found, "ranks": RANKS, "tensor_bytes": TENSOR_BYTES, "mpi": mpi_version()},
    )
    summarize({f"{name}_gbit_s": rows[name]["gbit_s"]["median"] for name in ("gloo", "mpi")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
