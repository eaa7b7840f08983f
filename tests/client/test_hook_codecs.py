"""Lossy codecs under real DistributedDataParallel models, on real processes over the emulated link.

Most tests ask for one law: what the optimizer has been given, plus the mean of what the ranks still hold back, is what
the ranks' own gradients come to. A residual that is lost, used twice, put to another parameter or kept with the wrong
scale breaks it.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pascaline
import pascaline.torch
from pascaline import codec as codecs
from pascaline.errors import ConfigurationError
from pascaline.torch.residuals import Residuals

from .processes import run_ranks

STEPS = 4
THC = codecs.Thc(g=20, p=0.01)


class Net(nn.Module):
    """4 thousand parameters: matrices, vectors, and one of a single element; `last` may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(40, 70), nn.Linear(70, 20), nn.Linear(20, 5)
        self.gain = nn.Parameter(torch.tensor([0.7]))

    def forward(self, x: torch.Tensor, whole: bool = True) -> torch.Tensor:
        hidden = self.second(torch.tanh(self.first(x)) * self.gain)
        return self.last(hidden.to(self.last.weight.dtype)) if whole else hidden


def batch(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 40, generator=generator) + torch.randn(40, generator=generator.manual_seed(step))


def loss_of(model: nn.Module, rank: int, step: int, *whole: bool) -> torch.Tensor:
    return model(batch(rank, step), *whole).float().square().mean()


def own_gradients(module: nn.Module, rank: int, step: int, *whole: bool) -> dict[str, torch.Tensor]:
    """What this rank alone would have; zeros for what a pass leaves out."""
    module.zero_grad()
    loss_of(module, rank, step, *whole).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in module.named_parameters()
    }


class Ledger:
    """Both sides of the law, by parameter."""

    def __init__(self, model: nn.Module) -> None:
        self.module = copy.deepcopy(model)
        self.owed = {name: torch.zeros_like(p) for name, p in self.module.named_parameters()}
        self.given = copy.deepcopy(self.owed)

    def owe(self, gradients: dict[str, torch.Tensor]) -> None:
        for name, gradient in gradients.items():
            self.owed[name] += gradient

    def give(self, model: nn.Module, scale: float = 1.0) -> None:
        for name, p in model.named_parameters():
            if p.grad is not None:
                self.given[name] += p.grad / scale

    def missing(self, state: pascaline.torch.PascalineState) -> dict[str, tuple[float, float]]:
        """By parameter: what neither side can explain, and what is held back; both against what was owed."""
        held, n = state.state_dict(), dist.get_world_size()
        found = {}
        for name, owed in self.owed.items():
            back = (
                held.get(f"{name}@{dist.get_rank()}", torch.zeros(owed.numel())).reshape(owed.shape).clone()
            )
            owed = owed.float().clone()
            for total in (back, owed):
                dist.all_reduce(total)
            size = float(owed.norm()) / n + 1e-12
            unexplained = float((owed / n - self.given[name].float() - back / n).norm()) / size
            found[name] = (unexplained, float(back.norm()) / n / size)
        return found


def registered(
    options: dict[str, Any], module: nn.Module | None = None, **mode: Any
) -> tuple[DistributedDataParallel, Any]:
    model = DistributedDataParallel(module or Net(), bucket_cap_mb=0.005, **mode)
    return model, pascaline.torch.register(model, **{"link": "emulated", "codec": THC, **options})


Body = Callable[[int], dict[str, tuple[float, float]]]


def plainly(rank: int, options: dict[str, Any], **mode: Any) -> dict[str, tuple[float, float]]:
    model, state = registered(options, **mode)
    ledger = Ledger(model.module)
    for step in range(STEPS):
        ledger.owe(own_gradients(ledger.module, rank, step))
        model.zero_grad()
        loss_of(model, rank, step).backward()
        ledger.give(model.module)
    missing = ledger.missing(state)
    state.leave()
    return missing


def with_a_scaler(rank: int) -> dict[str, tuple[float, float]]:
    """The scale doubles at every step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1)
    model, state = registered({"scaler": scaler})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    ledger = Ledger(model.module)
    for step in range(STEPS):
        ledger.owe(own_gradients(ledger.module, rank, step))
        optimizer.zero_grad()
        scaler.scale(loss_of(model, rank, step)).backward()
        ledger.give(model.module, scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 256.0 * 2**STEPS
    return ledger.missing(state)


def accumulating(rank: int) -> dict[str, tuple[float, float]]:
    model, state = registered({})
    ledger = Ledger(model.module)
    for step in range(0, 2 * STEPS, 2):
        for one in (step, step + 1):
            ledger.owe(own_gradients(ledger.module, rank, one))
        model.zero_grad()
        with model.no_sync():
            loss_of(model, rank, step).backward()
        loss_of(model, rank, step + 1).backward()
        ledger.give(model.module)
    assert state.iteration == STEPS
    return ledger.missing(state)


def leaving_out(rank: int) -> dict[str, tuple[float, float]]:
    """Each rank leaves the last layer out in steps of its own, never both."""
    model, state = registered({}, find_unused_parameters=True)
    ledger = Ledger(model.module)
    for step in range(STEPS):
        whole = step % 2 == rank
        ledger.owe(own_gradients(ledger.module, rank, step, whole))
        model.zero_grad()
        loss_of(model, rank, step, whole).backward()
        ledger.give(model.module)
    return ledger.missing(state)


def mixed_types(rank: int) -> dict[str, tuple[float, float]]:
    """The last layer in bfloat16, the second in float16: buckets of three types."""
    module = Net()
    module.last.bfloat16()
    model, state = registered({}, module)
    ledger = Ledger(model.module)
    for step in range(STEPS):
        ledger.owe(own_gradients(ledger.module, rank, step))
        model.zero_grad()
        loss_of(model, rank, step).backward()
        ledger.give(model.module)
    missing = ledger.missing(state)
    rounded = [key for key in missing if key.startswith("last")]
    assert len(rounded) == 2
    for key in rounded:  # the mean is rounded to bfloat16, which is nobody's residual
        assert missing.pop(key)[0] < 0.02
    return missing


def over_a_checkpoint(rank: int) -> dict[str, tuple[float, float]]:
    """Half of the steps, a checkpoint of all ranks, and a new job from it."""
    model, state = registered({})
    ledger = Ledger(model.module)
    for step in range(STEPS):
        if step == STEPS // 2:
            saved = [None] * dist.get_world_size()
            dist.all_gather_object(saved, state.state_dict())
            state.leave()
            model, state = registered({})
            state.load_state_dict({key: value for one in saved for key, value in one.items()})  # type: ignore[attr-defined]
            assert state.iteration == step
        ledger.owe(own_gradients(ledger.module, rank, step))
        model.zero_grad()
        loss_of(model, rank, step).backward()
        ledger.give(model.module)
    return ledger.missing(state)


MODES: dict[str, Body] = {
    "thc": lambda rank: plainly(rank, {}),
    "thc-paper": lambda rank: plainly(rank, {"codec": "thc-paper"}),
    "topk": lambda rank: plainly(rank, {"codec": "topk"}),
    "small slots": lambda rank: plainly(rank, {"chunk_bytes": 1024, "window": 2}),
    "one bucket": lambda rank: plainly(rank, {}, static_graph=True),
    "bucket views": lambda rank: plainly(rank, {}, gradient_as_bucket_view=True),
    "excluded": lambda rank: plainly(rank, {"exclude": ["*.bias"], "min_compress_elems": 2}),
    "by fixed32": lambda rank: plainly(rank, {"exclude": ["second.*"], "uncompressed_codec": "fixed32"}),
    "later": lambda rank: plainly(rank, {"start_compress_iter": 2}),
    "scaler": with_a_scaler,
    "accumulating": accumulating,
    "unused": leaving_out,
    "mixed types": mixed_types,
    "checkpoint": over_a_checkpoint,
}


def in_every_mode(rank: int, _world_size: int) -> dict[str, dict[str, tuple[float, float]]]:
    return {name: body(rank) for name, body in MODES.items()}


def test_what_is_given_and_what_is_held_back_are_what_was_owed(tmp_path: Path) -> None:
    [found, _] = run_ranks(tmp_path / "store", 2, in_every_mode)
    plain = {"first.bias", "second.bias", "last.bias", "gain"}
    for mode, missing in found.items():
        for name, (unexplained, held) in missing.items():
            assert unexplained < 2e-6, f"{mode}, {name}: {unexplained:.3g} of it is nowhere"
            uncompressed = (mode == "excluded" and name in plain) or (
                mode == "by fixed32" and name.startswith("second")
            )
            if mode != "topk":  # whose largest values are sent whole
                assert (held == 0) == uncompressed, f"{mode}, {name}: {held}"


def used_by_nobody(rank: int, _world_size: int) -> dict[str, dict[str, float]]:
    """Both ranks leave the last layer out of the third step and the fourth."""
    model, state = registered({}, find_unused_parameters=True)
    ledger = Ledger(model.module)
    spent = {name: torch.zeros_like(p) for name, p in model.module.named_parameters()}
    for step, whole in enumerate([True, True, False, False, True]):
        before = state.state_dict()
        ledger.owe(own_gradients(ledger.module, rank, step, whole))
        model.zero_grad()
        loss_of(model, rank, step, whole).backward()
        ledger.give(model.module)
        for name, p in model.module.named_parameters():
            assert (p.grad is None) == (not whole and name.startswith("last"))
            if p.grad is None:
                key = f"{name}@{rank}"
                spent[name] += (before[key] - state.state_dict()[key]).reshape(p.shape)
    missing = ledger.missing(state)
    found = {}
    for name, sent in spent.items():
        owed = ledger.owed[name].clone()
        for total in (sent, owed):
            dist.all_reduce(total)
        found[name] = {"unexplained": missing[name][0], "sent for nothing": float(sent.norm() / owed.norm())}
    return found


def test_of_a_parameter_that_nobody_used_the_residual_s_encoding_is_lost_and_nothing_else(
    tmp_path: Path,
) -> None:
    """DDP throws away the mean of such a parameter and tells no hook (client/src/pascaline/torch/README.md)."""
    [found, _] = run_ranks(tmp_path / "store", 2, used_by_nobody)
    for name, shares in found.items():
        unused = name.startswith("last")
        assert abs(shares["unexplained"] - shares["sent for nothing"]) < 2e-6, name
        assert (shares["unexplained"] > 1e-3) == unused, name
        assert shares["unexplained"] < 0.1, name


def an_overflow(rank: int, _world_size: int) -> dict[str, Any]:
    """Rank 1's loss overflows in the third step: a bucket of its own bears it, the others are sound."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    model, state = registered({"scaler": scaler})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held, weights, scales = [], [], []
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        if rank == 1 and step == 2:
            model.module.gain.register_hook(lambda g: g * torch.inf)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        held.append([v for k, v in sorted(state.state_dict().items()) if "@" in k])
        weights.append([p.detach().clone() for p in model.parameters()])
        scales.append(scaler.get_scale())
        if rank == 1 and step == 2:
            model.module.gain._backward_hooks.clear()  # type: ignore[union-attr]
    return {"held": held, "weights": weights, "scales": scales}


def test_a_step_that_the_scaler_skips_leaves_every_residual_as_it_was(tmp_path: Path) -> None:
    for found in run_ranks(tmp_path / "store", 2, an_overflow):
        assert found["scales"] == [64.0, 64.0, 32.0, 32.0]
        for kind in ("held", "weights"):
            before, void, after = found[kind][1:]
            assert all(map(torch.equal, before, void)), kind
            assert not all(map(torch.equal, void, after)), kind


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def odd_passes(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    model, state = registered({"start_compress_iter": 2, "use_error_feedback": False})
    other = copy.deepcopy(model.module)
    exact = DistributedDataParallel(other)
    found["later"] = []
    for step in range(3):
        for one in (model, exact):
            one.zero_grad()
            loss_of(one, rank, step).backward()
        pairs = zip(gradients_of(model), gradients_of(exact), strict=True)
        found["later"].append(all(torch.allclose(a, b, rtol=0, atol=0) for a, b in pairs))
    found["no residuals"] = list(state.state_dict())
    found["stats"] = state.compression_stats()
    state.leave()

    model, state = registered({})
    (0 * loss_of(model, rank, 0)).backward()
    found["zeros"] = all(not g.any() for g in gradients_of(model))
    state.leave()

    model, state = registered({})
    with model.join():
        for step in range(1 + 2 * rank):  # rank 0 has fewer batches
            model.zero_grad()
            loss_of(model, rank, step).backward()
    found["joined"] = all(bool(g.isfinite().all()) for g in gradients_of(model))
    state.leave()

    single = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    state = pascaline.torch.register(single, link="emulated", codec=THC)
    single(torch.full((1, 1), float(rank + 1))).sum().backward()
    found["one element"] = float(single.module.weight.grad)
    state.leave()

    idiom = DistributedDataParallel(Net())
    state = pascaline.torch.PascalineState(None, link="emulated", codec="thc")
    idiom.register_comm_hook(state, pascaline.torch.pascaline_hook)
    loss_of(idiom, rank, 0).backward()
    found["numbered"] = sorted(state.state_dict())
    state.leave()

    wrong = DistributedDataParallel(Net())
    try:
        pascaline.torch.register(wrong, link="emulated", codec="thc", min_compress_elems=rank)
    except pascaline.JoinRefused as error:
        found["choice"] = str(error)
    return found


def test_passes_that_are_not_like_the_others(tmp_path: Path) -> None:
    for rank, found in enumerate(run_ranks(tmp_path / "store", 2, odd_passes)):
        assert found["later"] == [True, True, False]
        assert found["no residuals"] == ["iteration", "world_size"]
        elems = sum(p.numel() for p in Net().parameters())
        assert found["stats"]["f32"]["elements"] == 2 * elems
        assert found["stats"]["thc"]["elements"] == elems
        # each bucket ends in a short block, and a scale is 32 bits of it
        assert 4 < found["stats"]["thc"]["bits_up"] < 4.5
        assert 8 < found["stats"]["thc"]["bits_down"] < 9
        assert 0.001 < found["stats"]["thc"]["nmse"] < 0.05
        assert found["zeros"]
        assert found["joined"]
        assert found["one element"] == pytest.approx(1.5, rel=0.3)
        names = len(list(Net().parameters()))
        assert found["numbered"] == sorted(
            [f"parameter {i}@{rank}" for i in range(names)] + ["iteration", "world_size"]
        )
        assert re.search(
            "rank 0 joins with plan '.*; thc' and rank 1 with '.*, min_compress_elems 1; thc'",
            found["choice"],
        )


# ---- Checkpoints ----


def residuals_of(rank: int, world_size: int, values: dict[str, list[float]]) -> Residuals:
    residuals = Residuals(rank, world_size)
    group = residuals.of(list(values), [len(v) for v in values.values()])
    group.residual[:] = [x for v in values.values() for x in v]
    return residuals


def test_residuals_follow_their_parameters_into_other_buckets() -> None:
    residuals = residuals_of(0, 1, {"a": [1, 2], "b": [3], "c": [4, 5]})
    assert residuals.of(["c", "a"], [2, 2]).residual.tolist() == [4, 5, 1, 2]
    assert residuals.of(["b"], [1]).residual.tolist() == [3]
    assert {k: v.tolist() for k, v in residuals.state_dict().items() if "@" in k} == {
        "c@0": [4, 5],
        "a@0": [1, 2],
        "b@0": [3],
    }


def test_another_world_size_keeps_the_correction_of_the_mean_or_says_that_it_cannot() -> None:
    saved = [residuals_of(rank, 2, {"w": [float(rank), 4.0]}).state_dict() for rank in range(2)]
    merged = {**saved[0], **saved[1]}
    for before in (True, False):  # a bucket has travelled already, or not yet
        residuals = residuals_of(2, 3, {"w": [9, 9]}) if before else Residuals(2, 3)
        residuals.load_state_dict(merged)
        assert residuals.of(["w"], [2]).residual.tolist() == [0.5, 4.0]
        with pytest.warns(UserWarning, match=r"1 parameters starts at zero.* of 2 ranks, this job has 3"):
            residuals.load_state_dict(saved[0])
        assert residuals.of(["w"], [2]).residual.tolist() == [0, 0]
    own = Residuals(1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.load_state_dict(merged)
    assert own.of(["w"], [2]).residual.tolist() == [1, 4]
    with pytest.warns(UserWarning, match="it lacks those of rank 1"):
        own.load_state_dict(saved[0])
    with pytest.raises(ConfigurationError, match="'w' has 2 elements and the parameter 3"):
        fresh = Residuals(0, 2)
        fresh.load_state_dict(merged)
        fresh.of(["w"], [3])


def test_a_checkpoint_is_loaded_without_pickles(tmp_path: Path) -> None:
    saved = residuals_of(0, 1, {"w": [1.5]}).state_dict()
    torch.save(saved, tmp_path / "state")
    loaded = torch.load(tmp_path / "state", weights_only=True)
    assert {k: v.tolist() for k, v in loaded.items()} == {"world_size": 1, "w@0": [1.5]}
