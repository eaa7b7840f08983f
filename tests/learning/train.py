"""One run on one rank: a task learned through the real hook over the emulated link, its losses, its gradients at three
points. torch.distributed is initialised.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import pascaline.torch

from .tasks import Task

VALIDATIONS = 40
"""In a run."""
WARM_UP, FLOOR = 0.05, 0.1
"""Share of the steps in which the learning rate grows, and what is left of it at the end."""
CAPTURED_AT = {"early": 0.05, "middle": 0.5, "late": 0.95}


def rate(step: int, steps: int) -> float:
    """Of the peak learning rate: linear to it, then half a cosine."""
    warm_up = max(1, round(WARM_UP * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * done)) / 2


def validated(task: Task, network: nn.Module) -> float:
    """Mean loss over the validation set, of which every rank takes its share; the same on all ranks."""
    total = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for x, target in task.validation(dist.get_rank(), dist.get_world_size()):
            total += torch.tensor(
                [float(task.loss(network(x), target)) * len(x), len(x)], dtype=torch.float64
            )
    dist.all_reduce(total)
    return float(total[0] / total[1])


def own_gradients(task: Task, model: DistributedDataParallel, batch: tuple[Tensor, Tensor]) -> Tensor | None:
    """On rank 0 the ranks' gradients before any exchange, (ranks, elems), in DDP's order: the last parameter first."""
    with model.no_sync():
        task.loss(model(batch[0]), batch[1]).backward()
    flat = torch.cat([p.grad.flatten() for p in reversed(list(model.module.parameters()))])
    model.zero_grad()
    rows = [torch.empty_like(flat) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(flat, rows)
    return torch.stack(rows) if rows else None


def layers(network: nn.Module) -> dict[str, Any]:
    """Names and sizes of the parameters in the order of `own_gradients`."""
    named = list(network.named_parameters())[::-1]
    return {"names": np.array([n for n, _ in named]), "sizes": np.array([p.numel() for _, p in named])}


def train(
    task: Task, codec: str, seed: int, steps: int, capture: bool
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The run's record, and on rank 0, if asked for, what was captured: point of training -> arrays."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.network())
    points = {round(share * (steps - 1)): name for name, share in CAPTURED_AT.items()} if capture else {}
    captured: dict[str, dict[str, Any]] = {}
    losses: dict[int, float] = {}
    initial = validated(task, model.module)
    begin, begin_cpu = time.monotonic(), time.process_time()
    with pascaline.torch.register(model, link="emulated", codec=codec, random_seed=seed) as state:
        optimizer = task.optimizer(model.module)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
        for step in range(steps):
            x, target = task.batch(seed, step, dist.get_rank())
            if step in points:
                rows = own_gradients(task, model, (x, target))
                if rows is not None:
                    captured[points[step]] = {"gradients": rows.numpy(), "step": step, **layers(model.module)}
            optimizer.zero_grad()
            task.loss(model(x), target).backward()
            optimizer.step()
            schedule.step()
            if (step + 1) % max(1, steps // VALIDATIONS) == 0:
                losses[step + 1] = validated(task, model.module)
        stats = state.compression_stats()[codec]
    record = {
        "parameters": sum(p.numel() for p in model.module.parameters()),
        "initial_loss": initial,
        "losses": {step: loss if math.isfinite(loss) else None for step, loss in losses.items()},
        "bits_up": stats["bits_up"],
        "bits_down": stats["bits_down"],
        "nmse": stats["nmse"] if math.isfinite(stats["nmse"]) else None,
        "seconds": round(time.monotonic() - begin, 1),
        "cpu_seconds": round(time.process_time() - begin_cpu, 1),  # of this rank
    }
    return record, captured
