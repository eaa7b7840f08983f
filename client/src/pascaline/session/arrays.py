"""A user's tensor -> the flat numpy view that is reduced in place; or a sentence why not. Knows torch only
if it is loaded.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from pascaline.codec import Array
from pascaline.errors import UnsupportedTensor

_DTYPES = (np.dtype("<f4"), np.dtype("<i4"))


def flat_view(tensor: Any) -> Array:
    """(elements,) view of the memory of a torch.Tensor or numpy.ndarray. Raises UnsupportedTensor."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _of_torch(tensor, torch)
    if not isinstance(tensor, np.ndarray) or isinstance(tensor, np.ma.MaskedArray):
        raise UnsupportedTensor(
            f"all_reduce takes a torch.Tensor or a numpy.ndarray, not {type(tensor).__name__}"
        )
    if tensor.dtype not in _DTYPES:
        raise _dtype(tensor.dtype)
    if not tensor.flags.c_contiguous:
        raise _layout()
    if not tensor.flags.writeable:
        raise UnsupportedTensor("all_reduce writes the sum in place and this array is read-only: pass a copy")
    return _aligned(tensor.view(np.ndarray).reshape(-1))  # a matrix stays one in reshape, with two dimensions


def _of_torch(tensor: Any, torch: Any) -> Array:
    if tensor.device.type != "cpu":
        raise UnsupportedTensor(
            f"all_reduce takes CPU tensors and this one is on {tensor.device}: copy it with .cpu(); "
            "GPU memory comes with a later release"
        )
    if tensor.dtype not in (torch.float32, torch.int32):
        raise _dtype(tensor.dtype)
    if tensor.requires_grad:
        raise UnsupportedTensor(
            "all_reduce works in place, which autograd cannot follow, and this tensor requires grad: "
            "pass tensor.detach() or tensor.grad"
        )
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise _layout()
    return _aligned(tensor.reshape(-1).numpy())


def _aligned(view: Array) -> Array:
    """What the kernels of some codecs need; refused here, since there it would end the session."""
    if not view.flags.aligned:
        raise UnsupportedTensor(
            f"all_reduce takes aligned tensors and this one begins at address {view.ctypes.data:#x}, no multiple of 4: "
            "pass a copy"
        )
    return view


def _dtype(dtype: Any) -> UnsupportedTensor:
    return UnsupportedTensor(
        f"all_reduce takes float32 and int32 and this tensor is {str(dtype).removeprefix('torch.')}: convert it with "
        ".float(); 16-bit types come with a later release"
    )


def _layout() -> UnsupportedTensor:
    return UnsupportedTensor(
        "all_reduce takes contiguous tensors and this one is not: pass tensor.contiguous()"
    )
