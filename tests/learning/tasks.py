"""The two things to learn: a network, its batches, its validation set and its optimizer. Knows no codec.

Their settings were chosen by what float32 learns. One was changed when three runs with thc had been seen: the GPT's
initial weights, because float32's own seeds ended 0.26 nats apart; now they agree to 0.009.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from . import data

Batch = tuple[Tensor, Tensor]


class Task(Protocol):
    """A model and what it learns. Every method is a function of its arguments alone."""

    name: str
    steps: int
    learning_rate: float
    """At its peak."""
    digest: str
    """Of the data."""

    def network(self) -> nn.Module:
        """New, from torch's seed."""
        ...

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """At the peak learning rate."""
        ...

    def batch(self, seed: int, step: int, rank: int) -> Batch:
        """Input and target."""
        ...

    def validation(self, rank: int, ranks: int) -> Iterator[Batch]:
        """This rank's share of the validation set, the same in every call."""
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean over the batch, in nats."""
        ...


def draw(seed: int, step: int, rank: int, below: int, count: int) -> Tensor:
    """(count,) int64: the same for every codec."""
    return torch.from_numpy(np.random.default_rng([seed, step, rank]).integers(0, below, count))


class Cnn:
    """Two convolutions and two linear layers on Fashion-MNIST: 105,866 parameters, SGD with momentum."""

    name = "cnn"
    steps = 300
    learning_rate = 0.05
    batch_images = 32
    validation_images = 1024

    def __init__(self, folder: Path) -> None:
        self.training = data.images(folder, "train")
        self.held_out = data.images(folder, "t10k")
        self.digest = data.digest(*self.training, *self.held_out)

    def network(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(network.parameters(), self.learning_rate, momentum=0.9)

    @staticmethod
    def _scaled(pixels: Tensor) -> Tensor:
        return (pixels.float() / 255 - 0.286) / 0.353  # mean and deviation of the training images

    def batch(self, seed: int, step: int, rank: int) -> Batch:
        chosen = draw(seed, step, rank, len(self.training[0]), self.batch_images)
        return self._scaled(self.training[0][chosen]), self.training[1][chosen]

    def validation(self, rank: int, ranks: int) -> Iterator[Batch]:
        own = torch.arange(rank, min(self.validation_images, len(self.held_out[0])), ranks)
        for some in own.split(2 * self.batch_images):  # more at a time do not fit the cache
            yield self._scaled(self.held_out[0][some]), self.held_out[1][some]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target)


class Block(nn.Module):
    """Attention and a perceptron, each with its norm in front."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Characters in, logits of the next ones out."""

    def __init__(self, layers: int = 2, width: int = 64, heads: int = 4, context: int = 64) -> None:
        super().__init__()
        self.characters = nn.Embedding(data.VOCABULARY, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, data.VOCABULARY, bias=False)
        deviation = 0.02 * math.sqrt(768 / width)  # as GPT-2's 0.02 is at its width
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=deviation)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:  # what is added to the residual stream, as GPT-2 scales it
            for added in (block.out.weight, block.mlp[2].weight):
                nn.init.normal_(added, std=deviation / math.sqrt(2 * layers))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        return self.head(self.norm(self.blocks(self.characters(x) + self.places(places))))


class Gpt:
    """A transformer of two layers on the source of Python's standard library: 120,576 parameters, AdamW."""

    name = "gpt"
    steps = 400
    learning_rate = 4e-3
    batch_sequences = 8
    validation_sequences = 256
    context = 64

    def __init__(self) -> None:
        self.training, self.held_out = data.text()
        self.digest = data.digest(self.training, self.held_out)

    def network(self) -> nn.Module:
        return Transformer(context=self.context)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(network.parameters(), self.learning_rate, (0.9, 0.95), weight_decay=0.1)

    def _sequences(self, text: Tensor, starts: Tensor) -> Batch:
        sequences = text[starts[:, None] + torch.arange(self.context + 1)].long()
        return sequences[:, :-1], sequences[:, 1:]

    def batch(self, seed: int, step: int, rank: int) -> Batch:
        starts = draw(seed, step, rank, len(self.training) - self.context, self.batch_sequences)
        return self._sequences(self.training, starts)

    def validation(self, rank: int, ranks: int) -> Iterator[Batch]:
        starts = torch.linspace(0, len(self.held_out) - self.context - 1, self.validation_sequences).long()
        yield self._sequences(self.held_out, starts[rank::ranks])

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())


NAMES = ("cnn", "gpt")


def load(name: str, fashion_mnist: Path) -> Task:
    """With its data. Raises data.Missing."""
    return Cnn(fashion_mnist) if name == "cnn" else Gpt()
