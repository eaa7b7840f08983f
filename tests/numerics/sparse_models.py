"""What models' gradients cost by the codec sparse: an embedding recommender's as they are, others' behind top-k.

The recommender is a neural collaborative filter (He et al., WWW'17: a product of embeddings beside a perceptron of
them), of real ratings and of drawn ones for larger tables (`ratings.py`). Four ranks with 256 ratings each; DDP's own
gradients are dense tensors, of which few rows are not zero.

Of the CNN and the GPT the gradients are those that their trainings have left, each rank's own; behind top-k, without
the residual's earlier steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pascaline.codec.sparse import stream
from tests.learning.sample import sampled

from . import gradients as captured_room
from . import ratings as ratings_room
from . import sparse

WIDTH, BATCH, RANKS, STEPS = 32, 256, 4, 5
HEADER_BYTES, FIRST_BYTES, LAST_BYTES, MTU = 62, 16, 4, 4096
"""Of a RoCEv2 frame over IPv4: Ethernet with its check 18, IP 20, UDP 8, BTH 12, ICRC 4; RETH; immediate."""
SHARES = (1 / 8, 1 / 100)
RECOMMENDER = "recommender"


class Recommender(nn.Module):
    """Neural collaborative filter."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, 2 * WIDTH), nn.Embedding(items, 2 * WIDTH)
        self.deep = nn.Sequential(nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())
        self.score = nn.Linear(2 * WIDTH, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        a, b = self.user(users), self.item(items)
        product = a[:, :WIDTH] * b[:, :WIDTH]
        deep = self.deep(torch.cat([a[:, WIDTH:], b[:, WIDTH:]], 1))
        return self.score(torch.cat([product, deep], 1))[:, 0]


def recommender(ratings: ratings_room.Ratings) -> list[np.ndarray]:
    """Four ranks' gradients, f32 (elems,), of the last of a few steps: tables first."""
    torch.manual_seed(3)
    model = Recommender(int(ratings.users.max()) + 1, int(ratings.items.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    own: list[np.ndarray] = []
    for step in range(STEPS):
        own = []
        for rank in range(RANKS):
            model.zero_grad()
            users, items, liked = map(torch.from_numpy, ratings.batch([step, rank], BATCH))
            functional.binary_cross_entropy_with_logits(model(users, items), liked).backward()
            own.append(np.concatenate([p.grad.reshape(-1).numpy() for p in model.parameters()]))
        mean = torch.from_numpy(np.mean(own, 0))
        for p, part in zip(
            model.parameters(), mean.split([p.numel() for p in model.parameters()]), strict=True
        ):
            p.grad = part.view(p.shape).clone()
        optimizer.step()
    return own


def top(xs: list[np.ndarray], share: float) -> list[np.ndarray]:
    """Each rank's largest share."""
    kept = []
    for x in xs:
        k = max(1, int(np.ceil(share * x.size)))
        places = np.argpartition(np.abs(x), x.size - k)[x.size - k :]
        kept.append(np.zeros_like(x))
        kept[-1][places] = x[places]
    return kept


def on_the_wire(payload: float, messages: int) -> float:
    """Bytes with the frames' headers, of messages of this length together."""
    packets = max(messages, payload / MTU)
    return payload + packets * HEADER_BYTES + messages * (FIRST_BYTES + LAST_BYTES)


def framed(row: dict[str, Any], elems: int, rounds: int) -> dict[str, Any]:
    """A row with every way's headers: messages of a slot, and for sparse one for each round of a chunk, both ways."""
    chunks = -(-4 * elems // sparse.SLOT_BYTES)
    streams = -(-elems // stream.chunk_elems(sparse.SLOT_BYTES))
    found = dict(row)
    for way, value in row.items():
        if (
            isinstance(value, float)
            and way not in ("k", "rho", "entropy bound")
            and not way.startswith("1/8")
        ):
            messages = 2 * {"sparse": rounds * chunks, "one phase": streams}.get(way, chunks)
            found[way] = on_the_wire(value * elems, messages) / elems
    return found


def measured(folder: Path = captured_room.CAPTURED) -> dict[str, dict[str, Any]]:
    """Bytes for each element up and down: model -> way."""
    found = {}
    for name, ratings in {
        "MovieLens": ratings_room.real(ratings_room.MOVIELENS),
        "InstEval": ratings_room.real(ratings_room.INSTEVAL),
        "drawn": ratings_room.drawn(),
    }.items():
        own = recommender(ratings)
        found[f"{RECOMMENDER}, {name}"] = framed(sparse.row(own), own[0].size, 3)
    sets = {name: [x.numpy() for x in xs] for name, xs in captured_room.captured(folder)}
    for name, xs in (sets or {name: list(rows) for name, rows in sampled()}).items():
        for share in SHARES:
            kept = top(xs, share)
            title = f"{name}, top {share:.3g}"
            found[title] = framed(sparse.row(kept), xs[0].size, 3)
    return found


def over_blocks(found: dict[str, dict[str, Any]], ours: str = "sparse") -> float:
    """The worst of the real, unclustered gradients: all but the recommender's, whose rows are blocks."""
    way = f"blocks of {sparse.BLOCK}"
    unclustered = (row for name, row in found.items() if not name.startswith(RECOMMENDER))
    return round(max(row[ours] / row[way] for row in unclustered), 4)
