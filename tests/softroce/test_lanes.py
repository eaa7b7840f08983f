"""A job over two lanes behind one port: striped chunks, small messages, exact sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pascaline
from tests.softroce.appliance import Appliance
from tests.softroce.ranks import Ranks

CHUNK_BYTES = 16384
LENGTHS = [1, 4096, 4097, 3 * 4096, 17 * 4096 + 5]


class TwoLanes(Appliance):
    """Beside the one that the other tests share."""

    address = "127.0.0.1:4990"
    data_address, prefix_bits = "fd00:77::1", 64
    interface = "app6"
    lanes = 2


@pytest.fixture(scope="module")
def two_lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    with TwoLanes(tmp_path_factory.mktemp("two-lanes")) as running:
        yield running


def numbers(rank: int, elems: int) -> NDArray[np.float32]:
    """Integers below 2^20: sums of two are exact."""
    return np.random.default_rng(rank).integers(-(2**20), 2**20, elems).astype(np.float32)


def test_chunks_go_over_both_lanes_and_sums_are_exact(two_lanes: Appliance, job: str) -> None:
    def body(rank: int) -> tuple[list[NDArray[np.float32]], dict[str, Any]]:
        tensors = [numbers(rank, elems) for elems in LENGTHS]
        scaled = numbers(rank, 5 * 4096)
        with pascaline.Session(job=job, chunk_bytes=CHUNK_BYTES, window=4) as membership:
            for tensor in tensors:
                membership.all_reduce(tensor)
            membership.all_reduce(scaled, codec="fixed32")  # its scales travel in the pool for small messages
            return [*tensors, scaled], membership.stats()

    before = two_lanes.status()
    with Ranks(2, body, two_lanes.address) as ranks:
        for rank, (tensors, stats) in enumerate(ranks.results()):
            assert [pool["class"] for pool in stats["pools"]] == ["data", "data", "small"]
            for elems, tensor in zip(LENGTHS, tensors, strict=False):
                expected = numbers(0, elems) + numbers(1, elems)
                np.testing.assert_array_equal(tensor, expected, f"rank {rank}, {elems} elements")
            exact = numbers(0, 5 * 4096) + numbers(1, 5 * 4096)
            np.testing.assert_allclose(tensors[-1], exact, atol=2.0)
    lanes = two_lanes.status()["lanes"]
    received = [now["rx_bytes"] - then["rx_bytes"] for now, then in zip(lanes, before["lanes"], strict=True)]
    contributed = two_lanes.job(job).contribution_bytes
    assert all(share > contributed / 3 for share in received), received
    assert before["ports"][0]["steering"] == "dispatcher"
