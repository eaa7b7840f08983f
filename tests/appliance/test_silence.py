"""A worker's host that falls silent without a word, as when its power fails: the others know by the deadline."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.appliance.conftest import Start
from tests.appliance.rack import PATIENCE_S, Rack, ip
from tests.appliance.worker import Control

CONTROL_ADDRESS = "10.78.0.1"
FAR_ADDRESS = "10.78.0.2"
DEADLINE_S = 16.0
"""Of which 0.7 pass until it is told."""


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

    def control_socket(self) -> socket.socket:
        return self.inside(lambda: socket.create_connection((CONTROL_ADDRESS, 4790), PATIENCE_S))


def test_a_host_that_falls_silent_is_told_by_the_deadline(start: Start, rack: Rack, far_host: str) -> None:
    appliance = start(
        control={"address": CONTROL_ADDRESS, "insecure_listen": True}, limits={"deadline_s": DEADLINE_S}
    )
    appliance.ready()
    near, far = Control(rack, 0, world_size=2), Control(FarRack(far_host), 1, world_size=2)
    assert near.receive()["type"] == far.receive()["type"] == "offer"
    time.sleep(0.5)  # a heartbeat may just have passed
    ip("-n", far_host, "address", "flush", "dev", "far0")  # no answer any more, and no reset either
    began = time.monotonic()
    message = near.receive()
    assert (message["type"], message["fault"], message["rank"]) == ("ended", "connection_lost", 1)
    assert time.monotonic() - began < DEADLINE_S
    far.connection.socket.close()
    assert appliance.stop() == 0
