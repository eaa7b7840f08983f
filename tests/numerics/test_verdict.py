"""What `make numerics` makes of its measurements: the measures themselves, the summary, the verdict."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from . import __main__ as numerics
from . import gradients, lhc, lhc_long, lhc_report, measure, schemes, sparse, sparse_models, sparse_report

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


LOSSLESS = {key: bound for key, (_, bound) in sparse_report.BOUNDS.items()}


@pytest.mark.parametrize("key", sparse_report.BOUNDS)
def test_a_missed_bound_of_sparse_fails(key, tmp_path, capsys):
    assert sparse_report.missed(LOSSLESS) == []
    step = -1 if key == "sparse_trials" else 0.01
    said = sparse_report.missed(LOSSLESS | {key: LOSSLESS[key] + step})
    assert len(said) == 1 and said[0].startswith(key)
    code, summary = summary_of(MEASURED | {"lossless": {"keys": LOSSLESS, "missed": said}}, tmp_path)
    assert code == 1 and said[0] in capsys.readouterr().out
    assert summary.keys() >= LOSSLESS.keys()


def test_formulas_of_the_other_ways():
    x, y = np.zeros((2, 512), np.float32)
    x[:4], y[300] = 1, 1
    found = sparse.formulas([x, y])
    assert found["pairs"] == pytest.approx(8 * (2.5 + 5) / 512)
    assert found["blocks of 256"] == pytest.approx((1 + 2) * (4 * 256 + 4) / 512)
    assert found["1/8 + 4 rho"] == pytest.approx(2 * (1 / 8 + 4 * 5 / 512))
    assert found["LHC, 1.23"] == pytest.approx(2 * (1 / 8 + 4.92 * 5 / 512))
    assert sparse.entropy(0.5) == 1 and sparse.entropy(0) == 0


def test_an_inexact_sum_is_noticed():
    xs = sparse.gradients(1, "shared", 3000, 0.1, 2)
    values = sparse.sent(sparse.codecs.Sparse("fixed32"), xs).values
    assert sparse.is_exact("fixed32", xs, values)
    values[7] = -0.0 if values[7] == 0 else np.nextafter(values[7], np.float32(9))
    assert not sparse.is_exact("fixed32", xs, values)


def test_a_chunk_of_the_captured_models_is_below_blocks(tmp_path):
    """Without captured gradients: those that are committed."""
    rows = {name: sparse.row(sparse_models.top(list(each), 1 / 8)) for name, each in sparse_models.sampled()}
    assert set(rows) == {"cnn", "gpt"} and sparse_models.over_blocks(rows) < 0.999
    assert sparse_models.over_blocks(rows, "one phase") < sparse_models.over_blocks(rows)


@pytest.mark.parametrize("kind", sparse.ADVERSARIAL)
@pytest.mark.parametrize("elems", [1, 33, 2048, 2049, 5000])
def test_adversarial_supports_are_what_they_are_called(kind, elems):
    begins = range(0, elems, 2048)
    for x in sparse.gradients(1, kind, elems, 0, 2):
        counts = [int((x[begin : begin + 2048] != 0).sum()) for begin in begins]
        sizes = [min(2048, elems - begin) for begin in begins]
        assert {
            "one in each sub-block": counts == [1] * len(sizes),
            "all but one in each sub-block": counts == [size - 1 for size in sizes],
            "all in one sub-block": sorted(set(counts) - {0}) in ([2048], [sizes[-1]])
            and counts.count(0) == len(sizes) - 1,
            "empty": not any(counts),
            "full": counts == sizes,
        }[kind]


def test_headers_are_of_frames():
    assert sparse_models.on_the_wire(8192, 1) == 8192 + 2 * 62 + 20
    assert sparse_models.on_the_wire(100, 3) == 100 + 3 * 82


LHC = {
    "keys": {"lhc_trials": 2000, "lhc_repairs": 200, "lhc_inexact": 0},
    "exactness": {"adversarial": 50, "one_phase": 500},
}


@pytest.mark.parametrize(("key", "value"), [("lhc_trials", 1999), ("lhc_repairs", 199), ("lhc_inexact", 1)])
def test_a_missed_bound_of_lhc_fails(key, value, tmp_path, capsys):
    assert lhc_report.missed(LHC) == []
    keys = LHC["keys"] | {key: value}
    said = lhc_report.missed(LHC | {"keys": keys})
    assert len(said) == 1 and said[0].startswith(f"{key} is {value}")
    code, summary = summary_of(MEASURED | {"lossless": {"keys": keys, "missed": said}}, tmp_path)
    assert code == 1 and said[0] in capsys.readouterr().out
    assert summary[key] == value
    for few in ({"adversarial": 49}, {"one_phase": 499}):
        assert len(lhc_report.missed(LHC | {"exactness": LHC["exactness"] | few})) == 1


def test_recovery_has_a_threshold():
    """By the hash of docs/lhc.md nearly all peels below a load of 0.82 and little above; by the paper's it does not."""
    assert lhc.threshold() == pytest.approx(0.8185, abs=1e-4)
    ours = dict(zip(lhc.LOADS, lhc.by_load(1 << 17, "independent", 0.2, 2)["unpeeled"], strict=True))
    theirs = dict(
        zip(lhc.LOADS, lhc.by_load_of_paper(1 << 17, "independent", 0.2, 1)["unpeeled"], strict=True)
    )
    assert ours[0.77] < 0.01 < 0.4 < ours[0.85]
    assert theirs[0.77] > 0.05


@pytest.mark.parametrize("kind", ["shared", "independent", "rows", "identical"])
def test_a_tensor_that_ranks_add_to_in_turn_is_exact(kind):
    """And one rank's gradient is the same at every call, whatever came between."""
    tensor = lhc_long.Tensor(100_003, 0.2, 3, kind)
    before = [tensor.gradient(rank)[0].copy() for rank in range(3)]
    found = tensor.trial(lambda _: None)
    assert found["inexact"] == 0 and 0.17 < found["density"] < 0.23
    assert [tensor.gradient(rank)[0].tobytes() for rank in range(3)] == [x.tobytes() for x in before]
    assert before[0].tobytes() != before[1].tobytes()


def test_the_long_target_goes_on_where_it_was_interrupted(tmp_path):
    measured, said = [], []

    def row():
        measured.append(1)
        return {"inexact": 0}

    for _ in range(2):
        kept = lhc_long.Kept(tmp_path / "numerics" / "long.json", said.append)
        assert kept.row("a row", row) == {"inexact": 0}
    assert len(measured) == len(said) == 1
    docs = tmp_path / "lhc.json"
    docs.write_text('{"keys": 1, "long": 2}')
    lhc_long.write("long", [3], docs)
    assert json.loads(docs.read_text()) == {"keys": 1, "long": [3]}
