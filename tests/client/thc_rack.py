"""The ranks of one thc job and their aggregator in one process, by the reference: what the tests of thc share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pascaline.codec.thc import Params, reference


@dataclass
class Round:
    """One chunk's way there and back."""

    scales: Tensor
    packed: list[Tensor]
    sums: Tensor
    values: Tensor
    residuals: list[Tensor]


def scales_of(params: Params, grads, residuals=None, loss_scale: float = 1.0) -> Tensor:
    residuals = residuals or [None] * len(grads)
    own = [reference.norms(params, x, e, loss_scale) for x, e in zip(grads, residuals, strict=True)]
    if params.scale_per == "tensor":
        own = [reference.tensor_norm(params, one).expand(one.numel()) for one in own]
    return (
        torch.stack([one.view(torch.int32) for one in own]).amax(0).view(torch.float32)
    )  # MAX_F32 of norms, all >= 0


def exchange(params: Params, grads, residuals=None, loss_scale=1.0, sequence=0, chunk=0) -> Round:
    """All ranks' `grads` through norms, encode, table sum and decode; the chunk is a whole tensor."""
    elems = grads[0].numel()
    scales = scales_of(params, grads, residuals, loss_scale)
    tensor_coordinates = params.coordinates(elems)
    packed, left = [], []
    for rank, x in enumerate(grads):
        packed.append(torch.empty(params.packed_bytes(elems), dtype=torch.uint8))
        left.append(torch.empty(elems))
        old = residuals[rank] if residuals else None
        reference.encode(
            params,
            rank,
            sequence,
            chunk,
            x,
            old,
            left[-1],
            loss_scale,
            scales,
            tensor_coordinates,
            packed[-1],
        )
    sums = reference.table_sum(params, packed)
    values = torch.empty(elems)
    reference.decode(params, sequence, chunk, len(grads), sums, scales, tensor_coordinates, values)
    return Round(scales, packed, sums, values, left)


def decoded_alone(params: Params, one: Round, rank: int, sequence=0, chunk=0) -> Tensor:
    """What the aggregator would give if `rank` had been the only contributor."""
    values = torch.empty_like(one.values)
    sums = reference.table_sum(params, [one.packed[rank]])
    reference.decode(params, sequence, chunk, 1, sums, one.scales, params.coordinates(values.numel()), values)
    return values


def normal(elems: int, seed: int, ranks: int = 1, correlation: float = 0.0) -> list[Tensor]:
    """Standard normal gradients of `ranks` ranks with this correlation between any two."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(elems, generator=generator) * correlation**0.5
    return [common + torch.randn(elems, generator=generator) * (1 - correlation) ** 0.5 for _ in range(ranks)]


def nmse(values: Tensor, grads) -> float:
    exact = torch.stack(grads).double().sum(0)
    return float((values.double() - exact).square().sum() / exact.square().sum())
