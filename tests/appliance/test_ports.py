"""Ports and lanes by configuration, on real DPDK: a port for each lane, addresses for lanes, and what cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.appliance.conftest import Start
from tests.appliance.job import SUM_I32, ints
from tests.appliance.rack import APPLIANCE_IP, Rack, ip
from tests.appliance.test_lanes import AF_PACKET, TWO, sharing
from tests.appliance.worker import IMM_PROBE, Wire, Worker

SECOND_IP, SECOND_PORT_IP = "10.77.0.3", "10.78.0.1"


@pytest.fixture
def second_link(rack: Rack) -> Iterator[None]:
    """Another cable between the worker and the appliance."""
    ip("-n", rack.name, "link", "add", "worker1", "mtu", "9000", "type", "veth", "peer", "name", "appliance1")
    ip("-n", rack.name, "link", "set", "appliance1", "mtu", "9000")
    ip("-n", rack.name, "address", "add", "10.78.0.2/24", "dev", "worker1")
    for interface in ("worker1", "appliance1"):
        ip("-n", rack.name, "link", "set", interface, "up")
    yield
    ip("-n", rack.name, "link", "delete", "worker1")


def over(wire: Wire, worker: Worker, pool: int, window: int, data: bytes, imm: int) -> None:
    """One write on a pool, by the cable that leads to its lane."""
    pair = worker.pairs[pool]
    for packet in worker.packets(pair, window, 0, data, imm):
        wire.send(packet)
    wire.pump(lambda: pair.completions[-1:] == [imm])


def test_a_port_for_each_lane_needs_no_steering(start: Start, rack: Rack, second_link: None) -> None:
    """The worker has one address, which the second port reaches by its gateway."""
    del second_link
    second = {"device": AF_PACKET.format(n=1), "address": f"{SECOND_PORT_IP}/24", "gateway": "10.78.0.2"}
    appliance = start(lanes=TWO, port2=second, memory={"memory_mib": 192})
    assert f"{SECOND_PORT_IP}/24 on net_af_packet1" in appliance.ready()
    ports = appliance.status()["ports"]
    assert [(port["steering"], port["payload"]) for port in ports] == [("port of its own", "lent")] * 2
    wires = [Wire(rack), Wire(rack, "worker1", SECOND_PORT_IP)]
    worker = Worker(rack, wires[0], world_size=1, job="two-ports")
    worker.connect()
    assert [(pool["lane"], pool["address"]) for pool in worker.offer["pools"]] == [
        (0, APPLIANCE_IP),
        (1, SECOND_PORT_IP),
        (0, APPLIANCE_IP),
    ]
    wires[0].pairs.remove(worker.pairs[1])
    wires[1].pairs.append(worker.pairs[1])
    for pool, lane in ((0, 0), (1, 1), (2, 0)):
        over(wires[lane], worker, pool, 0, bytes(worker.mtu), IMM_PROBE)
    worker.expect("ready")
    for pool, lane in ((0, 0), (1, 1), (2, 0)):
        over(wires[lane], worker, pool, SUM_I32, ints(7, pool), 1 + pool)
        assert worker.pairs[pool].result[:8] == ints(7, pool)
    worker.leave(1, 1, 1)
    for wire in wires:
        wire.socket.close()
    assert appliance.stop() == 0


def test_lanes_that_share_a_port_want_somebody_who_sorts(start: Start) -> None:
    code, stderr = start(lanes=TWO, memory={"memory_mib": 192}).failure()
    assert code == 17, stderr
    assert "cannot sort packets to its 2 lanes (ib_bth: " in stderr
    assert "port.dispatcher_core" in stderr
    assert stderr.count("\n") == 1


def test_one_lane_does_not_read_one_of_several_sockets(start: Start) -> None:
    code, stderr = start(port={"device": AF_PACKET.format(n=0) + ",qpairs=2"}).failure()
    assert code == 17, stderr
    assert "shares its frames between 2 sockets by their flow" in stderr


def test_rules_that_the_driver_refuses_are_told_and_the_dispatcher_sorts(start: Start) -> None:
    """net_af_packet has queues for both lanes, and no rules."""
    lanes = {**TWO, "addresses": [APPLIANCE_IP, SECOND_IP]}
    appliance = start(**{**sharing(2), "lanes": lanes})
    appliance.ready()
    status = appliance.status()
    assert status["ports"][0]["steering"] == "dispatcher"
    assert "address: the driver refuses the rule" in status["ports"][0]["refused_steerings"]
    assert [lane["address"] for lane in status["lanes"]] == [APPLIANCE_IP, SECOND_IP]
    assert appliance.stop() == 0


def test_lanes_with_addresses_of_their_own_answer_for_them(start: Start, rack: Rack) -> None:
    lanes = {**TWO, "addresses": [APPLIANCE_IP, SECOND_IP]}
    appliance = start(**{**sharing(1), "lanes": lanes})
    appliance.ready()
    for address in (APPLIANCE_IP, SECOND_IP):
        answer = rack.run("ping", "-c", "1", "-W", "30", address)
        assert "1 received" in answer.stdout, answer.stdout
    assert appliance.stop() == 0


def test_a_dispatcher_s_core_must_be_ours(start: Start) -> None:
    configuration = sharing(1)
    configuration["port"]["dispatcher_core"] = 1000
    code, stderr = start(**configuration).failure()
    assert code == 16
    assert "port.dispatcher_core names CPU 1000" in stderr


def test_steering_by_rules_alone_is_refused_where_there_are_none(start: Start) -> None:
    code, stderr = start(**{**sharing(1), "lanes": {**TWO, "steering": "ib_bth"}}).failure()
    assert code == 17, stderr
    assert "(ib_bth: wants DPDK 23.07" in stderr or "(ib_bth: the " in stderr
