"""Which part of a bucket travels how: compressed, plain, in the bucket's own memory or through a float32 copy.

A bucket whose parameters all travel alike as float32 is reduced where it is. Else each part is gathered into a flat
tensor of its own, and its mean is put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pascaline.codec import ErrorFeedback, Options

TAKEN = (torch.float32, torch.bfloat16, torch.float16)
"""Of gradients; 16-bit ones are summed as float32."""


@dataclass(frozen=True)
class Part:
    """Parameters of a bucket that travel as one flat tensor."""

    codec: Options
    slices: Sequence[tuple[int, int]]
    """Of the bucket, in order."""
    staging: torch.Tensor | None
    """(elements,) float32; None: the part is the whole bucket, where it is."""
    feedback: ErrorFeedback | None
    name: str = ""
    """Of its parameters, alike on all ranks."""

    def gather(self, buffer: torch.Tensor) -> torch.Tensor:
        """The flat float32 tensor that is to be reduced in place; of a sparse gradient, which DDP gives a bucket of its
        own, all rows.
        """
        if self.staging is None:
            return buffer
        if buffer.is_sparse:
            self.staging.copy_(buffer.to_dense().reshape(-1))
            return self.staging
        place = 0
        for begin, end in self.slices:
            self.staging[place : place + end - begin].copy_(buffer[begin:end])
            place += end - begin
        return self.staging

    def scatter(self, flat: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        """Its mean goes to where its values came from, in their type. Returns the bucket, of a sparse gradient a new
        one: the rows that are not zero.
        """
        if self.staging is None:
            return buffer
        if buffer.is_sparse:
            return _rows(flat.view(buffer.shape).to(buffer.dtype))
        place = 0
        for begin, end in self.slices:
            buffer[begin:end].copy_(flat[place : place + end - begin])
            place += end - begin
        return buffer


def _rows(dense: torch.Tensor) -> torch.Tensor:
    """(rows, columns...), sparse in its first dimension as an embedding's gradient is."""
    places = (dense.reshape(dense.shape[0], -1) != 0).any(1).nonzero().T
    return torch.sparse_coo_tensor(
        places, dense[places[0]], dense.shape, check_invariants=False, is_coalesced=True
    )


def joined(sizes: Sequence[int], chosen: Sequence[bool]) -> list[tuple[int, int]]:
    """Slices of a bucket that hold the chosen ones of parameters of `sizes`; neighbours are one slice."""
    slices: list[tuple[int, int]] = []
    begin = 0
    for size, wanted in zip(sizes, chosen, strict=True):
        if wanted and slices and slices[-1][1] == begin:
            slices[-1] = (slices[-1][0], begin + size)
        elif wanted:
            slices.append((begin, begin + size))
        begin += size
    return slices
