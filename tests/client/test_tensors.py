"""What all_reduce takes and what it refuses, each by a sentence that says what to do instead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pascaline import UnsupportedTensor
from pascaline.session.arrays import flat_view


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 4), (2, 0, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_a_tensor_is_reduced_in_its_own_memory(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    view = flat_view(tensor)
    assert view.shape == (tensor.numel(),)
    view[:] = 7
    assert (tensor == 7).all()


def test_a_numpy_array_is_too() -> None:
    array = np.zeros((2, 3), np.int32)
    flat_view(array)[:] = 5
    assert (array == 5).all()


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_is_flat_too() -> None:
    matrix = np.matrix(np.ones((2, 3), np.float32))
    view = flat_view(matrix)
    assert (type(view), view.shape) == (np.ndarray, (6,))
    view[:] = 5
    assert (matrix == 5).all()


@pytest.mark.parametrize(
    "tensor, words",
    [
        (torch.zeros(2, dtype=torch.float16), "this tensor is float16"),
        (torch.zeros(2, dtype=torch.bfloat16), "this tensor is bfloat16"),
        (torch.zeros(2, dtype=torch.float64), "this tensor is float64"),
        (torch.zeros(2, dtype=torch.int64), "this tensor is int64"),
        (torch.zeros(4, 4).t()[1:], "pass tensor.contiguous()"),
        (torch.zeros(8)[::2], "pass tensor.contiguous()"),
        (torch.zeros(4, 4).to_sparse(), "pass tensor.contiguous()"),
        (torch.zeros(2, requires_grad=True), "pass tensor.detach() or tensor.grad"),
        (torch.zeros(2, device="meta"), "is on meta: copy it with .cpu()"),
        (np.zeros(2), "this tensor is float64"),
        (np.zeros(2, ">f4"), "this tensor is >f4"),
        (np.zeros((4, 4), np.float32).T[1:], "pass tensor.contiguous()"),
        (np.ndarray(3, np.float32, bytearray(16), 1), "no multiple of 4: pass a copy"),
        (torch.frombuffer(bytearray(13), dtype=torch.float32, offset=1), "no multiple of 4: pass a copy"),
        (np.ma.ones(3, np.float32), "not MaskedArray"),
        ([1.0, 2.0], "not list"),
    ],
)
def test_what_cannot_be_reduced_is_refused(tensor: object, words: str) -> None:
    with pytest.raises(UnsupportedTensor) as caught:
        flat_view(tensor)
    assert words in str(caught.value).replace("\n", " ")
    assert isinstance(caught.value, TypeError)


def test_a_read_only_array_is_refused() -> None:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    with pytest.raises(UnsupportedTensor, match="read-only"):
        flat_view(array)
