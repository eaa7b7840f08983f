"""The whole way of `make learning` in small: two workers, few steps, images of its own."""

from __future__ import annotations

import dataclasses
import gzip
import json
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.numerics import gradients

from . import data, tasks
from .__main__ import main
from .runs import CODECS, LOSSLESS, Kept, Records, Run, Setting, order
from .workers import Leader, Work

STEPS = 6


def write_idx(path: Path, values: np.ndarray) -> None:
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(head + values.tobytes()))


@pytest.fixture(scope="module")
def fashion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose class is the row that is lit."""
    folder = tmp_path_factory.mktemp("fashion-mnist")
    for part, count in (("train", 256), ("t10k", 64)):
        classes = (np.arange(count) % 10).astype(np.uint8)
        pixels = np.zeros((count, 28, 28), np.uint8)
        pixels[np.arange(count), 2 * classes + 4] = 200
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", pixels)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", classes)
    return folder


def learn(folder: Path, fashion: Path, *more: str) -> int:
    return main(
        [
            *("--workers", "2", "--steps", str(STEPS), "--seeds", "2", "--codecs", "f32,thc"),
            *("--fashion-mnist", str(fashion), "--out", str(folder), "--docs", str(folder / "docs"), *more),
        ]
    )


def records(folder: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")]
    return {(record["model"], record["codec"], record["seed"]): record for record in found}


def test_what_was_interrupted_goes_on_and_ends_in_a_page(
    tmp_path: Path, fashion: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert learn(tmp_path, fashion, "--seeds", "1") == 1  # no deviation of a single seed
    first = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert len(first) == 4

    assert learn(tmp_path, fashion) == 1  # two seeds are no statement
    assert {path: path.stat().st_mtime_ns for path in first} == first
    found = records(tmp_path)
    assert found.keys() == {(run.model, run.codec, run.seed) for run in order(2) if run.codec in CODECS[:2]}
    _check_losses(found)
    _check_pages(tmp_path)
    for model, elems in (("cnn", 105866), ("gpt", 120576)):
        _check_captured(tmp_path, model, elems, fashion)
    assert "only 2 seeds, of 5 at least" in capsys.readouterr().out


def _check_losses(found: dict[tuple[str, str, int], dict[str, Any]]) -> None:
    for model in tasks.NAMES:
        losses = {
            key[1:]: list(record["losses"].values()) for key, record in found.items() if key[0] == model
        }
        for (codec, seed), own in losses.items():
            assert len(own) == STEPS
            assert own[-1] < own[0], f"{model} learns nothing with {codec}, seed {seed}: {own}"
            f32 = losses["f32", seed]
            # After a step with the same batch, thc's error has moved the loss by less than another seed would
            by_seed = abs(losses["f32", 0][0] - losses["f32", 1][0])
            assert abs(own[0] - f32[0]) < by_seed / 4, f"{model}: {codec} is not paired with f32"
            initial = [found[model, one, seed]["initial_loss"] for one in (codec, "f32")]
            assert initial[0] == initial[1], f"{model}: {codec} has not begun with f32's weights"
            assert (own == f32) == (codec == "f32"), f"{model}: {codec} has f32's very losses"
        assert found[model, "f32", 0]["initial_loss"] != found[model, "f32", 1]["initial_loss"]
        assert losses["f32", 0] != losses["f32", 1]
        assert found[model, "f32", 0]["bits_up"] == 32
        assert 4 < found[model, "thc", 0]["bits_up"] < 4.1


def _check_pages(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.keys() == {"thc_loss_gap_sd", "thc_steps_ratio", "seeds", "commit", "sources"}
    assert summary["seeds"] == 2
    assert json.loads((folder / "docs/learning.json").read_text())["models"].keys() == set(tasks.NAMES)
    assert "**Not complete**: some codec has 0 seeds" in (folder / "docs/learning.md").read_text()
    assert (folder / "docs/learning.svg").stat().st_size > 10_000


def _check_captured(folder: Path, model: str, elems: int, fashion: Path) -> None:
    """What numerics reads, and at the first step what the initial weights and the ranks' batches give."""
    captured = dict(gradients.captured(folder / "gradients"))
    assert captured.keys() == {f"{m}-{point}" for m in tasks.NAMES for point in ("early", "middle", "late")}
    assert all(len(captured[f"{model}-{point}"]) == 2 for point in ("early", "middle", "late"))
    task = tasks.load(model, fashion)
    torch.manual_seed(0)
    network = task.network()
    for rank, own in enumerate(captured[f"{model}-early"]):
        x, target = task.batch(0, 0, rank)
        network.zero_grad()
        task.loss(network(x), target).backward()
        expected = torch.cat(
            [p.grad.flatten() for p in reversed(list(network.parameters())) if p.grad is not None]
        )
        assert own.numel() == elems
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)
    with np.load(folder / "gradients" / f"{model}-early.npz") as file:
        assert int(file["step"]) == 0
        assert int(file["sizes"].sum()) == elems
        assert list(file["names"]) == [name for name, _ in network.named_parameters()][::-1]


def test_data_that_is_not_there_is_said_with_the_way_to_it(tmp_path: Path) -> None:
    with pytest.raises(data.Missing, match="apt-get install dataset-fashion-mnist"):
        data.images(tmp_path, "train")


def test_the_pair_of_the_bound_comes_first_then_the_papers_setting() -> None:
    runs = list(order(10))
    assert len(set(runs)) == len(runs) == 10 * 2 * (len(CODECS) - len(LOSSLESS)) + 2 * 2 * len(LOSSLESS)
    assert {run.seed for run in runs if run.codec in LOSSLESS} == {0, 1}
    assert {run.codec for run in runs[:20]} == {"f32", "thc"}
    assert {run.codec for run in runs[20:30]} == {"thc-paper"}
    assert {run.seed for run in runs[:80]} == set(range(5))


def test_no_run_begins_that_would_end_after_the_budget(tmp_path: Path, fashion: Path) -> None:
    runs = tuple(Run("cnn", "f32", seed) for seed in range(3))
    work = Work(runs, tmp_path, Setting("a" * 40, 4, None), fashion, until=time.monotonic() + 1000)
    loaded = {"cnn": tasks.load("cnn", fashion)}
    leader = Leader(work, loaded)
    assert leader.next() == runs[0]
    leader.write(runs[0], {"losses": {"1": 1.0}, "seconds": 999.0}, {})
    assert leader.next() == runs[1]
    leader.write(runs[1], {"losses": {"1": 1.0}, "seconds": 1001.0}, {})
    assert leader.next() is None
    late = Leader(dataclasses.replace(work, until=time.monotonic() - 1), loaded)
    assert late.left == [runs[0], runs[2]]  # the first has captured no gradients
    assert late.next() is None


def test_a_record_of_other_sources_data_or_steps_does_not_count(tmp_path: Path) -> None:
    run = Run("gpt", "thc", 3)
    here = Records(tmp_path, Setting("a" * 40, 4, None))
    here.write(run, {"data": "d"})
    assert here.done(run, "d", ())
    assert not here.done(run, "e", ())
    for other in (Setting("b" * 40, 4, None), Setting("a" * 40, 2, None), Setting("a" * 40, 4, 7)):
        assert not Records(tmp_path, other).done(run, "d", ())
    later = Setting("b" * 40, 4, None)
    assert not Records(tmp_path, later, Kept("a" * 40, ("f32",))).done(run, "d", ())
    assert Records(tmp_path, later, Kept("a" * 40, ("f32", "thc"))).done(run, "d", ())
    capturing = Run("gpt", "f32", 0)
    here.write(capturing, {"data": "d"})
    assert not here.done(capturing, "d", ("early",))
    here.gradients("gpt", "early").touch()
    assert here.done(capturing, "d", ("early",))
