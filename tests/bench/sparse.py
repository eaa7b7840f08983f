"""sparse's C kernels against one memcpy() of the same dense 256 MiB of float32: CPU, one thread, random supports.

Pack: the bitmap of what is not zero, then the values that it chooses, chunk by chunk, as a session sends them. Unpack:
the dense tensor from bitmap and values. In one phase (`stream_`): a rank's stream, bitmap and length included, and the
dense tensor from a stream, its checks included. Each measurement stands between two copies, as codecs.py has it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from pascaline.codec.sparse import kernels, stream, stream_kernels

DENSITIES = (0.01, 0.10, 0.30)
BOUNDS = {"sparse_pack_over_memcpy": 0.5, "sparse_unpack_over_memcpy": 1.0}
BOUNDS |= {"sparse_stream_pack_over_memcpy": 0.5, "sparse_stream_unpack_over_memcpy": 1.0}
WORKS = ("pack", "unpack", "stream_pack", "stream_unpack")


class Bench:
    """One density's tensor, bitmap and values."""

    def __init__(
        self, density: float, elems: int, chunk_elems: int, page_aligned: Callable[..., np.ndarray]
    ) -> None:
        rng = np.random.default_rng(int(density * 1000))
        self.chunk_elems = chunk_elems
        self.x, self.out = page_aligned(elems, np.float32), page_aligned(elems, np.float32)
        for start in range(0, elems, 1 << 20):
            part = slice(start, start + (1 << 20))
            chosen = rng.random(1 << 20, np.float32) < density
            self.x[part] = np.where(chosen, rng.standard_normal(1 << 20, np.float32), 0)
        self.bitmap = page_aligned(elems // 32, np.uint32)
        self.packed = page_aligned(elems, np.uint32)
        self.counts = [0] * (elems // chunk_elems)
        self.stream_elems = stream.chunk_elems(4 * chunk_elems)
        self.streams = page_aligned(elems // self.stream_elems * chunk_elems + chunk_elems, np.uint32)
        self.lengths_bytes = [0] * -(-elems // self.stream_elems)
        self._memcpy = ctypes.CDLL(None).memcpy
        self._memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self._memcpy.restype = ctypes.c_void_p

    def memcpy(self) -> None:
        """All of the tensor, in one call."""
        self._memcpy(self.out.ctypes.data, self.x.ctypes.data, self.x.nbytes)

    def pack(self) -> None:
        """Bitmap, then values."""
        for number, (elements, words) in enumerate(self._chunks()):
            x, bitmap = self.x[elements], self.bitmap[words]
            count = self.counts[number] = kernels.mark(x, 1, bitmap)
            kernels.pack(x, bitmap, self.packed[elements.start : elements.start + count])

    def unpack(self) -> None:
        """The dense tensor again."""
        for number, (elements, words) in enumerate(self._chunks()):
            packed = self.packed[elements.start : elements.start + self.counts[number]]
            kernels.unpack(packed, self.bitmap[words], self.out[elements])

    def stream_pack(self) -> None:
        """Bitmap, length and stream."""
        for number, (elements, room) in enumerate(self._streams()):
            x = self.x[elements]
            bitmap = self.bitmap[: -(-x.size // 32)]
            kernels.mark(x, 1, bitmap)
            length_bytes = self.lengths_bytes[number] = stream_kernels.length_bytes(x.size, bitmap)
            stream_kernels.write(x, None, bitmap, x.size, room[:length_bytes])

    def stream_unpack(self) -> None:
        """The dense tensor again."""
        for number, (elements, room) in enumerate(self._streams()):
            out, made = self.out[elements], room[: self.lengths_bytes[number]]
            stream_kernels.check(out.size, made)
            stream_kernels.unpack(out.size, made, None, out)

    def _streams(self):
        for number, start in enumerate(range(0, self.x.size, self.stream_elems)):
            room = self.streams[number * self.chunk_elems : (number + 1) * self.chunk_elems]
            yield slice(start, min(start + self.stream_elems, self.x.size)), room.view(np.uint8)

    def _chunks(self):
        for start in range(0, self.x.size, self.chunk_elems):
            end = start + self.chunk_elems
            yield slice(start, end), slice(start // 32, end // 32)


def measure(
    elems: int,
    chunk_elems: int,
    repetitions: int,
    timed_s: Callable[[Callable[[], None]], float],
    page_aligned: Callable[..., np.ndarray],
    spread: Callable[[list[float]], dict[str, float]],
) -> dict[str, Any]:
    """The keys, each the median at its worst density, and under `sparse` all densities."""
    found: dict[str, Any] = {}
    for density in DENSITIES:
        bench = Bench(density, elems, chunk_elems, page_aligned)
        works = {name: getattr(bench, name) for name in WORKS}
        ratios: dict[str, list[float]] = {name: [] for name in works}
        bench.memcpy()
        for name, work in works.items():
            if name.endswith("unpack"):
                bench.out[:] = 0
            work()
            assert np.array_equal(bench.out, bench.x)
        for _ in range(repetitions):
            before = timed_s(bench.memcpy)
            for name, work in works.items():
                own, after = timed_s(work), timed_s(bench.memcpy)
                ratios[name].append((before + after) / 2 / own)
                before = after
        found[f"density {density:g}"] = {name: spread(each) for name, each in ratios.items()}
    worst = {
        f"sparse_{name}_over_memcpy": min(one[name]["median"] for one in found.values()) for name in WORKS
    }
    return worst | {"sparse": found}


def missed(found: dict[str, Any]) -> list[str]:
    """A sentence for each bound that is not reached."""
    return [
        f"{key} is {found[key]}, below its bound of {bound}"
        for key, bound in BOUNDS.items()
        if found[key] < bound
    ]
