"""Embeddings under DistributedDataParallel: gradients that are sparse by themselves, dense tensors with few rows or
torch's own sparse ones, on real processes over the emulated link.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pascaline.errors
import pascaline.torch

from .processes import run_ranks

ROWS, COLUMNS, STEPS = 3000, 32, 3


class Recommender(nn.Module):
    """A table and a perceptron."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, COLUMNS, sparse=sparse)
        self.score = nn.Linear(COLUMNS, 1)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.score(self.table(items)).square().mean()


def items(rank: int, step: int) -> torch.Tensor:
    return torch.randint(0, ROWS, (40,), generator=torch.Generator().manual_seed(10 * step + rank))


def trained(
    rank: int, world_size: int, sparse: bool, codec: str, reduced_by_ddp: bool = False
) -> dict[str, Any]:
    """Weights after a few steps, the last gradient's rows, and what travelled."""
    model = DistributedDataParallel(Recommender(sparse))
    state = None
    if not reduced_by_ddp:
        state = pascaline.torch.register(model, link="emulated", codec=codec, chunk_bytes=1 << 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(STEPS):
            optimizer.zero_grad()
            model(items(rank, step)).backward()
            optimizer.step()
    gradient = model.module.table.weight.grad
    assert gradient is not None and gradient.is_sparse == sparse
    used = torch.cat([items(each, STEPS - 1) for each in range(world_size)]).unique()
    rows = gradient.coalesce().indices()[0] if sparse else gradient.abs().sum(1).nonzero()[:, 0]
    found = {
        "weights": [p.detach().clone().numpy() for p in model.parameters()],
        "rows": rows.tolist() == used.tolist(),
        "stats": state.compression_stats() if state else {},
    }
    if state:
        state.leave()
    return found


def in_every_way(rank: int, world_size: int) -> dict[str, dict[str, Any]]:
    return {
        "ddp": trained(rank, world_size, True, "", reduced_by_ddp=True),
        "sparse tensors": trained(rank, world_size, True, "sparse"),
        "dense tensors": trained(rank, world_size, False, "sparse"),
        "f32": trained(rank, world_size, True, "f32"),
        "topk": trained(rank, world_size, True, "topk"),
    }


def test_sparse_embeddings_train_as_with_ddp_s_own_reduction(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path / "store", 2, in_every_way)
    for name, found in ranks[0].items():
        assert all(
            a.tobytes() == b.tobytes()
            for a, b in zip(found["weights"], ranks[1][name]["weights"], strict=True)
        )
        if name != "topk":
            assert found["rows"], name
            for got, expected in zip(found["weights"], ranks[0]["ddp"]["weights"], strict=True):
                torch.testing.assert_close(
                    torch.from_numpy(got), torch.from_numpy(expected), rtol=1e-6, atol=1e-7
                )
    for name in ("sparse tensors", "dense tensors"):
        stats = ranks[0][name]["stats"]["sparse"]
        # Six whole chunks of 512 rows; in a bucket with others, rows need not begin where groups of 32 do.
        kinds = stats["encodings"]
        assert kinds.get("rows", 0) + kinds.get("bitmap", 0) == STEPS * 6
        assert name == "dense tensors" or "bitmap" not in kinds
        touched = 80 / ROWS
        assert stats["bits_up"] < 1.5 * 32 * touched
        assert stats["bits_up"] == pytest.approx(32 * touched, rel=0.5)
    assert ranks[0]["f32"]["stats"]["f32"]["bits_up"] == 32


def dense_by_sparse(rank: int, _world_size: int) -> list[str]:
    """Six MiB that are not zero, four times."""
    with (
        pascaline.Session(link="emulated", codec="sparse") as session,
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        for _ in range(4):
            session.all_reduce(torch.ones(6 << 18))
    return [f"{one.category.__name__} {one.filename.rpartition('/')[2]} {one.message}" for one in said]


def test_a_session_warns_once_where_its_caller_reads_it(tmp_path: Path) -> None:
    [said] = run_ranks(tmp_path / "store", 1, dense_by_sparse)
    assert len(said) == 1
    assert said[0].startswith(
        "UserWarning test_sparse_gradients.py codec sparse has sent 100% of what f32 would have"
    )


def different_values(rank: int, _world_size: int) -> str:
    try:
        pascaline.Session(link="emulated", codec=pascaline.codec.Sparse(("f32", "fixed32")[rank]))  # type: ignore[arg-type]
    except pascaline.errors.JoinRefused as refused:
        return str(refused)
    return ""


def test_ranks_whose_values_differ_are_refused_by_both(tmp_path: Path) -> None:
    for said in run_ranks(tmp_path / "store", 2, different_values):
        assert "rank 0 joins with plan 'sparse' and rank 1 with 'sparse values fixed32'" in said
