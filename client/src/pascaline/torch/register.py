"""register: the one line that a training script adds after wrapping its model. Touches DDP and the state."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from pascaline.errors import ConfigurationError, UnsupportedTensor
from pascaline.session import Session
from pascaline.torch.hook import pascaline_hook
from pascaline.torch.state import PascalineState


def register(
    ddp_model: DistributedDataParallel, session: Session | None = None, **session_options: Any
) -> PascalineState:
    """Send every gradient bucket of `ddp_model` through the appliance.

    Joins with the model's process group and `session_options` (Session's arguments) unless a joined `session`
    is given. All ranks must have the same parameters and codec: the appliance compares and refuses with both
    values.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise ConfigurationError(
            f"register takes a DistributedDataParallel model, not {type(ddp_model).__name__}: wrap it first"
        )
    for name, parameter in ddp_model.module.named_parameters():
        if parameter.requires_grad and (parameter.dtype != torch.float32 or parameter.device.type != "cpu"):
            raise UnsupportedTensor(
                f"parameter {name!r} is {str(parameter.dtype).removeprefix('torch.')} on {parameter.device}: "
                "this version reduces float32 on the CPU"
            )
    if session is None:
        codec = session_options.get("codec", "f32")
        session_options.setdefault("plan", fingerprint(ddp_model.module, codec))
    state = PascalineState(ddp_model.process_group, session, **session_options)
    try:
        ddp_model.register_comm_hook(state, pascaline_hook)
    except BaseException:  # the model has a hook already: nobody would ever leave
        state.close()
        raise
    return state


def fingerprint(module: torch.nn.Module, codec: str) -> str:
    """What must be alike on all ranks, readable in a refusal: sizes in words, names, shapes and dtypes in the hash."""
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    described = "\n".join(f"{name} {tuple(p.shape)} {p.dtype}" for name, p in trained)
    digest = hashlib.sha256(described.encode()).hexdigest()[:16]
    elems = sum(p.numel() for _, p in trained)
    return f"{elems} parameters in {len(trained)} tensors, codec {codec}, names {digest}"
