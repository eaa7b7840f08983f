"""thc's C kernels against one memcpy() of the same 256 MiB of float32: CPU, one thread, everything on.

Everything: a scale for each block, stratified rounding, rotation drawn anew; the norms count as encoding. A tensor goes
through chunk by chunk, as a session sends it; memcpy copies all of it in one call (libc's, which then writes past the
cache), into memory that has been touched. Each measurement stands between two copies and is divided into their mean, so
that a machine that other work slows down slows both; the medians of these ratios are the result.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from pascaline.codec.thc import Params, kernels, setting
from tests.bench.report import commit, machine, spread

from . import lhc, sparse

ELEMS = 64 << 20
RANKS, RANK, SEED = 8, 3, 0x0123456789ABCDEF
LOSS_SCALE = 1024.0


def page_aligned(elems: int, dtype: type) -> np.ndarray:
    """Memory as torch has it for a tensor; numpy would ask for huge pages.

    Touched, because the first touch is the kernel's time.
    """
    room = torch.empty((elems + 4096) * np.dtype(dtype).itemsize, dtype=torch.uint8).numpy().view(dtype)
    start = -room.ctypes.data % 4096 // room.itemsize
    array = room[start : start + elems]
    array[:] = 1
    return array


class Bench:
    """The tensors, and one method for each thing that is measured."""

    def __init__(self, params: Params, chunk_elems: int) -> None:
        generator = np.random.default_rng(1)
        self.params, self.chunk_elems = params, chunk_elems
        self.grad, self.residual, self.out = (page_aligned(ELEMS, np.float32) for _ in range(3))
        for start in range(0, ELEMS, 1 << 20):
            part = slice(start, start + (1 << 20))
            self.grad[part] = generator.standard_normal(1 << 20, np.float32) * np.float32(LOSS_SCALE)
            self.residual[part] = generator.standard_normal(1 << 20, np.float32) * np.float32(0.1)
        sums = np.uint8 if params.sum_bits == 8 else np.uint16
        self.sums = page_aligned(ELEMS, sums)
        self.sums[:] = generator.integers(0, params.g * RANKS + 1, 1 << 20).astype(sums).repeat(ELEMS >> 20)
        self.packed = page_aligned(params.packed_bytes(ELEMS), np.uint8)
        self.scales = page_aligned(params.blocks(ELEMS), np.float32)
        self.libc_memcpy = ctypes.CDLL(None).memcpy
        self.libc_memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self.libc_memcpy.restype = ctypes.c_void_p

    def memcpy(self) -> None:
        """All of the tensor, in one call."""
        self.libc_memcpy(self.out.ctypes.data, self.grad.ctypes.data, self.grad.nbytes)

    def encode(self) -> None:
        """Norms and indices, chunk by chunk."""
        self._encode(None, None)

    def encode_ef(self) -> None:
        """The same with error feedback: gradient + residual, and the new residual."""
        self._encode(self.residual, self.out)

    def _encode(self, residual: np.ndarray | None, out: np.ndarray | None) -> None:
        for chunk, part, blocks, packed in self._chunks():
            old, new = (None if one is None else one[part] for one in (residual, out))
            grad, scales = self.grad[part], self.scales[blocks]
            kernels.norms(self.params, grad, old, LOSS_SCALE, scales)
            kernels.encode(
                self.params, RANK, 1, chunk, grad, old, new, LOSS_SCALE, scales, ELEMS, self.packed[packed]
            )

    def decode(self) -> None:
        """Sums of all ranks to values."""
        for chunk, part, blocks, _ in self._chunks():
            kernels.decode(
                self.params, 1, chunk, RANKS, self.sums[part], self.scales[blocks], ELEMS, self.out[part]
            )

    def _chunks(self):
        for chunk, start in enumerate(range(0, ELEMS, self.chunk_elems)):
            end = start + self.chunk_elems
            packed = slice(self.params.packed_bytes(start), self.params.packed_bytes(end))
            yield chunk, slice(start, end), slice(start // 1024, end // 1024), packed


def timed_s(work: Callable[[], None]) -> float:
    """Of this thread, so that the time of others on a busy machine is not in it."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def measure(bench: Bench, repetitions: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds and ratios of each measurement, repetition by repetition."""
    works = {"encode": bench.encode, "encode_ef": bench.encode_ef, "decode": bench.decode}
    found = {name: {"ms": [], "over_memcpy": []} for name in works}
    found["memcpy"] = {"ms": []}
    for work in (bench.memcpy, *works.values()):
        work()
    for _ in range(repetitions):
        before = timed_s(bench.memcpy)
        for name, work in works.items():
            own, after = timed_s(work), timed_s(bench.memcpy)
            found[name]["ms"].append(own * 1e3)
            found[name]["over_memcpy"].append((before + after) / 2 / own)
            found["memcpy"]["ms"].append(after * 1e3)
            before = after
    return found


def main() -> None:
    """Measure and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--chunk-kib", type=int, default=512, help="of float32, in one chunk")
    options = parser.parse_args()
    params = setting("thc", RANKS, SEED)
    load_before = os.getloadavg()[0]
    found = measure(Bench(params, options.chunk_kib * 256), options.repetitions)
    result = {
        f"thc_{name}_over_memcpy": spread(found[name]["over_memcpy"])["median"]
        for name in found
        if name != "memcpy"
    }
    result |= {
        "spread": {name: {what: spread(each) for what, each in one.items()} for name, one in found.items()},
        "repetitions": options.repetitions,
        "tensor_bytes": 4 * ELEMS,
        "chunk_bytes": options.chunk_kib * 1024,
        "clock": "CPU time of one thread",
        "setting": {
            "name": "thc",
            "n": RANKS,
            "bits": params.bits,
            "g": params.g,
            "sum_bits": params.sum_bits,
        },
        "variant": kernels.variant(),
        "compiler": kernels.compiler(),
        "machine": machine(),
        "load_average": [load_before, os.getloadavg()[0]],
        "commit": commit(),
    }
    result |= sparse.measure(
        ELEMS, options.chunk_kib * 256, options.repetitions, timed_s, page_aligned, spread
    )
    result |= lhc.measure(
        ELEMS // 4, options.chunk_kib * 256, options.repetitions, timed_s, page_aligned, spread
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    for name, one in result["spread"].items():
        ratio = one.get("over_memcpy", {}).get("median", 1)
        print(f"{name:10} {one['ms']['median']:7.1f} ms  {ratio:.2f} of memcpy's speed")
    print({key: result[key] for key in (*sparse.BOUNDS, *lhc.BOUNDS)})
    sys.exit("\n".join(sparse.missed(result) + lhc.missed(result)) or None)


if __name__ == "__main__":
    main()
