"""What `make numerics` makes of its measurements: the measures themselves, the summary, the verdict."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from . import __main__ as numerics
from . import gradients, measure, schemes

KEPT = {key: bound for key, (_, bound) in numerics.BOUNDS.items()}
MEASURED = {"ratios": KEPT, "bounds": KEPT, "unbiased": {"thc": {"inside": True}}}


def summary_of(data, folder):
    code = numerics.verdict(data, folder)
    return code, json.loads((folder / "summary.json").read_text())


def test_the_summary_is_flat_and_whole(tmp_path):
    code, summary = summary_of(MEASURED, tmp_path)
    assert code == 0
    assert set(summary) == {*numerics.BOUNDS, "rounding_unbiased", "commit"}
    assert summary["rounding_unbiased"] is True and len(summary["commit"]) == 40


@pytest.mark.parametrize("key", numerics.BOUNDS)
@pytest.mark.parametrize("value", [1.001, float("nan")])
def test_a_missed_bound_fails(key, value, tmp_path, capsys):
    ratios = KEPT | {key: KEPT[key] * value}
    code, _ = summary_of(MEASURED | {"ratios": ratios}, tmp_path)
    assert code == 1 and f"{key} is {ratios[key]}, above its bound of {KEPT[key]}" in capsys.readouterr().out


def test_biased_rounding_fails(tmp_path):
    code, summary = summary_of(MEASURED | {"unbiased": {"thc": {"inside": False}}}, tmp_path)
    assert code == 1 and summary["rounding_unbiased"] is False


def test_measures():
    grads = [torch.tensor([3.0, 0.0]), torch.tensor([1.0, 4.0])]
    assert gradients.nmse(torch.tensor([4.0, 4.0]), grads) == 0
    assert gradients.nmse(torch.tensor([4.0, 0.0]), grads) == 0.5
    assert gradients.slope(torch.tensor([2.0, 2.0]), grads) == 0.5


def test_drawn_gradients_are_as_correlated_and_as_spread_as_said():
    x, y = gradients.homogeneous(1 << 16, 2, 0.5, 1)
    assert float(x @ y / (x.norm() * y.norm())) == pytest.approx(0.5, abs=0.02)
    layer_norms = gradients.layers(1, 0.0, 1)[0].reshape(gradients.LAYERS, -1).square().mean(1).sqrt()
    assert float(layer_norms.max() / layer_norms.min()) == pytest.approx(100, rel=0.1)


def test_baselines():
    grads = gradients.homogeneous(1024, 2, 0.0, 2)
    totals = {scheme.name: scheme.total(grads, 0) for scheme in schemes.baselines()}
    assert 0 < gradients.nmse(totals["f16"], grads) < gradients.nmse(totals["bf16"], grads) < 1e-5
    assert int((totals["top-k 1/8"] != 0).sum()) <= 2 * 128
    assert 0.3 < gradients.nmse(totals["top-k 1/8"], grads) < 0.7


def test_captured_gradients_are_measured(tmp_path):
    assert measure.on_captured(lambda _: None, tmp_path) == {}
    np.savez(
        tmp_path / "cnn-start.npz", gradients=torch.stack(gradients.homogeneous(2048, 4, 0.5, 3)).numpy()
    )
    rows = measure.on_captured(lambda _: None, tmp_path)["cnn-start"]
    assert 0 < rows["thc"] < rows["thc-paper"] < rows["thc-release"]
