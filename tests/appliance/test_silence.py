"""A worker's host that falls silent without a word, as when its power fails: the others know by the deadline, and so
does a worker that is only cut off.
"""

from __future__ import annotations

import os
import queue
import subprocess
import time
from collections.abc import Iterator

import pytest

from pascaline.contract import control as contract
from pascaline.session import control as client
from tests.appliance.conftest import Start
from tests.appliance.rack import CONTROL_PORT, PATIENCE_S, Rack, ip
from tests.appliance.worker import Control

CONTROL_ADDRESS = "10.78.0.1"
FAR_ADDRESS = "10.78.0.2"
DEADLINE_S, PING_S = 12.0, 7.5
"""Late in the 8.4 s until it is told a ping is under way: it gives the silent host no further time."""


@pytest.fixture
def far_host(rack: Rack) -> Iterator[str]:
    """Another host's namespace, on the rack's control network."""
    name = f"psc-far-{os.getpid()}"
    subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)  # a killed run's
    ip("netns", "add", name)
    ip("-n", rack.name, "link", "add", "control0", "type", "veth", "peer", "name", "far0", "netns", name)
    for namespace, interface, address in (
        (rack.name, "control0", CONTROL_ADDRESS),
        (name, "far0", FAR_ADDRESS),
    ):
        ip("-n", namespace, "address", "add", f"{address}/24", "dev", interface)
        ip("-n", namespace, "link", "set", interface, "up")
    yield name
    ip("netns", "delete", name)


class FarRack(Rack):
    """The way into the far host."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_a_host_that_falls_silent_is_told_by_the_deadline(
    start: Start, rack: Rack, far_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pascaline.session.control._PING_EVERY_S", PING_S)
    appliance = start(
        control={"address": CONTROL_ADDRESS, "insecure_listen": True, "ping_interval_s": PING_S},
        limits={"deadline_s": DEADLINE_S},
    )
    appliance.ready()
    near = Control(rack, 0, world_size=2)
    far = FarRack(far_host).inside(lambda: client.Control(CONTROL_ADDRESS, CONTROL_PORT, PATIENCE_S))
    far.send(contract.Join.model_validate({**near.join, "rank": 1, "host": "host-1"}))
    assert near.receive()["type"] == far.receive(PATIENCE_S).type == "offer"
    cut_off: queue.SimpleQueue[tuple[float, Exception]] = queue.SimpleQueue()
    far.limit_silence(DEADLINE_S)
    far.deliver(lambda _: None, lambda error: cut_off.put((time.monotonic(), error)))
    time.sleep(0.5)  # a heartbeat may just have passed
    ip("-n", far_host, "address", "flush", "dev", "far0")  # no answer any more, and no reset either
    began = time.monotonic()
    message = near.receive()
    assert (message["type"], message["fault"], message["rank"]) == ("ended", "connection_lost", 1)
    assert time.monotonic() - began < DEADLINE_S
    known, error = cut_off.get(timeout=PATIENCE_S)
    assert known - began < DEADLINE_S, error
    far.close()
    assert appliance.stop() == 0
