"""Sums over RoCEv2 on IPv6: a second appliance with an IPv6 address, the same workers with the GIDs of theirs."""

import subprocess
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pascaline
from tests.softroce.appliance import Appliance
from tests.softroce.ranks import Ranks

LENGTHS = [1, 1023, 1024, 1025, 16384, 9 * 16384 + 1]


class Appliance6(Appliance):
    """Beside the one that the other tests share."""

    address = "127.0.0.1:4890"
    data_address, prefix_bits = "fd00:77::1", 64
    interface = "app6"


@pytest.fixture(scope="module")
def appliance6(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    with Appliance6(tmp_path_factory.mktemp("appliance6")) as running:
        yield running


def numbers(rank: int, elems: int) -> NDArray[np.int32]:
    return np.random.default_rng(rank).integers(-(2**31), 2**31, elems).astype(np.int32)


@pytest.mark.parametrize("world_size", [2, 4])
def test_sums_are_exact(appliance6: Appliance, job: str, world_size: int) -> None:
    def body(rank: int) -> tuple[list[NDArray[np.int32]], dict[str, Any]]:
        tensors = [numbers(rank, elems) for elems in LENGTHS]
        with pascaline.Session(job=job, chunk_bytes=65536, window=4) as membership:
            for tensor in tensors:
                membership.all_reduce(tensor)
            return tensors, membership.stats()

    with Ranks(world_size, body, appliance6.address) as ranks:
        for rank, (tensors, stats) in enumerate(ranks.results()):
            assert ip_address(stats["address"]) == ip_address(f"fd00:77::{10 + rank:x}")
            assert stats["mtu_bytes"] == 4096
            for elems, tensor in zip(LENGTHS, tensors, strict=True):
                expected = np.sum([numbers(r, elems) for r in range(world_size)], axis=0, dtype=np.int32)
                np.testing.assert_array_equal(tensor, expected, f"rank {rank}, {elems} elements")


def test_the_operator_can_ping_it(appliance6: Appliance) -> None:
    ping = ["ping", "-6", "-c", "3", "-W", "20", "-s", "4000", "-I", "w0", appliance6.data_address]
    done = subprocess.run(ping, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
