"""The host's side of lhc's Triton kernels. Tensors are contiguous and lie on the current device; bitmaps are int32.

Launches ask for no FMA contraction. A peel is 2 * ROUNDS + 4 launches at most, and reads nothing back in between.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pascaline.codec.lhc.params import CROWDED, blocks, buckets
from pascaline.codec.lhc.reference import STREAM_PLACES, STREAM_SIGNS, Hash
from pascaline.codec.lhc.triton import kernels
from pascaline.codec.thc import philox

LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}
"""Options of every launch and every ahead-of-time compilation."""
ROWS = 8
"""Blocks of one program."""
ROUNDS = 32
"""Of peeling in parallel: at 1.30 buckets nearly all of 67 M elements have peeled after 25."""
_STREAMS = {"PLACES": STREAM_PLACES, "SIGNS": STREAM_SIGNS}


def sketch(
    hash_: Hash, values: Tensor, factors: tuple[float, float], left_out: Tensor | None, table: Tensor
) -> None:
    """Write the sketch of round(values * factors), int32 (buckets,), to `table`; values: f32 (elems,)."""
    table.zero_()
    kernels.sketch[_programs(values.numel())](
        values,
        table if left_out is None else left_out,
        table,
        *_numbers(hash_, values.numel()),
        *factors,
        OMIT=left_out is not None,
        ROWS=ROWS,
        **_STREAMS,
        **LAUNCH,
    )


def check(hash_: Hash, union: Tensor, elems: int, unpeeled: Tensor) -> None:
    """`unpeeled`, int32 (blocks,), becomes the bitmap of the union's elements that do not peel."""
    _peel(hash_, union, elems, None, unpeeled)


def peel(
    hash_: Hash,
    union: Tensor,
    table: Tensor,
    factors: tuple[float, float],
    values: Tensor,
    unpeeled: Tensor,
) -> None:
    """As `check`; and `values`, f32 (elems,), become what peeled times the factors, 0 elsewhere. Uses up the table."""
    elems = values.numel()
    integers = _peel(hash_, union, elems, table, unpeeled)
    size = 32 * ROWS
    kernels.scale[(-(-elems // size),)](integers, values, elems, *factors, SIZE=size, **LAUNCH)


def _peel(hash_: Hash, union: Tensor, elems: int, table: Tensor | None, left: Tensor) -> Tensor:
    """The integers of what peels, int32 (elems rounded up to blocks,), if there is a table; `left` is the rest."""
    counts = torch.zeros(buckets(hash_.rows), dtype=torch.int32, device=union.device)
    numbers = _numbers(hash_, elems)
    kernels.count[_programs(elems)](union, left, counts, *numbers, PLACES=STREAM_PLACES, ROWS=ROWS, **LAUNCH)
    counts.masked_fill_(counts >= CROWDED, 1 << 30)  # never 1 again
    turn = torch.zeros_like(left)
    size = blocks(elems) * 32 if table is not None else 1
    integers = torch.zeros(size, dtype=torch.int32, device=union.device)
    arrays = (counts if table is None else table, left, turn, integers, counts)
    constants: dict[str, Any] = {"VALUES": table is not None, "ROWS": ROWS, **_STREAMS, **LAUNCH}
    for _ in range(ROUNDS):
        kernels.find[_programs(elems)](*arrays, *numbers, **constants)
        kernels.take[_programs(elems)](*arrays, *numbers, **constants)
    kernels.finish[(1,)](*arrays, *numbers, **constants)
    return integers


def _programs(elems: int) -> tuple[int]:
    return (-(-blocks(elems) // ROWS),)


def _numbers(hash_: Hash, elems: int) -> tuple[int, ...]:
    key = philox.key_of(hash_.seed)
    return (elems, blocks(elems), hash_.sequence, hash_.chunk, hash_.rows, *key)
