"""The Triton kernels of sparse run by Triton's interpreter and compared with the reference bit by bit.

A process of its own, for TRITON_INTERPRET is read when the kernels are defined: `TRITON_INTERPRET=1 python -m
tests.client.sparse_triton`. Prints how many cases agreed; ends with the first that does not.
"""

from __future__ import annotations

import numpy as np
import torch

from pascaline.codec.sparse import reference, triton

LENGTHS = (1, 31, 32, 33, 100, 1023, 1024, 1025, 3000)
DENSITIES = (0.0, 0.02, 0.5, 1.0)


def same(name: str, got: torch.Tensor, expected: np.ndarray) -> None:
    """Bits."""
    if got.numpy().tobytes() != expected.tobytes():
        raise SystemExit(f"{name}: {got[:20]} instead of {expected[:20]}")


def compare(elems: int, density: float) -> None:
    """All three operations."""
    rng = np.random.default_rng(elems)
    words = reference.words_of(elems)
    xs = [
        np.where(rng.random(elems) < density, rng.standard_normal(elems), 0).astype(np.float32)
        for _ in range(2)
    ]
    for odd, x in zip((np.nan, -0.0), xs, strict=True):
        x[elems // 2] = odd
    bitmaps = [np.empty(words, np.uint32) for _ in xs]
    for x, bitmap in zip(xs, bitmaps, strict=True):
        for least in (0x3F000000, 1):
            count = reference.mark(x, least, bitmap)
            got = torch.empty(words, dtype=torch.int32)
            if int(triton.mark(torch.from_numpy(x), least, got)) != count:
                raise SystemExit(f"{elems} elements, density {density}: {count} are marked")
            same(f"{elems}, bitmap", got, bitmap)
    union = bitmaps[0] | bitmaps[1]
    chosen = torch.from_numpy(union.view(np.int32))
    packed = np.empty(reference.count(union), np.uint32)
    reference.pack(xs[0], union, packed)
    got = torch.full((packed.size,), 7, dtype=torch.int32)
    triton.pack(torch.from_numpy(xs[0]), chosen, got)
    same(f"{elems}, packed", got, packed)
    back, values = np.empty(elems, np.float32), torch.full((elems,), 7.0)
    reference.unpack(packed, union, back)
    triton.unpack(torch.from_numpy(packed.view(np.int32)), chosen, values)
    same(f"{elems}, values", values, back)


def main() -> None:
    """All cases."""
    for elems in LENGTHS:
        for density in DENSITIES:
            compare(elems, density)
    print(f"{len(LENGTHS) * len(DENSITIES)} cases agree")


if __name__ == "__main__":
    main()
