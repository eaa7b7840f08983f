"""Handwritten digits with DistributedDataParallel: what a training script looks like with Pascaline, and without.

    torchrun --nproc-per-node 2 digits.py --link pascaline      (PASCALINE_APPLIANCE=host:port)
    torchrun --nproc-per-node 2 digits.py --link gloo
    torchrun --nproc-per-node 2 digits.py --link emulated --codec thc     (what a codec does, without an appliance)

They differ in one line, marked below. Everything is seeded: two runs differ only by what the link does to gradients.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import pascaline.torch

HELD_OUT = 360
"""Of the 1797 images, the last fifth: accuracy is measured on them alone."""


@dataclass(frozen=True)
class Options:
    """What a run depends on besides its link."""

    steps: int = 200
    hidden: int = 32
    """Width of the hidden layer: 32 makes a model of 2.4 thousand parameters, 2048 one of 154 thousand."""
    batch: int = 64
    """Images per worker and step."""
    learning_rate: float = 1e-2
    seed: int = 1642
    codec: str = "f32"
    """Of the gradients; "thc" sends 4 bits for each."""
    chunk_bytes: int | None = None
    """Of a slot; None: the appliance's choice. A codec that draws does so chunk by chunk."""


@dataclass
class Result:
    """What one rank saw of a run."""

    losses: list[float] = field(default_factory=list)
    """Mean over the workers, one per step."""
    bucket_bytes: list[int] = field(default_factory=list)
    """Of one backward pass: what this rank hands to the link in each step."""
    accuracy: float = 0.0
    parameters: Tensor = field(default_factory=lambda: torch.empty(0))
    """All of them, flat, after the last step."""


OnStep = Callable[[int, float, int, float], None]
"""Called by rank 0 with step, loss, gradient bytes of this step and seconds."""


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and held-out images: (n, 64) float32 in [0, 1], and (n,) int64 classes."""
    images, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = torch.from_numpy((images[order] / 16).astype(np.float32))
    y = torch.from_numpy(classes[order].astype(np.int64))
    return TensorDataset(x[:-HELD_OUT], y[:-HELD_OUT]), TensorDataset(x[-HELD_OUT:], y[-HELD_OUT:])


def bucket_bytes(model: DistributedDataParallel) -> list[int]:
    """Bytes of each gradient bucket of one backward pass, as DDP itself reports them. Rebuilding keeps their sum."""
    return [int(size) for size in model._get_ddp_logging_data()["bucket_sizes"].split(",")]


def train(link: str, options: Options, on_step: OnStep | None = None) -> Result:
    """Train on this rank; torch.distributed is initialised."""
    torch.manual_seed(options.seed)
    training, held_out = digits()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(training, seed=options.seed)
    loader = DataLoader(training, batch_size=options.batch, sampler=sampler, drop_last=True)
    network = nn.Sequential(nn.Linear(64, options.hidden), nn.ReLU(), nn.Linear(options.hidden, 10))
    model = DistributedDataParallel(network)
    if link != "gloo":
        how = {"link": "emulated" if link == "emulated" else "verbs", "chunk_bytes": options.chunk_bytes}
        pascaline.torch.register(model, codec=options.codec, **how)  # <- the one line
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)

    result = Result(bucket_bytes=bucket_bytes(model))
    for epoch in range(-(-options.steps // len(loader))):
        sampler.set_epoch(epoch)
        for x, y in loader:
            if len(result.losses) == options.steps:
                break
            began = time.perf_counter()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record(result, loss.detach(), time.perf_counter() - began, on_step)

    images, classes = held_out.tensors
    with torch.no_grad():
        result.accuracy = float((network(images).argmax(1) == classes).float().mean())
    result.parameters = nn.utils.parameters_to_vector(network.parameters()).detach()
    return result


def record(result: Result, loss: Tensor, seconds: float, on_step: OnStep | None) -> None:
    """Note one step; the loss is averaged over the ranks by torch.distributed, never by the link under test."""
    dist.all_reduce(loss)
    result.losses.append(float(loss) / dist.get_world_size())
    if on_step is not None and dist.get_rank() == 0:
        on_step(len(result.losses), result.losses[-1], sum(result.bucket_bytes), seconds)


def print_step(step: int, loss: float, step_bytes: int, seconds: float) -> None:
    """The line that rank 0 prints per step."""
    print(f"step {step:4d}  loss {loss:.4f}  {step_bytes} bytes in {seconds * 1e3:.1f} ms", flush=True)


def main() -> None:
    """One rank under torchrun."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--link",
        choices=("pascaline", "emulated", "gloo"),
        default="pascaline",
        help="what adds the gradients",
    )
    parser.add_argument("--codec", default=Options.codec, help="how they travel: f32, thc, topk, ...")
    parser.add_argument("--steps", type=int, default=Options.steps)
    parser.add_argument("--hidden", type=int, default=Options.hidden, help="width of the hidden layer")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    options = Options(steps=arguments.steps, hidden=arguments.hidden, codec=arguments.codec)
    result = train(arguments.link, options, print_step)
    if dist.get_rank() == 0:
        print(f"accuracy on {HELD_OUT} held-out images: {result.accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
