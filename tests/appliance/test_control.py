"""The control plane through a real WebSocket: who is refused and why, who waits, who is told when a rank is gone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.appliance.job import refused
from tests.appliance.rack import APPLIANCE_IP, PATIENCE_S, Appliance, Rack, tables, until
from tests.appliance.worker import Control


@pytest.fixture(scope="module")
def appliance(rack: Rack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """One with room for three jobs."""
    folder = tmp_path_factory.mktemp("three")
    configuration = tables(folder)
    configuration["limits"] |= {"max_jobs": 3}
    appliance = Appliance(rack, folder, configuration)
    appliance.ready()
    yield appliance
    assert appliance.stop() == 0


@pytest.fixture(autouse=True)
def no_job_is_left(appliance: Appliance) -> Iterator[None]:
    yield
    until(lambda: not appliance.status()["jobs"])
    assert "Traceback" not in appliance.stderr


@pytest.mark.parametrize(
    ("fields", "reason", "parts"),
    [
        ({"control_version": 1}, "version", ["control version 1, the appliance 4"]),
        ({"control_version": 1, "colour": "red"}, "version", ["control version 1, the appliance 4"]),
        ({"wire_version": 7}, "version", ["wire version 7, the appliance 5"]),
        ({"rank": 1}, "rank", ["rank 1 is not below world size 1"]),
        ({"address": "10.77.0.300"}, "address", ["'10.77.0.300' of rank 0 is not an IP address"]),
        (
            {"address": "fd00:77::2"},
            "address",
            ["address fd00:77::2, the appliance's data port 10.77.0.1: give", "an IPv4 address"],
        ),
        ({"address": APPLIANCE_IP}, "address", ["rank 0 cannot have the address 10.77.0.1"]),
        (
            {"chunk_bytes": 8388608},
            "budget",
            [
                "1 ranks * window 1 * chunks of 8388608 bytes",
                "are 2050 packets of 4096 bytes",
                "ring holds 512",
            ],
        ),
        ({"window": 3}, "budget", ["rank 0 (host host-0) wishes a window of 3: it is a power of two"]),
        (
            {"chunk_bytes": 5000},
            "budget",
            ["wishes chunks of 5000 bytes: they are whole packets of 4096 bytes"],
        ),
        (
            {"chunk_bytes": 65536, "window": 64},
            "budget",
            ["window 64 * chunks of 65536 bytes", "1026 packets"],
        ),
    ],
)
def test_a_join_that_cannot_be(rack: Rack, fields: dict[str, Any], reason: str, parts: list[str]) -> None:
    refused(Control(rack, **fields), reason, *parts)


@pytest.mark.parametrize(
    ("fields", "reason", "parts"),
    [
        (
            {"world_size": 3},
            "world_size",
            ["rank 1 (host host-1) says world size 3, rank 0 (host host-0) says 2"],
        ),
        (
            {"ops": ["sum_f32"]},
            "ops",
            ["rank 1 (host host-1) wants the ops sum_f32, rank 0 (host host-0) sum_i32"],
        ),
        (
            {"window": 2},
            "budget",
            ["rank 1 (host host-1) wishes a window of 2, rank 0 (host host-0) one of 4: wish the same"],
        ),
        ({"plan": "other"}, "plan", ["rank 1 (host host-1) is 'other', that of rank 0 (host host-0) 'plan'"]),
    ],
)
def test_ranks_that_disagree_are_all_told(
    rack: Rack, fields: dict[str, Any], reason: str, parts: list[str]
) -> None:
    first = Control(rack, 0, world_size=2, window=4)
    until_joined(rack, first)
    second = Control(rack, 1, **{"world_size": 2, **fields})
    for control in (second, first):
        refused(control, reason, *parts)


def until_joined(rack: Rack, control: Control) -> None:
    """Ping and pong: the appliance has read the join before it answers."""
    del rack
    assert control.connection.ping().wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Invalid JSON"),
        ('{"type": "leave", "received": []}', ""),
        ('{"type": "sing"}', "sing"),
        ("[1]", "should be an object"),
        ("[" * 60000, "Invalid JSON"),
    ],
)
def test_a_first_message_that_is_no_join(rack: Rack, text: str, reason: str) -> None:
    control = Control.silent(rack)
    control.connection.send(text)
    message = control.receive()
    if message["type"] == "refused":
        assert "first message of a connection is a join" in message["message"]
    else:
        assert (message["type"], reason in message["reason"]) == ("closed", True), message


def test_an_unknown_field_is_refused_by_name(rack: Rack) -> None:
    message = Control(rack, colour="red").receive()
    assert message["type"] == "closed"
    assert "colour" in message["reason"]


def test_an_oversized_message_closes_the_connection(rack: Rack) -> None:
    assert Control(rack, plan="x" * 70000).receive()["type"] == "closed"


def test_a_second_join_of_a_rank_replaces_the_first(rack: Rack) -> None:
    first = Control(rack, 0, world_size=2)
    until_joined(rack, first)
    second = Control(rack, 0, world_size=2)
    refused(first, "replaced", "rank 0 (host host-0) has joined again")
    other = Control(rack, 1, world_size=2)
    assert second.receive()["type"] == other.receive()["type"] == "offer"
    second.close()
    assert other.receive()["fault"] == "connection_lost"


def test_a_later_restart_ends_the_older_life_at_once(rack: Rack) -> None:
    old = [Control(rack, rank, world_size=2) for rank in range(2)]
    for control in old:
        assert control.receive()["type"] == "offer"
    began = time.monotonic()
    new = Control(rack, 0, world_size=2, restart_count=1)
    for control in old:
        message = control.receive()
        assert (message["type"], message["rank"]) == ("ended", 0)
        assert "(restart 1, this life is restart 0)" in message["message"]
    assert time.monotonic() - began < 20  # else the deadline of 60 s would end it
    late = Control(rack, 1, world_size=2, restart_count=0)
    refused(
        late, "replaced", "rank 1 (host host-1) is of restart 0 of job test, restart 1 has already joined"
    )
    other = Control(rack, 1, world_size=2, restart_count=1)
    offers = [new.receive(), other.receive()]
    assert [offer["type"] for offer in offers] == ["offer", "offer"]
    new.close()
    assert other.receive()["type"] == "ended"


def test_a_lost_connection_is_told_to_all_others(rack: Rack) -> None:
    controls = [Control(rack, rank, world_size=3) for rank in range(3)]
    for control in controls:
        assert control.receive()["type"] == "offer"
    controls[1].close()
    for control in (controls[0], controls[2]):
        message = control.receive()
        assert (message["type"], message["fault"], message["rank"]) == ("ended", "connection_lost", 1)
        assert "rank 1 (host host-1)" in message["message"]
        assert control.receive()["type"] == "closed"


def test_jobs_share_the_lane_up_to_the_limit(rack: Rack, appliance: Appliance) -> None:
    controls = [Control(rack, job=f"job-{number}") for number in range(3)]
    offers = [control.receive() for control in controls]
    numbers = [pool["qpn"] for offer in offers for pool in offer["pools"]]
    assert len(set(numbers)) == 6
    assert all(qpn & 0xF == 0 and qpn >> 14 for qpn in numbers)
    assert appliance.status()["usage"]["jobs"] == 3
    refused(Control(rack, job="job-3"), "budget", "3 jobs are open, limits.max_jobs is 3")
    for control in controls:
        control.close()


def test_jobs_share_the_port_s_ring(rack: Rack) -> None:
    chunks = []
    controls = []
    for job in ("first", "second", "third"):
        controls.append([Control(rack, rank, world_size=4, job=job) for rank in range(4)])
        chunks.append(controls[-1][0].receive()["pools"][0]["chunk_bytes"])
    assert chunks == [65536, 32768, 16384]  # 4 ranks * window 4 * 16, 8, 4 packets, and 8 small ones each
    for control in itertools.chain(*controls):
        control.close()


def test_leaving_before_anyone_else_came(rack: Rack) -> None:
    control = Control(rack, 0, world_size=2)
    control.send({"type": "leave", "received": []})
    assert control.receive()["type"] == "left"


def test_ends_that_do_not_fit_the_offer(rack: Rack) -> None:
    control = Control(rack)
    offer = control.receive()
    pool = {"qpn": 17, "start_psn": 1, "result_rkey": 1, "result_va": "0x1000", "result_bytes": 4096}
    control.send({"type": "connect", "pools": [{**pool, "pool": number} for number in range(2)]})
    needed = offer["pools"][0]["window"] * offer["pools"][0]["chunk_bytes"]
    refused(
        control,
        "budget",
        f"of rank 0 for pool 0 has 4096 bytes, window 4 * chunk 65536 = {needed} are needed",
    )


def test_the_path_mtu_is_the_smallest_and_chunks_follow_it(rack: Rack) -> None:
    controls = [Control(rack, rank, world_size=2, mtu=mtu) for rank, mtu in enumerate((4096, 1024))]
    for control in controls:
        offer = control.receive()
        assert (offer["mtu"], offer["traffic_class"]) == (1024, 106)
        data, small = offer["pools"]
        assert data["chunk_bytes"] % 1024 == 0
        assert small["chunk_bytes"] == 1024
        packets = 2 * (data["window"] * data["chunk_bytes"] + small["window"] * small["chunk_bytes"]) // 1024
        assert packets <= 512
    for control in controls:
        control.close()
