"""The statistics, on runs whose answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from . import compare, report
from .__main__ import verdict

SOURCES = "a" * 40


def run(codec: str, seed: int, losses: list[float | None], model: str = "gpt") -> dict[str, Any]:
    return {
        "model": model,
        "codec": codec,
        "seed": seed,
        "parameters": 10,
        "setting": {"workers": 4, "sources": SOURCES},
        "losses": {str(10 * (i + 1)): loss for i, loss in enumerate(losses)},
        "bits_up": 4.0,
        "bits_down": 8.0,
        "nmse": None,
    }


def falling(offset: float, factor: float = 1.0) -> list[float | None]:
    """40 validations, from 2 to 1 by a straight line."""
    return [offset + 2 - factor * i / 39 for i in range(40)]


def test_a_smoothed_loss_is_the_mean_of_five() -> None:
    assert compare.final(run("f32", 0, [9, 1, 2, 3, 4, 5])) == 3
    assert compare.final(run("f32", 0, [4, 2])) == 3
    assert compare.final(run("f32", 0, [4, None, 2])) == math.inf


def test_steps_lie_between_validations() -> None:
    one = run("f32", 0, [4, 4, 4, 4, 4, 0, 0])  # smoothed: 4 at 50, 3.2 at 60, 2.4 at 70
    assert compare.steps_to(one, 3.6) == pytest.approx(55)
    assert compare.steps_to(one, 2.4) == pytest.approx(70)
    assert compare.steps_to(one, 2.0) == math.inf
    assert compare.steps_to(one, 5.0) == 10


def test_the_interval_is_students() -> None:
    low, high = compare.interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)  # the 0.975 quantile with 4 degrees of freedom
    assert (low, high) == (pytest.approx(3 - half, rel=1e-6), pytest.approx(3 + half, rel=1e-6))
    assert compare.interval(np.array([1.0])) == (-math.inf, math.inf)


def pairs(gap: float, model: str = "gpt", seeds: int = 5) -> list[dict[str, Any]]:
    """float32's deviation is that of 0..seeds-1 tenths; thc's gap is the same at every seed."""
    f32 = [run("f32", seed, falling(seed / 10), model) for seed in range(seeds)]
    return f32 + [run("thc", seed, falling(seed / 10 + gap), model) for seed in range(seeds)]


def test_differences_are_paired_and_in_float32s_deviations() -> None:
    deviation = float(np.std(np.arange(5) / 10, ddof=1))
    found = compare.summarise(pairs(0.05))
    row = found["models"]["gpt"]["codecs"]["thc"]
    assert (row["gap"], row["gap_low"], row["gap_high"]) == (pytest.approx(0.05),) * 3
    assert row["gap_sd"] == pytest.approx(0.05 / deviation, rel=1e-3)
    # the slope is 1/39 per validation, and the middle seed is the median: 0.05 takes 19.5 steps more
    assert row["steps"] == pytest.approx(320 + 0.05 * 390, rel=1e-3)
    assert row["steps_ratio"] == pytest.approx(1 + 0.05 * 390 / 320, rel=1e-3)
    assert found["models"]["gpt"]["codecs"]["f32"]["steps_ratio"] == 1


def test_the_summary_is_of_the_worst_model_and_the_fewest_seeds() -> None:
    found = compare.summarise(pairs(0.05) + pairs(0.1, "cnn", 4))
    worst = found["models"]["cnn"]["codecs"]["thc"]
    assert found["summary"] == {
        "thc_loss_gap_sd": worst["gap_sd"],
        "thc_steps_ratio": worst["steps_ratio"],
        "seeds": 4,
    }
    without = [record for record in pairs(0.1, "cnn") if record["codec"] == "f32"]
    assert compare.summarise(pairs(0.05) + without)["summary"]["seeds"] == 0
    assert compare.summarise([])["summary"]["seeds"] == 0


def test_exact_codecs_are_held_to_the_bits_of_their_dense_ones() -> None:
    records = pairs(0.05)
    records += [run("sparse", seed, falling(seed / 10)) for seed in range(2)]
    records += [run(codec, 0, falling(0.3)) for codec in ("fixed32", "lhc")]
    found = compare.summarise(records)["models"]["gpt"]
    assert found["exact"] == {
        "sparse": {"as": "f32", "seeds": 2, "equal": 2},
        "lhc": {"as": "fixed32", "seeds": 1, "equal": 1},
    }
    assert "sparse's losses are f32's in every bit, at each validation of 2 of 2 seeds" in report._exact(
        found
    )
    records[10]["losses"]["10"] = np.nextafter(records[10]["losses"]["10"], 9)
    assert compare.summarise(records)["models"]["gpt"]["exact"]["sparse"] == {
        "as": "f32",
        "seeds": 2,
        "equal": 1,
    }


def test_rows_of_earlier_sources_are_named() -> None:
    records = pairs(0.05)
    for record in records[5:]:
        record["setting"]["sources"] = "b" * 40
    found = compare.summarise(records)
    assert report._sources(found, SOURCES) == (
        " Runs of thc are of commit bbbbbbbbbbbb, since when these codecs have not changed."
    )
    assert report._sources(compare.summarise(pairs(0.05)), SOURCES) == ""


def test_a_run_that_diverged_is_no_gap_of_nothing() -> None:
    records = pairs(0.05)
    records[-1] = run("thc", 4, [*falling(0)[:-1], None])
    found = compare.summarise(records)
    assert found["models"]["gpt"]["codecs"]["thc"]["gap"] is None
    assert found["summary"]["thc_loss_gap_sd"] is None
    assert verdict(found["summary"], 10, 10) == 1


@pytest.mark.parametrize("gap, seeds, code", [(0.99, 5, 0), (1.01, 5, 1), (0.0, 4, 1), (-3.0, 5, 0)])
def test_the_verdict(gap: float, seeds: int, code: int) -> None:
    assert verdict({"thc_loss_gap_sd": gap, "thc_steps_ratio": 1.0, "seeds": seeds}, 10, 10) == code
