"""The codec thc's bits do not change unnoticed."""

from __future__ import annotations

import json

import pytest
import torch

from pascaline.codec.thc import Params

from .thc_vectors import PATH, array, cases, described, outputs

GOLDEN = json.loads(PATH.read_text())


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_golden_vectors(case):
    params = Params(**case["params"])
    assert params == cases()[case["name"]], "the setting's own numbers changed"
    for given, expected in zip(GOLDEN["inputs"], case["outputs"], strict=True):
        grads, residuals = ([array(x, torch.float32) for x in given[name]] for name in ("grads", "residuals"))
        assert described(outputs(params, grads, residuals)) == expected
