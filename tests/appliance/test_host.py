"""What the lane answers as a host, and what its statistics say, on a real wire."""

from __future__ import annotations

import json
import struct

from tests.appliance.rack import APPLIANCE_IP, Appliance, Rack, until

LANE_OFFSET = 64
"""Bytes of the header before the lane's block; its first words are rx_packets, rx_bytes, tx_packets, tx_bytes."""


def test_arp_and_ping_are_answered(rack: Rack, appliance: Appliance) -> None:
    rack.run("ip", "neighbour", "flush", "dev", "worker0")
    answer = rack.run("ping", "-c", "3", "-i", "0.2", "-W", "5", APPLIANCE_IP)
    assert "3 received" in answer.stdout, answer.stdout
    neighbours = json.loads(rack.run("ip", "-j", "neighbour", "show", APPLIANCE_IP).stdout)
    assert neighbours[0]["lladdr"] == appliance.status()["ports"][0]["mac"]


def test_a_large_ping_fits_one_frame(rack: Rack, appliance: Appliance) -> None:
    del appliance
    answer = rack.run("ping", "-c", "1", "-W", "5", "-M", "do", "-s", "1400", APPLIANCE_IP)
    assert "1 received" in answer.stdout, answer.stdout


def test_another_address_is_not_answered(rack: Rack, appliance: Appliance) -> None:
    del appliance
    assert "0 received" in rack.run("ping", "-c", "1", "-W", "1", "10.77.0.9").stdout


def test_the_segment_counts_what_went_over_the_wire(rack: Rack, appliance: Appliance) -> None:
    def counters() -> tuple[int, ...]:
        return struct.unpack_from("<4Q", (appliance.folder / "stats").read_bytes(), LANE_OFFSET)

    before = counters()
    rack.run("ping", "-c", "4", "-i", "0.2", "-s", "100", "-W", "5", APPLIANCE_IP)
    until(lambda: counters()[2] >= before[2] + 4)
    frames, octets = (counters()[2] - before[2], counters()[3] - before[3])
    assert octets >= 4 * (14 + 20 + 8 + 100)
    assert frames <= 6, "four replies and perhaps an ARP"


def test_the_heartbeat_beats(appliance: Appliance) -> None:
    def heartbeat_us() -> int:
        beat: int = struct.unpack_from("<Q", (appliance.folder / "stats").read_bytes(), 32)[0]
        return beat

    first = heartbeat_us()
    until(lambda: heartbeat_us() > first, 2.0)
