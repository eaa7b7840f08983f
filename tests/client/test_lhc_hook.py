"""The codec lhc under DistributedDataParallel: what fixed32 gives, bit for bit, on real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pascaline.torch
from pascaline import codec as codecs

from .processes import run_ranks


class Recommender(nn.Module):
    """An embedding of which a step touches a few rows, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.score = nn.Embedding(2000, 16), nn.Linear(16, 1)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.score(self.items(items)).square().mean()


def gradients_by(rank: int, _world_size: int, chosen: list[Any]) -> dict[str, Any]:
    """Each step's gradients, and the session's statistics."""
    found = {}
    for codec in chosen:
        options = codecs.resolve(codec)
        model = DistributedDataParallel(Recommender())
        state = pascaline.torch.register(model, link="emulated", codec=options, chunk_bytes=8192)
        steps = []
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * step + rank)
            model.zero_grad()
            model(torch.randint(0, 2000, (40,), generator=generator)).backward()
            steps.append([p.grad.numpy().tobytes() for p in model.parameters()])
        found[codecs.describe(options, 0)] = steps, state.compression_stats()[options.name]
        state.leave()
    return found


def test_gradients_are_those_of_fixed32(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path / "store", 2, gradients_by, ["fixed32", "lhc", codecs.Lhc(phases=1)])
    for key in ("lhc", "lhc phases 1"):
        for one in ranks:
            assert one[key][0] == ranks[0]["fixed32"][0]
        stats = ranks[0][key][1]
        assert stats["encodings"].get("sketch", 0) + stats["encodings"].get("sketch and repair", 0) >= 30
        assert stats["bits_up"] < 0.5 * ranks[0]["fixed32"][1]["bits_up"]
