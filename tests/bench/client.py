"""What the client costs in a guest with soft-RoCE: CPU time per tensor byte beside memcpy's of as many bytes in the
same guest, user and system apart; what pyverbs takes for a chunk, and how many work requests are made anew.

System time is mostly the emulated NIC: rxe builds, checks and copies packets in the kernel, in the caller's time slice
too. A real NIC does that by itself; user time is the client's own. Everything is under QEMU's emulation, which is why
only ratios inside one guest mean anything. Not measured on a NIC.

    python -m tests.bench.client
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.report import FOLDER, record, spread, summarize

RANKS = 2
TENSOR_BYTES = 1 << 20
CHUNK_BYTES, WINDOW = 65536, 4
REPETITIONS = 9
WARM_UP = 2


class Pyverbs:
    """Counts calls and their CPU time between `start` and `stop`; what looking costs is subtracted."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.ns: dict[str, int] = {}
        self._overhead_ns = self._look()

    @staticmethod
    def _look() -> float:
        begin = time.thread_time_ns()
        for _ in range(1000):
            time.thread_time_ns()
        return (time.thread_time_ns() - begin) / 1000

    def watch(self, owner: type, name: str, key: str) -> None:
        """Every call of a method counts from now on."""
        real = getattr(owner, name)
        self.calls[key], self.ns[key] = 0, 0

        def watched(*arguments: Any) -> Any:
            begin = time.thread_time_ns()
            try:
                return real(*arguments)
            finally:
                self.ns[key] += time.thread_time_ns() - begin
                self.calls[key] += 1

        setattr(owner, name, watched)

    def reset(self) -> None:
        for key in self.calls:
            self.calls[key] = self.ns[key] = 0

    def taken(self) -> dict[str, dict[str, float]]:
        return {
            key: {
                "calls": calls,
                "us_each": (self.ns[key] / calls - self._overhead_ns) / 1e3 if calls else 0.0,
            }
            for key, calls in self.calls.items()
        }


def used_s() -> tuple[float, float]:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def copied_s(room: Any, tensor: Any, times: int = 20) -> float:
    """User time of one memcpy of the tensor."""
    libc = ctypes.CDLL(None)
    libc.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    begin = time.thread_time()
    for _ in range(times):
        libc.memcpy(room.ctypes.data, tensor.ctypes.data, tensor.nbytes)
    return (time.thread_time() - begin) / times


def rank_body(_rank: int) -> dict[str, Any]:
    """All measurements of one rank."""
    import numpy as np

    import pascaline
    from pascaline.link.verbs.pool import VerbsPool

    pyverbs = Pyverbs()
    pyverbs.watch(VerbsPool, "write", "write")
    pyverbs.watch(VerbsPool, "post_receive", "post_receive")
    pyverbs.watch(VerbsPool, "_new_send", "new_work_request")
    tensor = np.ones(TENSOR_BYTES // 4, np.float32)
    room = np.empty_like(tensor)
    rows = []
    with pascaline.Session(job="client-cost", codec="f32", chunk_bytes=CHUNK_BYTES, window=WINDOW) as session:
        for number in range(WARM_UP + REPETITIONS):
            if number == WARM_UP:
                pyverbs.reset()
            before_s = copied_s(room, tensor)
            user_s, system_s = used_s()
            session.all_reduce(tensor)
            user_s, system_s = (now - then for now, then in zip(used_s(), (user_s, system_s), strict=True))
            memcpy_s = (before_s + copied_s(room, tensor)) / 2
            rows.append({"user_s": user_s, "system_s": system_s, "memcpy_s": memcpy_s})
    assert np.all(tensor == RANKS ** (WARM_UP + REPETITIONS)), "a wrong sum"
    return {"rows": rows[WARM_UP:], "pyverbs": pyverbs.taken()}


def inside(folder: Path) -> None:
    """In the guest."""
    from tests.softroce.appliance import Appliance
    from tests.softroce.ranks import Ranks

    with (
        tempfile.TemporaryDirectory() as own,  # a share has no sockets
        Appliance(Path(own)) as appliance,
        Ranks(RANKS, rank_body, appliance.address) as ranks,
    ):
        (folder / "found.json").write_text(json.dumps(ranks.results(timeout_s=900)))


def judge(found: list[dict[str, Any]], place: str) -> dict[str, Any]:
    """Of all ranks and repetitions."""
    rows = [row for rank in found for row in rank["rows"]]
    chunks = REPETITIONS * TENSOR_BYTES // CHUNK_BYTES
    return {
        "place": place,
        "ranks": RANKS,
        "tensor_bytes": TENSOR_BYTES,
        "chunk_bytes": CHUNK_BYTES,
        "user_over_memcpy": spread([row["user_s"] / row["memcpy_s"] for row in rows]),
        "system_over_memcpy": spread([row["system_s"] / row["memcpy_s"] for row in rows]),
        "user_ns_per_byte": spread([row["user_s"] / TENSOR_BYTES * 1e9 for row in rows]),
        "system_ns_per_byte": spread([row["system_s"] / TENSOR_BYTES * 1e9 for row in rows]),
        "memcpy_ns_per_byte": spread([row["memcpy_s"] / TENSOR_BYTES * 1e9 for row in rows]),
        "chunks_a_rank": chunks,
        "pyverbs": [rank["pyverbs"] for rank in found],
    }


def main() -> int:
    """One visit to the guest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inside", type=Path, help="measure, into this folder")
    options = parser.parse_args()
    if options.inside:
        inside(options.inside)
        return 0
    from tests.softroce import bench

    folder = FOLDER / "client"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.bench.client", "--inside", str(folder)]
    outcome = bench.run(bench.Task(command, share=folder, workers=RANKS, memory_mb=1024))
    print(outcome)
    if outcome.status != 0:
        return outcome.status
    result = judge(json.loads((folder / "found.json").read_text()), outcome.place)
    record("client", result)
    summarize({"client_cpu_over_memcpy_same_guest": result["user_over_memcpy"]["median"]})
    for name in ("user_over_memcpy", "system_over_memcpy"):
        print(f"{name}: {result[name]}")
    print(f"pyverbs: {result['pyverbs']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
