"""Gradients to measure codecs on: drawn ones, and captured ones where training has left some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

CAPTURED = Path(__file__).parents[2] / "build" / "learning" / "gradients"

LAYERS, LAYER_ELEMS = 32, 4096
LAYER_SCALES = torch.logspace(-1, 1, LAYERS)
"""Two decades."""


def homogeneous(elems: int, ranks: int, correlation: float, seed: int) -> list[Tensor]:
    """Standard normal, f32 (elems,) for each rank; any two ranks have this correlation."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(elems, generator=generator) * correlation**0.5
    return [common + torch.randn(elems, generator=generator) * (1 - correlation) ** 0.5 for _ in range(ranks)]


def layers(ranks: int, correlation: float, seed: int) -> list[Tensor]:
    """One bucket of layers whose scales are spread over two decades, in an order that mixes them."""
    order = torch.randperm(LAYERS, generator=torch.Generator().manual_seed(seed))
    scales = LAYER_SCALES[order].repeat_interleave(LAYER_ELEMS)
    return [x * scales for x in homogeneous(LAYERS * LAYER_ELEMS, ranks, correlation, seed)]


def captured(folder: Path) -> Iterator[tuple[str, list[Tensor]]]:
    """(name, the ranks' gradients) of each file that `make learning` left: array `gradients`, f32 (ranks, elems)."""
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            yield path.stem, [torch.from_numpy(row) for row in file["gradients"].astype(np.float32)]


def nmse(total: Tensor, grads: list[Tensor]) -> float:
    """|total - sum|^2 / |sum|^2, which is that of the mean too."""
    exact = torch.stack(grads).double().sum(0)
    return float((total.double() - exact).square().sum() / exact.square().sum())


def slope(total: Tensor, grads: list[Tensor]) -> float:
    """Regression of what was decoded on the exact sum, through 0: below 1 where clipping shrinks."""
    exact = torch.stack(grads).double().sum(0)
    return float(total.double() @ exact / exact.square().sum())
