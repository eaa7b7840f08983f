"""lhc's C kernels against the plain C of plain_lhc.c: one thread, -O3, the same hash, layout and bits.

A tensor goes through chunk by chunk, as a session sends it, its support random. Plain and kernel take turns and are
divided into each other; medians. Sketching reads float32 and writes a sketch; peeling takes a union's bitmap and its
sketch, and makes dense float32 of them, hashing and counting included.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cffi
import numpy as np

from pascaline.codec.lhc import Hash, Params, blocks, kernels
from pascaline.codec.sparse import kernels as sparse_kernels

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("plain_lhc.c")
FLAGS = ("-std=c11", "-O3", "-fno-math-errno", "-ffp-contract=off")
"""Without errno lrintf() is one instruction, as it is in the kernels."""
DENSITIES = {"5": 0.05, "20": 0.20}
BOUNDS = {
    "lhc_sketch_over_plain_c_5": 2.5,
    "lhc_sketch_over_plain_c_20": 3.5,
    "lhc_peel_over_plain_c": 1.5,
}
FACTORS = (2.0**20, 1.0)
SEED = 0x0123456789ABCDEF

ffi = cffi.FFI()
ffi.cdef("""
struct hash { uint64_t seed; uint32_t sequence, chunk, rows; };
void plain_sketch(const struct hash *hash, const float *values, float first, float rest, uint64_t elems,
                  int32_t *table);
uint64_t plain_scratch_bytes(uint64_t elems, uint32_t rows);
uint64_t plain_peel(const struct hash *hash, const uint32_t *all, uint64_t elems, int32_t *table, float first,
                    float rest, float *values, void *scratch);
""")


def plain() -> Any:
    """The reference, compiled now."""
    library = ROOT / "build" / "bench" / "plain_lhc.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-lm"], check=True)
    return ffi.dlopen(str(library))


def pointer(array: np.ndarray, type_: str) -> Any:
    """As C has it."""
    return ffi.cast(type_, array.ctypes.data)


class Bench:
    """One density's tensor, unions and sketches."""

    def __init__(
        self, density: float, elems: int, chunk_elems: int, page_aligned: Callable[..., np.ndarray]
    ) -> None:
        rng = np.random.default_rng(int(density * 1000))
        self.plain = plain()
        self.chunk_elems = chunk_elems
        self.x, self.out = page_aligned(elems, np.float32), page_aligned(chunk_elems, np.float32)
        for start in range(0, elems, 1 << 20):
            chosen = rng.random(1 << 20, np.float32) < density
            self.x[start : start + (1 << 20)] = np.where(chosen, rng.standard_normal(1 << 20, np.float32), 0)
        self.union = page_aligned(elems // 32, np.uint32)
        self.unpeeled = np.empty(blocks(chunk_elems), np.uint32)
        self.chunks = []
        for number, begin in enumerate(range(0, elems, chunk_elems)):
            part, words = slice(begin, begin + chunk_elems), slice(begin // 32, (begin + chunk_elems) // 32)
            count = sparse_kernels.mark(self.x[part], 1, self.union[words])
            hash_ = Hash(SEED, 1, number, Params(SEED).rows(count))
            self.chunks.append((hash_, self.x[part], self.union[words], np.empty(hash_.size, np.int32)))
        rows = max(hash_.rows for hash_, *_ in self.chunks)
        self.scratch = np.empty(kernels.scratch_words(chunk_elems, rows), np.uint32)
        self.plain_scratch = np.empty(self.plain.plain_scratch_bytes(chunk_elems, rows), np.uint8)
        self.used_up = np.empty(max(hash_.size for hash_, *_ in self.chunks), np.int32)

    def sketch(self) -> None:
        """Ours."""
        for hash_, x, _, table in self.chunks:
            kernels.sketch(hash_, x, FACTORS, None, table)

    def plain_sketch(self) -> None:
        """Plain."""
        for hash_, x, _, table in self.chunks:
            self.plain.plain_sketch(
                ffi.new("struct hash *", tuple(hash_)),
                pointer(x, "float *"),
                *FACTORS,
                x.size,
                pointer(table, "int32_t *"),
            )

    def peel(self) -> None:
        """Ours; the sketch is copied, for it is used up, and so is it there."""
        for hash_, _, union, table in self.chunks:
            used_up = self.used_up[: table.size]
            used_up[:] = table
            kernels.peel(hash_, union, used_up, (2.0**-20, 1.0), self.out, self.unpeeled, self.scratch)

    def plain_peel(self) -> None:
        """Plain."""
        for hash_, _, union, table in self.chunks:
            used_up = self.used_up[: table.size]
            used_up[:] = table
            self.plain.plain_peel(
                ffi.new("struct hash *", tuple(hash_)),
                pointer(union, "uint32_t *"),
                self.chunk_elems,
                pointer(used_up, "int32_t *"),
                2.0**-20,
                1.0,
                pointer(self.out, "float *"),
                pointer(self.plain_scratch, "void *"),
            )

    def agree(self) -> None:
        """Both give the same bits, of the last chunk."""
        made = []
        for sketch, peel in ((self.sketch, self.peel), (self.plain_sketch, self.plain_peel)):
            sketch()
            peel()
            made.append((self.chunks[-1][3].tobytes(), self.out.tobytes()))
        if made[0] != made[1]:
            raise SystemExit("lhc's kernels and plain_lhc.c differ")


def measure(
    elems: int,
    chunk_elems: int,
    repetitions: int,
    timed_s: Callable[[Callable[[], None]], float],
    page_aligned: Callable[..., np.ndarray],
    spread: Callable[[list[float]], dict[str, float]],
) -> dict[str, Any]:
    """The keys, and under `lhc` both densities: ratios, and milliseconds for the tensor."""
    found: dict[str, Any] = {}
    for name, density in DENSITIES.items():
        bench = Bench(density, elems, chunk_elems, page_aligned)
        bench.agree()
        ratios: dict[str, list[float]] = {"sketch": [], "peel": []}
        times: dict[str, list[float]] = {"sketch": [], "peel": []}
        for _ in range(repetitions):
            for what, ours, theirs in (
                ("sketch", bench.sketch, bench.plain_sketch),
                ("peel", bench.peel, bench.plain_peel),
            ):
                own = timed_s(ours)
                ratios[what].append(timed_s(theirs) / own)
                times[what].append(own * 1e3)
        found[name] = {f"{what}_over_plain_c": spread(each) for what, each in ratios.items()}
        found[name] |= {f"{what}_ms": spread(each) for what, each in times.items()}
    keys = {
        f"lhc_sketch_over_plain_c_{name}": one["sketch_over_plain_c"]["median"] for name, one in found.items()
    }
    keys["lhc_peel_over_plain_c"] = min(one["peel_over_plain_c"]["median"] for one in found.values())
    return keys | {"lhc": found | {"elements": elems, "plain_flags": " ".join(FLAGS)}}


def missed(found: dict[str, Any]) -> list[str]:
    """A sentence for each bound that is not reached."""
    return [
        f"{key} is {found[key]}, below its bound of {bound}"
        for key, bound in BOUNDS.items()
        if found[key] < bound
    ]
