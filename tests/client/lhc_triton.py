"""The Triton kernels of lhc run by Triton's interpreter and compared with the reference bit by bit.

A process of its own, for TRITON_INTERPRET is read when the kernels are defined: `TRITON_INTERPRET=1 python -m
tests.client.lhc_triton`. Prints how many chunks agreed; ends with the first that does not.
"""

from __future__ import annotations

import numpy as np
import torch

from pascaline.codec.lhc import Hash, Params, blocks, reference
from pascaline.codec.lhc import triton as kernels
from pascaline.codec.lhc.triton import launch
from pascaline.codec.sparse.reference import bitmap_of

SEED = 0xDEADBEEF12345678
FACTORS = (2.0**12, 0.5)


def same(name: str, got: torch.Tensor, wanted: np.ndarray) -> None:
    """Bits, not values."""
    if got.numpy().tobytes() != wanted.tobytes():
        at = np.flatnonzero(got.numpy().view(np.uint32) != wanted.view(np.uint32))[:5]
        raise SystemExit(f"{name}: {got.numpy()[at]} instead of {wanted[at]} at {at}")


def compare(elems: int, share: float, permille: int) -> None:
    """One chunk through sketch, check and peel."""
    rng = np.random.default_rng(elems)
    values = np.where(rng.random(elems) < share, rng.standard_normal(elems) * 1e5, 0).astype(np.float32)
    values[: elems // 4] = np.rint(values[: elems // 4]) / np.float32(4096)  # halves, once they are scaled
    union = bitmap_of((values != 0) | (rng.random(elems) < share / 4))
    hash_ = Hash(SEED, 0x9ABCDEF0, 5, Params(SEED, permille).rows(int(share * elems)))
    integers = reference.integers(values, FACTORS)
    omitted = reference.peel(hash_, union, elems)[1]
    bits = torch.from_numpy(union.view(np.int32))
    for left_out in (None, omitted):
        name = f"{elems} elements, {share}, {permille}"
        wanted = reference.sketch(hash_, integers, left_out)
        table = torch.full((wanted.size,), 77, dtype=torch.int32)
        leave = None if left_out is None else torch.from_numpy(left_out.view(np.int32))
        kernels.sketch(hash_, torch.from_numpy(values), FACTORS, leave, table)
        same(f"{name}, sketch", table, wanted)
        recovered, unpeeled = reference.peel(hash_, union, elems, wanted)
        marked, got = torch.full((blocks(elems),), 77, dtype=torch.int32), torch.full((elems,), 77.0)
        kernels.check(hash_, bits, elems, marked)
        same(f"{name}, check", marked, unpeeled)
        kernels.peel(hash_, bits, table, (0.5, 2.0**-11), got, marked)
        same(f"{name}, peel", marked, unpeeled)
        same(f"{name}, values", got, reference.floats(recovered, (0.5, 2.0**-11)))


def main() -> None:
    """A program takes the interpreter long: so most cases have large ones, a few rounds in parallel, and `finish`."""
    launch.ROUNDS = 2
    compare(300, 0.2, 1300)
    launch.ROWS = 64
    cases = [
        (1, 1.0, 1300),
        (33, 0.9, 1300),
        (1000, 0.05, 1300),
        (700, 0.5, 1000),
        (1100, 0.9, 150),
        (2500, 0.1, 1300),
    ]
    for case in cases:
        compare(*case)
    launch.ROUNDS = 12
    compare(500, 0.2, 1300)
    print(f"{len(cases) + 2} chunks agree")


if __name__ == "__main__":
    main()
