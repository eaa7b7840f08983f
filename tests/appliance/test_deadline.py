"""What every live rank is told by the deadline, through the real process: a rank that does not resume, and a path that
fails as often as it is mended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.appliance.job import contribute, has
from tests.appliance.rack import Appliance, Rack, tables
from tests.appliance.worker import IMM_PROBE, Wire, Worker

DEADLINE_S, PROGRESS_S = 19.0, 10.0
"""8 s are left to resume, 4 s of them to drain. The fault itself is seen sooner, after seven times 0.54 s."""


@pytest.fixture(scope="module")
def appliance(rack: Rack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """One whose deadline a test can wait for."""
    folder = tmp_path_factory.mktemp("deadline")
    configuration = tables(folder)
    configuration["limits"] |= {"deadline_s": DEADLINE_S, "progress_s": PROGRESS_S}
    appliance = Appliance(rack, folder, configuration)
    appliance.ready()
    yield appliance
    assert appliance.stop() == 0


def test_a_rank_that_does_not_resume_ends_the_job_in_time(pair: list[Worker], wire: Wire) -> None:
    pair[1].hush()
    contribute(pair, 0)
    has(wire, pair[0], 0xA)
    began = time.monotonic()
    pair[0].halted()
    pair[1].halted()
    pair[0].resume()
    message = pair[0].expect("ended")
    assert time.monotonic() - began < DEADLINE_S
    assert (message["fault"], message["resumable"], message["complete"]) == ("retry_exceeded", False, [1, 0])
    assert "rank 1 (host host-1) did not resume within" in message["message"]
    assert "does not acknowledge" in message["message"]
    assert pair[1].expect("ended")["message"] == message["message"]


def go_along(worker: Worker, message: dict[str, Any]) -> None:
    """As it should answer, but that it acknowledges no result."""
    if message["type"] == "ended":
        worker.hush()
        worker.resume()
    elif message["type"] == "offer":
        worker.accept(message)
    elif message["type"] == "connected":
        for end in worker.pairs:
            worker.write(end, 0, 0, bytes(worker.mtu), IMM_PROBE)


def test_a_path_that_fails_again_and_again_ends_in_one_deadline(pair: list[Worker]) -> None:
    """Every probe passes, no result ever does: those who wait see one fault."""
    contribute(pair, 0)
    began = time.monotonic()
    verdicts: dict[int, dict[str, Any]] = {}
    epochs = set()
    while len(verdicts) < len(pair):
        for rank, worker in enumerate(pair):
            message = worker.control.receive_within(0.05) if rank not in verdicts else None
            if message is None:
                continue
            if message["type"] == "ended":
                epochs.add(message["epoch"])
                if not message["resumable"]:
                    verdicts[rank] = message
                    continue
            with contextlib.suppress(ConnectionClosed):  # by the verdict, which has not been read yet
                go_along(worker, message)
        assert time.monotonic() - began < DEADLINE_S
    assert {message["fault"] for message in verdicts.values()} == {"retry_exceeded"}
    assert len(epochs) > 1
