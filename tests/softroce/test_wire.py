"""What is on the wire, judged by an implementation that is not ours: every ICRC of a capture by scapy."""

from pathlib import Path

import numpy as np
import pytest

import pascaline
from tests.softroce import capture
from tests.softroce.appliance import DATA_ADDRESS, Appliance
from tests.softroce.ranks import Ranks

ELEMS = 40_003


@pytest.fixture(scope="module")
def frames(appliance: Appliance, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """RoCE frames of one job: join, probes, an all_reduce with fixed32 (both pools), leave."""

    def body(rank: int) -> bool:
        tensor = np.full(ELEMS, rank + 1, np.float32)
        with pascaline.Session(job="capture", codec="fixed32") as session:
            session.all_reduce(tensor)
        return bool(np.all(tensor == 3))

    path: Path = tmp_path_factory.mktemp("capture") / "all_reduce.pcap"
    with capture.Capture(path), Ranks(2, body, appliance.address) as ranks:
        assert all(ranks.results())
    return capture.roce_frames(path)


def test_the_capture_holds_the_whole_all_reduce(frames: list[bytes]) -> None:
    address = bytes(int(part) for part in DATA_ADDRESS.split("."))
    payload_bytes = 2 * ELEMS * 4
    for direction in (slice(26, 30), slice(30, 34)):  # IPv4 source, destination
        assert sum(len(f) for f in frames if f[direction] == address) > payload_bytes


def test_every_icrc_is_the_one_that_scapy_computes(frames: list[bytes]) -> None:
    for number, frame in enumerate(frames):
        assert capture.icrc_by_scapy(frame) == capture.icrc_on_wire(frame), f"frame {number} of {len(frames)}"


def test_scapy_would_see_a_wrong_icrc(frames: list[bytes]) -> None:
    spoiled = bytearray(max(frames, key=len))
    spoiled[100] ^= 1
    assert capture.icrc_by_scapy(bytes(spoiled)) != capture.icrc_on_wire(bytes(spoiled))
