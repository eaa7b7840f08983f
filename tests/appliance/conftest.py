"""Fixtures: the rack of this run, and an appliance that most tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.appliance.job import at_rest, join
from tests.appliance.rack import Appliance, Rack, tables
from tests.appliance.worker import Wire, Worker

Start = Callable[..., Appliance]


@pytest.fixture(scope="session")
def rack() -> Iterator[Rack]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces and packet sockets need root")
    rack = Rack(f"psc-appliance-{os.getpid()}")
    yield rack
    rack.close()


@pytest.fixture(scope="module")
def appliance(rack: Rack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """One that is ready, for all tests of a file."""
    folder = tmp_path_factory.mktemp("appliance")
    appliance = Appliance(rack, folder, tables(folder))
    appliance.ready()
    yield appliance
    assert appliance.stop() == 0


@pytest.fixture
def start(rack: Rack, tmp_path: Path) -> Iterator[Start]:
    """Starts one with changed tables; whatever still runs at the end is killed."""
    started: list[Appliance] = []

    def start_one(environment: dict[str, str] | None = None, **changes: dict[str, Any]) -> Appliance:
        configuration = tables(tmp_path)
        for name, table in changes.items():
            configuration[name] = {**configuration.get(name, {}), **table}
        started.append(Appliance(rack, tmp_path, configuration, **(environment or {})))
        return started[-1]

    yield start_one
    for appliance in started:
        if appliance.process.poll() is None:
            appliance.process.kill()
            appliance.process.wait()


@pytest.fixture
def wire(rack: Rack, appliance: Appliance) -> Iterator[Wire]:
    """The worker's interface, while the shared appliance is there."""
    del appliance
    wire = Wire(rack)
    yield wire
    wire.socket.close()


def ready(world_size: int, rack: Rack, appliance: Appliance, wire: Wire) -> Iterator[list[Worker]]:
    """Ranks of a job that is ready; afterwards nothing of it is left."""
    before = at_rest(appliance)
    workers = join(rack, wire, world_size)
    yield workers
    for worker in workers:
        worker.control.close()
    assert at_rest(appliance) == before
    assert "Traceback" not in appliance.stderr


@pytest.fixture
def pair(rack: Rack, appliance: Appliance, wire: Wire) -> Iterator[list[Worker]]:
    yield from ready(2, rack, appliance, wire)


@pytest.fixture
def three(rack: Rack, appliance: Appliance, wire: Wire) -> Iterator[list[Worker]]:
    yield from ready(3, rack, appliance, wire)
