"""What is compressed, and with what: choices that cannot be are refused by a sentence, before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pascaline.torch
from pascaline import codec as codecs
from pascaline.errors import ConfigurationError
from pascaline.torch.buckets import joined
from pascaline.torch.choice import Choice

from .processes import run_ranks


def test_neighbours_travel_as_one_slice() -> None:
    assert joined([2, 3, 1, 4], [True, True, False, True]) == [(0, 5), (6, 10)]
    assert joined([2, 3], [False, False]) == []


@pytest.mark.parametrize(
    "choice, words",
    [
        ({"start_compress_iter": -1}, "start_compress_iter is -1"),
        ({"exclude": "*.bias"}, r"pass \['\*.bias'\]"),
        ({"uncompressed_codec": "bf16"}, "uncompressed_codec is 'bf16': choose one of f32, fixed32"),
        (
            {"scaler": torch.amp.GradScaler("cpu", growth_factor=1.5)},
            "multiplies its scale by 1.5, no power of two",
        ),
    ],
)
def test_an_impossible_choice_is_refused(choice: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Choice(**choice)


def test_a_scale_that_is_no_power_of_two_is_refused_when_it_is_met() -> None:
    assert Choice(scaler=torch.amp.GradScaler("cpu", enabled=False)).loss_scale() == 1.0
    with pytest.raises(ConfigurationError, match=r"scale is 1000\.0, no power of two"):
        Choice(scaler=torch.amp.GradScaler("cpu", init_scale=1000.0)).loss_scale()


def test_exclude_needs_names() -> None:
    with pytest.raises(ConfigurationError, match=r"pass named_parameters=model.named_parameters"):
        pascaline.torch.PascalineState(exclude=["*.bias"], link="emulated")


def test_error_feedback_of_what_leaves_nothing_out_is_refused_before_the_join() -> None:
    for codec in ("f32", "fixed32"):
        with pytest.raises(
            ConfigurationError, match=f"use_error_feedback is True and codec {codec} leaves nothing"
        ):
            pascaline.torch.PascalineState(use_error_feedback=True, codec=codec, link="emulated")
    assert Choice(use_error_feedback=True).feeds_back(codecs.resolve("f16"))
    assert Choice().feeds_back(codecs.resolve("thc"))
    assert not Choice().feeds_back(codecs.resolve("f32"))


def test_another_state_dict_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    assert run_ranks(tmp_path / "store", 1, loads_the_models) == [
        "this is no state_dict of a PascalineState: it lacks iteration, world_size and has 2 other keys; save "
        "state.state_dict() beside the model's"
    ]


def loads_the_models(_rank: int, _world_size: int) -> str:
    with pascaline.torch.PascalineState(link="emulated") as state:
        try:
            state.load_state_dict(nn.Linear(3, 2).state_dict())
        except ConfigurationError as error:
            return str(error)
    return ""
