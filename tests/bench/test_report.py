"""The arithmetic of the benches, and where their figures go."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.bench import client, lanes, report, wire
from tests.bench.load import DROPS, EXPANSION, OPS, UNIT_BYTES, Wishes, lengths


def test_a_lane_s_cost_on_a_wire_is_over_the_sum_of_lane_and_driver() -> None:
    costs = {"rings": 300.0, "memif": 480.0, "testpmd_memif": 50.0, "rings_after_memif": 400.0}
    costs |= {"af_packet": 2400.0, "testpmd_af_packet": 500.0, "rings_after_af_packet": 600.0}
    found = {name: {"ns": ns} for name, ns in costs.items()}
    assert wire.over_sum(found, "memif") == 480 / (350 + 50)
    assert wire.over_sum(found, "af_packet") == 2400 / (500 + 500)


def test_a_dispatcher_s_lanes_are_told_by_a_lane_of_the_same_run() -> None:
    output: dict[str, list[float]] = {"copy_one_ns": [70.0], "copy_two_ns_0": [70.0], "copy_two_ns_1": [70.0]}
    output |= {"lane_one_ns": [260.0], "lane_two_ns_0": [260.0], "lane_two_ns_1": [260.0]}
    output |= {"dispatch_ns": [8.0], "dispatch_beside_ns": [16.0], "dispatch_rewritten_ns": [20.0]}
    output |= {f"{name}_us": [1.0, 2.0, 3.0] for name in ("quiet_alone", "quiet_beside", "noisy_beside")}
    figures_of_run = lanes.figures_of(output | {"dispatch_frames_per_us": [45.0]})
    assert (
        figures_of_run["lanes_that_saturate_a_dispatcher"] == 13
    )  # with headers from elsewhere, not its own


def test_keys_of_the_summary_stay_beside_others_and_each_names_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    report.summarize({"first": 1.5, "second": 2}, "a")
    report.summarize({"second": 3}, "b")
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "first": 1.5,
        "second": 3,
        "commits": {"first": "a", "second": "b"},
    }


def test_a_report_names_the_compiler_of_the_data_plane() -> None:
    assert re.search(r"\d+\.\d+\.\d+$", report.compiler())


def test_contributions_are_whole_units_whose_results_fit_into_a_slot() -> None:
    for op in OPS:
        for odd in (False, True):
            for length in lengths(op, 4096, Wishes(odd=odd)):
                assert length > 0
                assert length % UNIT_BYTES[op] == 0
                assert length * EXPANSION[op] <= 4096


def test_drops_have_the_contract_s_names() -> None:
    assert (DROPS["16"], DROPS["22"]) == ("icrc", "no_buffer")


def test_client_cost_is_a_ratio_of_the_same_moment() -> None:
    rows = [{"user_s": 4e-3 * slow, "system_s": 1e-3 * slow, "memcpy_s": 1e-3 * slow} for slow in (1, 7, 2)]
    found = client.judge([{"rows": rows, "pyverbs": {}}], "here")
    assert found["user_over_memcpy"]["median"] == 4
    assert found["system_over_memcpy"]["median"] == 1
