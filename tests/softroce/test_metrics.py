"""The exporter, scraped while a sum is under way and after it: exactly the bytes that the ranks know they sent."""

import multiprocessing
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pascaline
from tests.softroce.appliance import Appliance
from tests.softroce.ranks import Ranks

CHUNK_BYTES, WINDOW = 16384, 4
ELEMS = 10 * CHUNK_BYTES // 4 + 1
BYTES = ELEMS * 4


@pytest.fixture
def metrics_url(appliance: Appliance, tmp_path: Path) -> Iterator[str]:
    """A running pascaline-exporter."""
    command = [str(Path(sys.executable).with_name("pascaline-exporter")), "--listen", "127.0.0.1:0"]
    log = tmp_path / "exporter.log"
    with log.open("wb") as stream:
        exporter = subprocess.Popen([*command, "--stats", str(appliance.stats_path)], stderr=stream)
    try:
        deadline = time.monotonic() + 120
        while not (found := re.search(r"http://\S+", log.read_text())):
            assert exporter.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield found[0]
    finally:
        exporter.terminate()
        assert exporter.wait(90) == 0


def scrape(url: str) -> dict[str, float]:
    """All samples by their name with labels. After the host has stood still, the appliance is not up for a moment."""
    deadline = time.monotonic() + 180
    while True:
        text = urllib.request.urlopen(url, timeout=60).read().decode()
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        samples = {name: float(value) for name, value in lines}
        if samples["pascaline_up"] == 1:
            return samples
        assert time.monotonic() < deadline, text
        time.sleep(0.2)


def test_a_scrape_during_an_all_reduce_finds_exactly_the_bytes(
    appliance: Appliance, job: str, metrics_url: str
) -> None:
    context = multiprocessing.get_context("fork")
    scraped, done = context.Event(), context.Event()

    def body(rank: int) -> None:
        with pascaline.Session(job=job, chunk_bytes=CHUNK_BYTES, window=WINDOW) as session:
            if rank == 1:
                scraped.wait(240)
            session.all_reduce(np.ones(ELEMS, np.float32))
            done.set()

    def value(field: str) -> float:
        return samples.get(f'pascaline_job_{field}_total{{training_job="{job}"}}', 0)

    with Ranks(2, body, appliance.address) as ranks:
        # Rank 0 fills its window and waits: W chunks have been added, nothing is complete.
        deadline = time.monotonic() + 180
        samples = scrape(metrics_url)
        while value("contribution_bytes") < WINDOW * CHUNK_BYTES:
            assert time.monotonic() < deadline, samples
            time.sleep(0.2)
            samples = scrape(metrics_url)
        scraped.set()
        assert value("contribution_bytes") == WINDOW * CHUNK_BYTES
        assert (value("result_bytes"), value("rounds")) == (0, 0)
        ranks.results()

    samples = scrape(metrics_url)
    assert value("contribution_bytes") == 2 * BYTES
    assert value("result_bytes") == 2 * BYTES
    assert value("rounds") == 11
