"""The demonstration's judge: what holds passes, and each false claim alone makes it fail, with its values named.

The run itself is `make demo`; `make demo-planted` shows it failing with a data plane that adds wrongly.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from pascaline import codec as codecs

from .__main__ import draw, report
from .payload import bytes_expected
from .verdict import Facts, objections

SOUND = Facts(
    link="rxe-vm",
    codec="f32",
    workers=2,
    steps=200,
    loss_first=2.3,
    loss_last=0.08,
    accuracy=0.978,
    accuracy_gloo=0.978,
    reference="gloo",
    max_abs_diff=0.0,
    bit_identical=True,
    bytes_added=3_856_000,
    bytes_expected=3_856_000,
    result_bytes=3_856_000,
    result_bytes_expected=3_856_000,
)
THC = dataclasses.replace(
    SOUND, codec="thc", reference="emulated", bytes_added=516_800, bytes_expected=516_800
)


def test_a_sound_run_passes(tmp_path: Path) -> None:
    assert objections(SOUND) == []
    assert report(SOUND, tmp_path) == 0
    assert report(SOUND, tmp_path, expect_objections=True) == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"bytes_added": 3_855_996}, "added 3855996 bytes and DDP's buckets in f32 make 3856000"),
        ({"bytes_added": 0}, "added 0 bytes"),
        ({"result_bytes": 3_856_004}, "wrote back 3856004 bytes and DDP's buckets in f32 make 3856000"),
        ({"bit_identical": False}, "different parameters"),
        (
            {"max_abs_diff": 1e-7},
            "parameters are 1e-07 from those of the training over gloo, the order of 2 additions explains 0:",
        ),
        ({"max_abs_diff": float("nan")}, "parameters are nan from"),
        ({"accuracy": 0.929, "accuracy_gloo": 0.93}, "accuracy 0.929 is below 0.93"),
        ({"accuracy": 0.95, "accuracy_gloo": 0.97}, "more than 0.01 from Gloo's 0.970"),
    ],
)
def test_one_false_claim_fails_it(change: dict, sentence: str, tmp_path: Path, capsys) -> None:
    facts = dataclasses.replace(SOUND, **change)
    assert len(objections(facts)) == 1
    assert report(facts, tmp_path) == 1
    assert report(facts, tmp_path, expect_objections=True) == 0
    assert sentence in capsys.readouterr().err


def test_more_workers_may_round_otherwise_than_gloo() -> None:
    assert objections(dataclasses.replace(SOUND, workers=4, max_abs_diff=1e-6)) == []
    assert len(objections(dataclasses.replace(SOUND, workers=4, max_abs_diff=0.01))) == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"max_abs_diff": 1e-7, "workers": 4},
            "from those of the training over emulated, the order of 4 additions",
        ),
        ({"bit_identical": False}, "different parameters"),
        ({"bytes_added": 3_856_000}, "added 3856000 bytes and DDP's buckets in thc make 516800"),
        ({"accuracy": 0.95, "accuracy_gloo": 0.975}, "more than 0.02 from Gloo's 0.975"),
    ],
)
def test_a_codec_that_compresses_is_held_to_the_emulated_link(change: dict, sentence: str) -> None:
    assert objections(THC) == []
    (found,) = objections(dataclasses.replace(THC, **change))
    assert sentence in found


def test_what_thc_puts_on_the_wire() -> None:
    """2410 parameters: two whole blocks and one of 512 coordinates, half a byte and a byte for each; three scales."""
    codec = codecs.for_array(np.dtype("f4"), "thc", 0, 2)
    assert bytes_expected(codec, [4 * 2410]) == (1280 + 12, 2560 + 12)
    paper = codecs.for_array(np.dtype("f4"), "thc-paper", 0, 2)
    assert bytes_expected(paper, [4 * 2048, 4 * 1024]) == (1536 + 2 * 4, 3072 + 2 * 4)
    assert bytes_expected(codecs.for_array(np.dtype("f4"), "f32", 0, 2), [4 * 2410, 40]) == (9680, 9680)


def test_demo_json_is_flat() -> None:
    values = json.loads(json.dumps(dataclasses.asdict(SOUND)))
    assert Facts(**values) == SOUND
    assert not any(isinstance(value, dict | list) for value in values.values())


def test_the_loss_is_drawn(tmp_path: Path) -> None:
    draw(SOUND, {"pascaline": [2.3, 1.0, 0.1], "gloo": [2.3, 1.0, 0.1]}, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
