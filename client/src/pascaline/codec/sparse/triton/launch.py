"""The host's side: tensors in, grids out. Offsets of the blocks are sums that stay on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from pascaline.codec.sparse.triton import kernels

BLOCK = 1024
LAUNCH = {"num_warps": 4}


def mark(x: Tensor, least: int, bitmap: Tensor) -> Tensor:
    """Write to `bitmap`, i32 (words,), which of x, f32 (elems,), have |x| >= `least` as u32; returns how many, i64 (),
    on the device.
    """
    blocks = _blocks(x.numel())
    counts = torch.empty(blocks, dtype=torch.int32, device=x.device)
    kernels.mark[(blocks,)](x.view(torch.int32), bitmap, counts, least, x.numel(), BLOCK=BLOCK, **LAUNCH)
    return counts.sum()


def pack(x: Tensor, chosen: Tensor, packed: Tensor) -> None:
    """Write to `packed`, i32 (bits of chosen,), x's 4-byte elements where `chosen`, i32 (words,), is 1."""
    words, elems = x.view(torch.int32), x.numel()
    starts = _starts(chosen, elems)
    kernels.pack[(_blocks(elems),)](words, chosen, starts, packed, elems, BLOCK=BLOCK, **LAUNCH)


def unpack(packed: Tensor, chosen: Tensor, values: Tensor) -> None:
    """Write to `values`, 4 bytes each (elems,), `packed`, i32 (bits of chosen,), where `chosen` is 1; 0 elsewhere."""
    words, elems = values.view(torch.int32), values.numel()
    starts = _starts(chosen, elems)
    kernels.unpack[(_blocks(elems),)](packed, chosen, starts, words, elems, BLOCK=BLOCK, **LAUNCH)


def _blocks(elems: int) -> int:
    return -(-elems // BLOCK)


def _starts(bitmap: Tensor, elems: int) -> Tensor:
    """Where each block's values begin, i64 (blocks,)."""
    counts = torch.empty(_blocks(elems), dtype=torch.int32, device=bitmap.device)
    kernels.count[(counts.numel(),)](bitmap, counts, elems, BLOCK=BLOCK, **LAUNCH)
    return counts.cumsum(0) - counts
