"""register: the one line that a training script adds after wrapping its model. Touches DDP and the state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from pascaline.errors import ConfigurationError, UnsupportedTensor
from pascaline.session import Session
from pascaline.session.membership import PLAN_MAX_CHARS
from pascaline.torch.buckets import TAKEN
from pascaline.torch.choice import Choice
from pascaline.torch.hook import pascaline_hook
from pascaline.torch.state import PascalineState

_CODEC_CHARS = 40
"""Of the plan, kept free for the codec: '; thc-uniform-max and 10 more #12345678'."""


def register(
    ddp_model: DistributedDataParallel,
    session: Session | None = None,
    *,
    scaler: Any = None,
    use_error_feedback: bool | None = None,
    start_compress_iter: int = 0,
    min_compress_elems: int = 0,
    exclude: Sequence[str] = (),
    uncompressed_codec: str = "f32",
    **session_options: Any,
) -> PascalineState:
    """Send every gradient bucket of `ddp_model` through the appliance.

    Joins with the model's process group and `session_options` (Session's arguments, such as `codec="thc"` and
    `random_seed`) unless a joined `session` is given. All ranks must have the same parameters, codec and choice of what
    is compressed: the appliance compares and refuses with both values.

    `scaler`: the job's GradScaler, if it has one. `use_error_feedback`: None where the codec profits from it. Gradients
    travel uncompressed (by `uncompressed_codec`, f32 or fixed32) before backward pass `start_compress_iter`, where
    they have fewer than `min_compress_elems` elements, and where their parameter's name matches one of `exclude`
    (["*.bias", "head.*"]).
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise ConfigurationError(
            f"register takes a DistributedDataParallel model, not {type(ddp_model).__name__}: wrap it first"
        )
    module = ddp_model.module
    _check_parameters(module)
    choice: dict[str, Any] = {
        "scaler": scaler,
        "use_error_feedback": use_error_feedback,
        "start_compress_iter": start_compress_iter,
        "min_compress_elems": min_compress_elems,
        "exclude": exclude,
        "uncompressed_codec": uncompressed_codec,
    }
    if session is None:
        session_options.setdefault("plan", fingerprint(module, Choice(**choice)))
    state = PascalineState(
        ddp_model.process_group,
        session,
        named_parameters=module.named_parameters(),
        **choice,
        **session_options,
    )
    try:
        ddp_model.register_comm_hook(state, pascaline_hook)
    except BaseException:  # the model has a hook already: nobody would ever leave
        state.close()
        raise
    return state


def _check_parameters(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and (parameter.dtype not in TAKEN or parameter.device.type != "cpu"):
            raise UnsupportedTensor(
                f"parameter {name!r} is {str(parameter.dtype).removeprefix('torch.')} on {parameter.device}: "
                "this version reduces float32, bfloat16 and float16 on the CPU"
            )


def fingerprint(module: torch.nn.Module, choice: Choice) -> str:
    """What must be alike on all ranks, readable in a refusal: sizes in words, names, shapes and dtypes in the hash.

    The session adds its codec.
    """
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    described = "\n".join(f"{name} {tuple(p.shape)} {p.dtype}" for name, p in trained)
    digest = hashlib.sha256(described.encode()).hexdigest()[:12]
    elems = sum(p.numel() for _, p in trained)
    model = f"{elems} parameters in {len(trained)} tensors, names {digest}"
    return model + choice.described(PLAN_MAX_CHARS - len(model) - _CODEC_CHARS)
