"""A driver that cannot be asked for transmitted buffers (net_tap): the appliance says that it copies results, and the
results are right.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.appliance.job import SUM_I32, at_rest, ints, join
from tests.appliance.rack import WORKER_IP, Appliance, Rack, ip, tables
from tests.appliance.worker import Wire


@pytest.fixture
def tap_rack() -> Iterator[Rack]:
    """A namespace where `worker0` is not there yet: it will be the kernel's end of the tap."""
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        pytest.skip("a tap needs root and /dev/net/tun")
    rack = Rack(f"psc-tap-{os.getpid()}")
    ip("-n", rack.name, "link", "delete", "worker0")
    yield rack
    rack.close()


@pytest.fixture
def on_tap(tap_rack: Rack, tmp_path: Path) -> Iterator[Appliance]:
    """An appliance that is ready on a tap. Both ends of a tap begin with one MAC: the worker's gets its own."""
    appliance = Appliance(
        tap_rack, tmp_path, {**tables(tmp_path), "port": {"device": "--vdev=net_tap0,iface=worker0"}}
    )
    try:
        appliance.ready()
        ip("-n", tap_rack.name, "link", "set", "worker0", "address", "02:00:00:00:00:02", "up")
        ip("-n", tap_rack.name, "address", "add", f"{WORKER_IP}/24", "dev", "worker0")
        yield appliance
    finally:
        assert appliance.stop() == 0


def test_results_are_copied_where_the_driver_may_keep_them(tap_rack: Rack, on_tap: Appliance) -> None:
    port = on_tap.status()["ports"][0]
    assert (port["driver"], port["payload"]) == ("net_tap", "copied")
    wire = Wire(tap_rack)
    before = at_rest(on_tap)
    (worker,) = join(tap_rack, wire, 1)
    pair, rounds = worker.pairs[0], 4 * worker.pairs[0].offer["window"]
    for number in range(rounds):  # every slot is used again, and again
        worker.write(pair, SUM_I32, number, ints(*range(number, number + 700)), number)
        wire.pump(lambda number=number: pair.completions[-1:] == [number])
        place = number % pair.offer["window"] * pair.offer["chunk_bytes"]
        assert pair.result[place : place + 2800] == ints(*range(number, number + 700))
    worker.leave(rounds, 0)
    assert at_rest(on_tap) == before
