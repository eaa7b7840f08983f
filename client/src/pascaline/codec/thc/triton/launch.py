"""The host's side of thc's Triton kernels: which blocks run, and by which numbers.

Every launch asks for no FMA contraction; the kernels ask for IEEE rounding of division and square root.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from pascaline.codec.thc import philox
from pascaline.codec.thc.params import BLOCK, MIN_NORM, Params
from pascaline.codec.thc.triton import kernels

LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}
"""Options of every launch and every ahead-of-time compilation."""
NORM_ROWS = 4
"""Blocks of one program of `kernels.norms`."""


def norms(params: Params, grad: Tensor, residual: Tensor | None = None, loss_scale: float = 1.0) -> Tensor:
    """As `reference.norms`."""
    blocks = params.blocks(grad.numel())
    out = torch.empty(blocks, dtype=torch.float32, device=grad.device)
    kernels.norms[(-(-blocks // NORM_ROWS),)](
        grad,
        residual if residual is not None else grad,
        out,
        grad.numel(),
        float(loss_scale),
        SQUARES=params.norm == "l2",
        FEEDBACK=residual is not None,
        MIN_NORM=MIN_NORM,
        ROWS=NORM_ROWS,
        BLOCK=BLOCK,
        **LAUNCH,
    )
    return out


def encode(
    params: Params,
    rank: int,
    sequence: int,
    chunk: int,
    grad: Tensor,
    residual: Tensor | None,
    residual_out: Tensor | None,
    loss_scale: float,
    scales: Tensor,
    tensor_coordinates: int,
    packed: Tensor,
) -> None:
    """As `reference.encode`."""
    cells, levels = _tables(params, grad.device)
    fractions = 65536 * params.n if params.rounding == "stratified" else 65536
    draws = (rank, params.n, sequence, chunk, *philox.key_of(params.seed))
    steps = (params.t, float(params.s_pos), float(params.half_inc), params.debias, _f32(1 / fractions))
    old, new = (
        grad if one is None else one for one in (residual, residual_out)
    )  # not touched where there is none
    for first, blocks, size in _launches(params, grad.numel()):
        kappa = float(params.kappa(tensor_coordinates, size))
        kernels.encode[(blocks,)](
            *(grad, old, new, scales, packed, cells, levels),
            *(first, grad.numel(), *draws),
            *(float(loss_scale), 1 / loss_scale, kappa, _divisor(params, kappa, size), *steps),
            FEEDBACK=residual is not None,
            KEEP=residual_out is not None,
            **_constants(params, size),
        )


def decode(
    params: Params,
    sequence: int,
    chunk: int,
    contributors: int,
    sums: Tensor,
    scales: Tensor,
    tensor_coordinates: int,
    values: Tensor,
) -> None:
    """As `reference.decode`."""
    key_low, key_high = philox.key_of(params.seed)
    signed = sums if params.sum_bits == 8 else sums.view(torch.int16)
    for first, blocks, size in _launches(params, values.numel()):
        kernels.decode[(blocks,)](
            signed,
            scales,
            values,
            first,
            values.numel(),
            contributors,
            sequence,
            chunk,
            key_low,
            key_high,
            _divisor(params, float(params.kappa(tensor_coordinates, size)), size),
            float(params.half_inc),
            params.debias,
            ROTATE=params.rotate,
            FRESH=params.fresh_rotation,
            G=params.g,
            SUM_MASK=(1 << params.sum_bits) - 1,
            SIZE=size,
            **LAUNCH,
        )


def _f32(value: float) -> float:
    """Rounded to float32, which is how Triton passes a float."""
    return float(torch.tensor(value, dtype=torch.float32))


def _divisor(params: Params, kappa: float, size: int) -> float:
    """What a decoded block is divided by; dividing by 1 is exact where it is not."""
    return _f32(kappa * size) if params.rotate else 1.0


def _launches(params: Params, elems: int) -> list[tuple[int, int, int]]:
    """(first coordinate, blocks, size) of the whole blocks and of the short one."""
    whole, rest = divmod(elems, BLOCK)
    found = [(0, whole, BLOCK)] if whole else []
    return found + ([(whole * BLOCK, 1, params.coordinates(rest))] if rest else [])


def _constants(params: Params, size: int) -> dict[str, Any]:
    """What `kernels.encode` is compiled for, beside residuals."""
    return {
        "STRATIFIED": params.rounding == "stratified",
        "SHARED": params.rounding == "shared",
        "ROTATE": params.rotate,
        "FRESH": params.fresh_rotation,
        "G": params.g,
        "WIRE_BITS": params.wire_bits,
        "SIZE": size,
        **LAUNCH,
    }


@functools.lru_cache(maxsize=64)
def _tables(params: Params, device: torch.device) -> tuple[Tensor, Tensor]:
    """K, int32 (g,), and T, f32 (2^bits,), on `device`."""
    cells = torch.tensor(params.cells, dtype=torch.int32, device=device)
    return cells, torch.tensor(params.table, dtype=torch.float32, device=device)
