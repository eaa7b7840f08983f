"""The hook on a real DistributedDataParallel model over Gloo. Its session is a stand-in: soft-RoCE is elsewhere."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pascaline.torch
from pascaline import codec as codecs
from pascaline.errors import ConfigurationError, EpochEnded, UnsupportedTensor
from pascaline.session import Session
from pascaline.session.work import Work
from pascaline.torch.choice import Choice
from pascaline.torch.register import fingerprint

from .interrupt import ctrl_c


class Doubling:
    """A session of "two ranks" that hold the same gradients; or one whose works end otherwise."""

    rank, world_size, codec = 0, 1, codecs.resolve("f32")
    left = closed = False

    def leave(self) -> None:
        self.left = True

    def close(self) -> None:
        self.closed = True

    def __init__(self, ending: str = "sum") -> None:
        self.ending = ending
        self.lengths: list[int] = []

    def all_reduce(
        self, tensor: torch.Tensor, async_op: bool, codec: object, error_feedback: None, name: str
    ) -> Work:
        assert async_op and name
        assert (codec, error_feedback) == (self.codec, None)
        work = Work(tensor, len(self.lengths))
        self.lengths.append(tensor.numel())
        if self.ending == "sum":
            tensor.mul_(2)
            threading.Timer(0.01, work.complete).start()
        elif self.ending == "error":
            threading.Timer(
                0.01, work.complete, (EpochEnded("rank 1 is gone", "connection_lost", 1),)
            ).start()
        return work


@pytest.fixture(autouse=True)
def gloo(tmp_path: Any) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model_with(session: Doubling) -> DistributedDataParallel:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 300), torch.nn.ReLU(), torch.nn.Linear(300, 2))
    model = DistributedDataParallel(net, bucket_cap_mb=0.001)
    pascaline.torch.register(model, cast(Session, session))
    return model


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    model(torch.ones(3, 4)).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_every_gradient_goes_through_the_session_and_is_divided() -> None:
    session = Doubling()
    model = model_with(session)
    plain = gradients(model.module)
    session.lengths.clear()
    for _ in range(3):  # buckets are rebuilt after the first
        summed = gradients(model)
        assert all(torch.equal(got, 2 * want) for got, want in zip(summed, plain, strict=True))
    assert sum(session.lengths) == 3 * sum(p.numel() for p in model.parameters())
    assert len(session.lengths) > 3

    session.world_size = 2
    assert all(torch.equal(got, want) for got, want in zip(gradients(model), plain, strict=True))


def test_an_error_reaches_the_user_as_it_was_raised() -> None:
    with pytest.raises(EpochEnded, match="rank 1 is gone"):
        gradients(model_with(Doubling("error")))


def test_ctrl_c_is_heard_while_a_backward_pass_waits() -> None:
    model = model_with(Doubling("never"))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), ctrl_c():
        gradients(model)
    assert time.monotonic() - began < 30  # the work never completes


def test_the_idiom_of_pytorch_works_too() -> None:
    session = Doubling()
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    state = pascaline.torch.PascalineState(process_group=None, session=cast(Session, session))
    model.register_comm_hook(state, pascaline.torch.pascaline_hook)
    model(torch.ones(1, 2)).sum().backward()
    assert session.lengths == [6]


def test_a_session_that_was_given_stays_its_owner_s_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Doubling()
    with pytest.raises(ZeroDivisionError), pascaline.torch.PascalineState(session=cast(Session, shared)):
        raise ZeroDivisionError
    with pascaline.torch.PascalineState(session=cast(Session, shared)) as state:
        state.close()
    assert (shared.left, shared.closed) == (False, False)

    own: list[Doubling] = []
    monkeypatch.setattr("pascaline.torch.state.Session", lambda **_: own.append(Doubling()) or own[-1])
    with pascaline.torch.PascalineState():
        pass
    with pytest.raises(ZeroDivisionError), pascaline.torch.PascalineState():
        raise ZeroDivisionError
    assert [(session.left, session.closed) for session in own] == [(True, False), (False, True)]


def test_groups_of_other_ranks_are_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "pascaline.torch.state.Session", lambda **options: joined.append(options) or Doubling()
    )
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    group = dist.new_group([0])
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 1 if group else 4)
    for ranks in ([0], [2], [0, 1, 2, 3]):
        monkeypatch.setattr(dist, "get_process_group_ranks", lambda _, ranks=ranks: ranks)
        pascaline.torch.PascalineState(group)
        pascaline.torch.PascalineState(group, job="mine")
    names = [options.get("job") for options in joined]
    assert names[4:] == [None, "mine"]
    assert all(str(name).startswith(("run@ranks-", "mine@ranks-")) for name in names[:4])
    assert len(set(names)) == 6


def test_a_model_that_has_a_hook_already_leaves_no_session_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model, own = model_with(Doubling()), Doubling()
    monkeypatch.setattr("pascaline.torch.state.Session", lambda **_: own)
    with pytest.raises(RuntimeError, match="can only be called once"):
        pascaline.torch.register(model)
    assert own.closed


def test_a_bucket_of_another_dtype_is_refused_before_anything_is_sent() -> None:
    session = Doubling()
    model = DistributedDataParallel(torch.nn.Linear(2, 2).double())
    state = pascaline.torch.PascalineState(session=cast(Session, session))
    model.register_comm_hook(state, pascaline.torch.pascaline_hook)
    with pytest.raises(UnsupportedTensor, match="bucket is float64"):
        model(torch.ones(1, 2).double()).sum().backward()
    assert session.lengths == []


def test_register_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ConfigurationError, match="not Linear: wrap it first"):
        pascaline.torch.register(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedTensor, match="parameter 'weight' is float64 on cpu"):
        pascaline.torch.register(DistributedDataParallel(torch.nn.Linear(1, 1).double()))
    session = Doubling()
    session.world_size = 3
    with pytest.raises(ConfigurationError, match="the session has 3 ranks and the process group 1"):
        model_with(session)
    with pytest.raises(ConfigurationError, match=r"cannot be joined again with \['codec'\]"):
        pascaline.torch.PascalineState(session=cast(Session, Doubling()), codec="f32")


def test_the_fingerprint_tells_models_and_choices_apart() -> None:
    one = fingerprint(torch.nn.Linear(3, 2), Choice())
    assert one == fingerprint(torch.nn.Linear(3, 2), Choice(use_error_feedback=True))
    assert one.startswith("8 parameters in 2 tensors, names ")
    others = [fingerprint(torch.nn.Linear(2, 3), Choice())]
    others.append(fingerprint(torch.nn.Sequential(torch.nn.Linear(3, 2)), Choice()))
    for choice in (Choice(start_compress_iter=1), Choice(min_compress_elems=1), Choice(exclude=["a"])):
        others.append(fingerprint(torch.nn.Linear(3, 2), choice))
    assert len({one, *others}) == 6


def test_the_fingerprint_says_what_is_chosen_and_leaves_room_for_the_codec() -> None:
    model = torch.nn.Linear(3, 2)
    for choice, words in (
        (Choice(start_compress_iter=1000), ", start_compress_iter 1000"),
        (Choice(min_compress_elems=4096), ", min_compress_elems 4096"),
        (Choice(uncompressed_codec="fixed32"), ", uncompressed_codec fixed32"),
        (Choice(exclude=["*.bias", "head.*"]), ", exclude *.bias,head.*"),
    ):
        assert fingerprint(model, choice).endswith(words)
    everything = Choice(None, None, 1000, 4096, [f"layer{i}.*" for i in range(20)], "fixed32")
    other = Choice(None, None, 1000, 4096, [f"layer{i}.*" for i in range(21)], "fixed32")
    assert fingerprint(model, everything) != fingerprint(model, other)
    for choice in (everything, Choice(exclude=[f"layer{i}.*" for i in range(20)])):
        assert len(text := fingerprint(model, choice)) <= 128 - 40
        assert re.search(" more #[0-9a-f]{8}$|, #[0-9a-f]{8}$", text)


# ---- Modes of DDP ----


class Branchy(torch.nn.Module):
    """Two layers, the second of which a pass may leave out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.sometimes = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, whole: bool = True) -> torch.Tensor:
        hidden = self.used(x)
        return self.sometimes(hidden) if whole else hidden


def registered(session: Doubling, **mode: bool) -> DistributedDataParallel:
    model = DistributedDataParallel(Branchy(), bucket_cap_mb=0.00001, **mode)
    pascaline.torch.register(model, cast(Session, session))
    return model


def backward(model: torch.nn.Module, whole: bool = True) -> list[torch.Tensor]:
    """All gradients after one more pass; zeros where there is none."""
    model(torch.ones(3, 4), whole).square().sum().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def same(got: list[torch.Tensor], want: list[torch.Tensor], factor: float) -> bool:
    return all(torch.allclose(a, factor * b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("mode", ["static_graph", "gradient_as_bucket_view", "find_unused_parameters"])
def test_modes_of_ddp_reduce_every_gradient_once(mode: str) -> None:
    session = Doubling()
    model, plain = registered(session, **{mode: True}), backward(Branchy())
    for _ in range(3):
        model.zero_grad()
        assert same(backward(model), plain, 2)
    assert sum(session.lengths) == 3 * sum(p.numel() for p in model.parameters())


def test_parameters_that_a_pass_leaves_out_are_reduced_all_the_same() -> None:
    session = Doubling()
    model = registered(session, find_unused_parameters=True)
    assert same(backward(model, whole=False), backward(Branchy(), whole=False), 2)
    assert sum(session.lengths) == sum(p.numel() for p in model.parameters())  # alike on all ranks


def test_no_sync_accumulates_here_and_the_last_pass_sends_the_sum() -> None:
    session = Doubling()
    model, plain = registered(session), backward(Branchy())
    with model.no_sync():
        for _ in range(2):
            backward(model)
    assert session.lengths == []
    assert same(backward(model), plain, 3 * 2)
    assert sum(session.lengths) == sum(p.numel() for p in model.parameters())


def test_accumulation_with_every_pass_sent_adds_to_what_was_reduced() -> None:
    """As with DDP's own all-reduce, whose mean over one rank changes nothing: here the "sum" doubles each time."""
    session = Doubling()
    model, plain = registered(session), backward(Branchy())
    assert same(backward(model), plain, 2)
    assert same(backward(model), plain, 2 * (2 + 1))


def test_join_ends_uneven_inputs() -> None:
    session = Doubling()
    model, plain = registered(session), backward(Branchy())
    with model.join():
        assert same(backward(model), plain, 2)
    assert len(session.lengths) > 0


def test_the_gradient_scaler_scales_before_the_sum_and_finds_its_overflow_after_it() -> None:
    session = Doubling()
    model, plain = registered(session), backward(Branchy())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for largest, scale in ((1.0, 1024.0), (torch.inf, 512.0)):
        optimizer.zero_grad()
        scaler.scale(largest * model(torch.ones(3, 4)).square().sum()).backward()
        scaler.unscale_(optimizer)
        if largest == 1.0:
            assert same([p.grad for p in model.parameters() if p.grad is not None], plain, 2)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
