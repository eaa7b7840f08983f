"""Two lanes that share a port, whose packets a dispatcher sorts, on real DPDK. A job lies on both, and is one job."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.appliance.job import SUM_I32, at_rest, ended, ints, join
from tests.appliance.rack import APPLIANCE_IP, PATIENCE_S, WORKER_IP, Appliance, Rack, tables, until
from tests.appliance.worker import Wire, Worker

AF_PACKET = (
    "--vdev=net_af_packet{n},iface=appliance{n},framesz=8192,blocksz=131072,framecnt=512,qdisc_bypass=1"
)
CPU = max(os.sched_getaffinity(0))
TWO = {"cores": [CPU, CPU], "idle_sleep_us": 100}
LANE_BITS = 0xF


def sharing(qpairs: int) -> dict[str, dict[str, Any]]:
    """Two lanes on one port, with a dispatcher; every lane sends by a queue of its own where there are two."""
    port = {"device": AF_PACKET.format(n=0) + f",qpairs={qpairs}", "dispatcher_core": CPU}
    return {"lanes": TWO, "port": port, "memory": {"memory_mib": 192}}


@pytest.fixture(scope="module", params=[1, 2], ids=["shared queue", "queues of their own"])
def appliance(
    rack: Rack, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Appliance]:
    folder = tmp_path_factory.mktemp("lanes")
    configuration = tables(folder)
    for name, table in sharing(request.param).items():
        configuration[name] = {**configuration[name], **table}
    appliance = Appliance(rack, folder, configuration)
    appliance.ready()
    yield appliance
    assert appliance.stop() == 0


def pools_of(worker: Worker) -> list[tuple[str, int]]:
    return [(pool["pool_class"], pool["lane"]) for pool in worker.offer["pools"]]


def add(workers: list[Worker], pool: int, round_number: int, imm: int) -> None:
    """One round over a pool, and its sum."""
    for rank, worker in enumerate(workers):
        worker.write(worker.pairs[pool], SUM_I32, round_number, ints(10 * pool + rank, round_number), imm)
    for worker in workers:
        pair = worker.pairs[pool]
        worker.wire.pump(lambda pair=pair: pair.completions[-1:] == [imm])
        place = round_number % pair.offer["window"] * pair.offer["chunk_bytes"]
        ranks = len(workers)
        sums = ints(ranks * 10 * pool + sum(range(ranks)), ranks * round_number)
        assert pair.result[place : place + 8] == sums


def drops(appliance: Appliance) -> list[dict[str, int]]:
    """By lane, from the statistics segment."""
    segment = pytest.importorskip("pascaline_exporter.segment")
    return [lane.drops for lane in segment.read(appliance.folder / "stats").lanes]


def test_a_job_s_data_goes_over_all_lanes_and_everything_is_given_back(
    rack: Rack, appliance: Appliance, wire: Wire
) -> None:
    before = at_rest(appliance)
    workers = join(rack, wire, 2, "striped")
    assert pools_of(workers[0]) == [("data", 0), ("data", 1), ("small", 0)]
    for worker in workers:
        assert [pair.offer["qpn"] & LANE_BITS for pair in worker.pairs] == [0, 1, 0]
    for round_number in range(10):
        for pool in range(3):
            add(workers, pool, round_number, 100 * pool + round_number + 1)
    status = appliance.status()
    (job,) = status["jobs"]
    assert [(pool["pool"], pool["lane"]) for pool in job["pools"]] == pools_of(workers[0])
    assert (job["rounds_completed"], job["contribution_bytes"]) == (30, 30 * 2 * 8)
    assert all(lane["rx_packets"] > 0 and lane["tx_packets"] > 0 for lane in status["lanes"])
    assert status["ports"][0]["dispatched_frames"] >= 30 * 2
    for worker in workers:
        worker.control.send({"type": "leave", "received": [10, 10, 10]})
    for worker in workers:
        worker.expect("left")
    assert at_rest(appliance) == before


def test_status_says_what_was_chosen_and_what_was_refused(appliance: Appliance) -> None:
    (port,) = appliance.status()["ports"]
    assert port["steering"] == "dispatcher"
    assert port["refused_steerings"].startswith("ib_bth: ")
    assert "; address: lanes.addresses gives none" in port["refused_steerings"]
    assert port["payload"] == ("lent" if port["tx_queues"] == 2 else "copied")
    assert port["rx_queues"] == port["tx_queues"]
    command = [sys.executable, "-m", "pascaline_appliance", "status", "--socket"]
    command.append(str(appliance.folder / "status.sock"))
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    assert (
        f"lanes 0 on core {CPU}, 1 on core {CPU}: steering dispatcher on core {CPU} (refused: ib_bth" in text
    )


def test_a_packet_for_another_lane_s_number_touches_nothing(
    rack: Rack, appliance: Appliance, wire: Wire
) -> None:
    """Its low bits choose the lane; there the number is nobody's, whoever has it elsewhere."""
    workers = join(rack, wire, 2, "strays")
    before = drops(appliance)
    for lane in (0, 1):
        pair = workers[0].pairs[lane]
        (packet,) = workers[0].packets(pair, SUM_I32, 0, ints(7), 1)
        pair.psn = (pair.psn - 1) & 0xFFFFFF
        for other in (1 - lane, 9):  # the other lane, and one that there is not
            stray = bytearray(packet)
            stray[7] = stray[7] & ~LANE_BITS | other
            wire.send(bytes(stray))
    unknown = [lane["unknown_qp"] for lane in before]
    # Lane 9's two go to the port's first lane, with what names no lane.
    until(lambda: [lane["unknown_qp"] for lane in drops(appliance)] == [unknown[0] + 3, unknown[1] + 1])
    for pool in range(2):
        add(workers, pool, 0, 5)
    for worker in workers:
        worker.control.close()


def test_one_lane_answers_for_the_address_that_all_have(rack: Rack, appliance: Appliance, wire: Wire) -> None:
    own = wire.ethernet[6:12]
    sender, wanted = own + socket.inet_aton(WORKER_IP), bytes(6) + socket.inet_aton(APPLIANCE_IP)
    question = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + sender + wanted
    with rack.inside(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))) as arp:
        arp.bind(("worker0", 0x0806))
        before = appliance.status()["lanes"]
        for _ in range(3):
            arp.send(b"\xff" * 6 + own + b"\x08\x06" + question)
        # Every lane hears each question, and answers it, if it does, in the same turn.
        heard = [lane["rx_packets"] + 3 for lane in before]
        until(
            lambda: all(
                lane["rx_packets"] >= n for lane, n in zip(appliance.status()["lanes"], heard, strict=True)
            )
        )
        turns = [lane["polls"] + 2 for lane in appliance.status()["lanes"]]
        until(
            lambda: all(
                lane["polls"] >= n for lane, n in zip(appliance.status()["lanes"], turns, strict=True)
            )
        )
        rack.ping(1)  # by the same queue, if lanes send by the dispatcher's
        arp.settimeout(0)
        answers = []
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, address = arp.recvfrom(100)
                if address[2] != socket.PACKET_OUTGOING and frame[20:22] == b"\x00\x02":
                    answers.append(socket.inet_ntoa(frame[28:32]))
    assert answers == [APPLIANCE_IP] * 3


def test_a_disagreement_on_one_lane_ends_the_job_on_all(rack: Rack, appliance: Appliance, wire: Wire) -> None:
    before = at_rest(appliance)
    workers = join(rack, wire, 2, "apart")
    add(workers, 0, 0, 1)
    for rank, worker in enumerate(workers):
        worker.write(worker.pairs[1], SUM_I32, 0, ints(*range(1 + rank)), 1)
        # The NIC of the second is refused, so it says nothing more about it.
        if rank == 0:
            wire.pump(lambda: workers[0].pairs[1].acknowledged == (workers[0].pairs[1].psn - 1) & 0xFFFFFF)
            workers[1].pairs[1].deaf = True
    ended(workers, "length_mismatch", "round 0 of the data (lane 1) pool")
    assert at_rest(appliance) == before


def test_a_path_that_fails_on_one_lane_is_resumed_on_all(
    rack: Rack, appliance: Appliance, wire: Wire
) -> None:
    workers = join(rack, wire, 2, "resumed")
    for pool, rounds in ((0, 2), (1, 1)):
        for round_number in range(rounds):
            add(workers, pool, round_number, 1 + round_number)
    workers[0].write(workers[0].pairs[1], SUM_I32, 1, ints(99), 2)  # never complete in this epoch
    workers[1].control.send({"type": "broken", "message": "a write on lane 1 has failed"})
    for worker in workers:
        assert worker.halted("lane 1 has failed")["complete"] == [2, 1, 0]
    for worker in workers:
        worker.resume()
    for worker in workers:
        worker.connect()
    for worker in workers:
        worker.probe()
    for worker in workers:
        worker.expect("ready")
    for pool, rounds in ((0, 2), (1, 1)):
        add(workers, pool, rounds, 7)
    rows = appliance.status()["jobs"][0]
    assert (rows["epoch"], rows["rounds_completed"]) == (workers[0].offer["epoch"], 5)
    for worker in workers:
        worker.control.close()


def test_a_job_may_wish_fewer_lanes(rack: Rack, appliance: Appliance, wire: Wire) -> None:
    del appliance
    first = Worker(rack, wire, world_size=1, job="first", lanes=1)
    first.ready()
    second = Worker(rack, wire, world_size=1, job="second", lanes=1)
    second.ready()
    assert (pools_of(first), pools_of(second)) == ([("data", 0), ("small", 0)], [("data", 1), ("small", 1)])
    add([second], 0, 0, 3)
    third = Worker(rack, wire, world_size=1, job="third", lanes=3)
    assert "wishes 3 lanes, the appliance has 2" in third.expect("refused")["message"]
    for worker in (first, second, third):
        worker.control.close()
