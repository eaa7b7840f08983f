"""The exporter against segments of the real layout: every value, every way to be down, and a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import PATIENCE_S, Exporter, SegmentWriter, constants, ffi

GOLDEN = Path(__file__).with_name("golden.prom")
UP = "pascaline_up"


def filled_segment(path: Path) -> SegmentWriter:
    """Two lanes with every exported counter different, and two jobs, one on both and one that lived before."""
    segment = SegmentWriter(path)
    for lane in range(2):
        block = segment.lane(lane)
        block.rx_bytes, block.rx_packets = 10_000 + lane, 11 + lane
        block.tx_bytes, block.tx_packets = 2**53 + 2 * lane, 21 + lane
        block.retransmitted_packets = 31 + lane
        block.rx_missed, block.rx_no_mbuf, block.polls = 41 + lane, 51 + lane, 61 + lane
        for reason in range(constants.PSC_DROP_COUNT):
            block.drops[reason] = 100 * (lane + 1) + reason
    jobs = [  # name, state, world size, start, bytes in, bytes out, rounds, faults
        (b"digits", 3, 2, 1, 777, 777, 7, 9),
        (b"digits", 2, 4, 2, 4_000, 16_000, 10, 3),
        (b"gpt/run-7", 3, 8, 1, 40, 312, 1, 1),
        (b"gpt/run-7", 3, 8, 1, 24, 200, 1, 1),
    ]
    for row, (name, state, workers, start_us, contribution, result, rounds, faults) in enumerate(jobs):
        job = segment.job(row)
        job.name, job.state, job.world_size, job.start_time_us = name, state, workers, start_us
        job.contribution_bytes, job.result_bytes, job.rounds_completed = contribution, result, rounds
        job.faults = faults
        job.generation = 2
    return segment


def test_whole_output_is_the_golden_file(stats_path: Path, exporter: Exporter) -> None:
    filled_segment(stats_path)
    assert exporter.scrape() == GOLDEN.read_text()


def test_every_drop_reason_of_the_contract_is_a_label(stats_path: Path, exporter: Exporter) -> None:
    filled_segment(stats_path)
    output = exporter.scrape()
    names = set(ffi.typeof("enum psc_drop").relements) - {"PSC_DROP_NONE", "PSC_DROP_COUNT"}
    assert len(names) == constants.PSC_DROP_COUNT - 1
    for name in names:
        assert f'reason="{name.removeprefix("PSC_DROP_").lower()}"' in output


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is missing: apt install prometheus")
def test_promtool_has_nothing_to_say(stats_path: Path, exporter: Exporter) -> None:
    filled_segment(stats_path)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=exporter.scrape(), capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_counters_are_read_at_scrape_time(stats_path: Path, exporter: Exporter) -> None:
    segment = filled_segment(stats_path)
    series = 'pascaline_job_contribution_bytes_total{training_job="digits"}'
    assert exporter.value(series) == 4_000
    segment.job(1).contribution_bytes += 4096
    assert exporter.value(series) == 8_096


def test_a_restarted_appliance_is_followed(stats_path: Path, exporter: Exporter) -> None:
    before = filled_segment(stats_path)
    assert exporter.value('pascaline_lane_receive_packets_total{lane="0"}') == 11
    before.header.stopped = 1
    assert exporter.value(UP) == 0
    after = SegmentWriter(stats_path)
    after.lane(0).rx_packets = 3
    assert exporter.value(UP) == 1
    assert exporter.value('pascaline_lane_receive_packets_total{lane="0"}') == 3


def test_a_row_that_changes_its_identity_is_left_out(stats_path: Path, exporter: Exporter) -> None:
    segment = filled_segment(stats_path)
    series = 'pascaline_job_rounds_total{training_job="gpt/run-7"}'
    assert exporter.value(series) == 2
    for row in (2, 3):  # of both lanes
        segment.job(row).generation = 3
    assert exporter.value(series) is None
    for row in (2, 3):
        segment.job(row).generation = 4
    assert exporter.value(series) == 2


def break_nothing(segment: SegmentWriter) -> None:
    segment.beat()


def break_magic(segment: SegmentWriter) -> None:
    segment.header.magic = 0


def break_version(segment: SegmentWriter) -> None:
    segment.header.version = constants.PSC_STATS_VERSION + 1


def break_stopped(segment: SegmentWriter) -> None:
    segment.header.stopped = 1


def break_heartbeat(segment: SegmentWriter) -> None:
    segment.last_beat(age_s=60)


def heartbeat_in_the_future(segment: SegmentWriter) -> None:
    segment.last_beat(age_s=-7200)


def break_layout(segment: SegmentWriter) -> None:
    segment.header.job_rows = 1 << 20


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (break_nothing, None),
        (break_magic, "begins with 0x00000000"),
        (break_version, "writes version 2 of the statistics segment and this exporter reads version 1"),
        (break_stopped, "was stopped"),
        (
            heartbeat_in_the_future,
            r"renewed its heartbeat 7(200|1\d\d) s in the future: the clock was set back",
        ),
        (break_heartbeat, r"last renewed its heartbeat [67]\d s ago"),
        (break_layout, "is damaged"),
    ],
)
def test_only_a_live_segment_of_our_version_is_up(
    damage, sentence, stats_path: Path, exporter: Exporter
) -> None:
    damage(filled_segment(stats_path))
    outputs = {exporter.scrape() for _ in range(3)}
    up = sentence is None
    for output in outputs:
        assert f"{UP} {float(up)}\n" in output
        assert ("pascaline_lane" in output) == up
    warnings = [line for line in exporter.log.read_text().splitlines() if "serving" not in line]
    assert len(warnings) == (0 if up else 1), "one sentence per cause, however often it is scraped"
    assert up or re.search(sentence, warnings[0])


def test_without_a_segment_it_serves_up_0_and_says_what_to_do(exporter: Exporter) -> None:
    assert exporter.value(UP) == 0
    assert "is the appliance running here" in exporter.log.read_text()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_path_that_is_no_file_neither_fails_nor_hangs_a_scrape(
    make, stats_path: Path, exporter: Exporter
) -> None:
    make(stats_path)
    assert exporter.value(UP) == 0
    assert f"{stats_path} is not a file: let --stats name" in exporter.log.read_text()


def test_sigterm_ends_it_cleanly(exporter: Exporter) -> None:
    assert exporter.stop() == 0
    assert "Traceback" not in exporter.log.read_text()


def test_a_taken_port_is_one_sentence(exporter: Exporter) -> None:
    command = [sys.executable, "-m", "pascaline_exporter.cli", "--listen", exporter.address]
    second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert second.returncode == 1
    assert "cannot listen on 127.0.0.1" in second.stderr and second.stderr.count("\n") == 1


@pytest.fixture
def prometheus(exporter: Exporter, tmp_path: Path) -> Iterator[str]:
    """Address of a Prometheus that scrapes the exporter every second."""
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        f"  - {{job_name: pascaline, static_configs: [{{targets: ['{exporter.address}']}}]}}\n"
    )
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    log = tmp_path / "prometheus.log"
    with log.open("w") as stderr:
        server = subprocess.Popen(command, stderr=stderr)
    try:
        yield listening(server, log)
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE_S)


def listening(server: subprocess.Popen[bytes], log: Path) -> str:
    """The address that the kernel chose for a Prometheus."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(r'"Listening on" address=(\S+)', log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"Prometheus did not start:\n{log.read_text()}")


def query(address: str, expression: str, timeout_s: float = PATIENCE_S) -> list[dict]:
    """Result vector of an instant query, asked until it is not empty."""
    url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    deadline = time.monotonic() + timeout_s
    result: list[dict] = []
    while not result and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                result = json.load(response)["data"]["result"]
        except OSError:
            result = []
        time.sleep(0.2)
    return result


@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is missing: apt install prometheus")
def test_a_real_prometheus_scrapes_and_answers(stats_path: Path, exporter: Exporter, prometheus: str) -> None:
    filled_segment(stats_path)
    found = query(prometheus, 'pascaline_job_contribution_bytes_total{training_job="digits"}')
    assert [sample["value"][1] for sample in found] == ["4000"]
    assert set(found[0]["metric"]) == {"__name__", "instance", "job", "training_job"}
    assert [sample["value"][1] for sample in query(prometheus, "sum(pascaline_lane_drops_total)")] == ["7106"]
