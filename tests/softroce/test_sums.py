"""Sums through the real appliance: every length that has an edge, every element type and codec, two and four workers.

Each test is one job: its ranks join once and reduce all their tensors, since a join costs seconds under emulation.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pascaline
from tests.softroce.appliance import Appliance
from tests.softroce.ranks import Ranks

Array = NDArray[Any]
MTU_ELEMS = 1024
CHUNK_BYTES = 65536
CHUNK_ELEMS = CHUNK_BYTES // 4
WINDOW = 4
# The last is more than the 2W slots of the pool hold, so every slot is used again.
LENGTHS = [1, 3, MTU_ELEMS - 1, MTU_ELEMS, MTU_ELEMS + 1, CHUNK_ELEMS, (2 * WINDOW + 1) * CHUNK_ELEMS + 1]


def session(job: str, **options: Any) -> pascaline.Session:
    """This rank's membership, with slots of a size that the lengths above are about."""
    return pascaline.Session(job=job, chunk_bytes=CHUNK_BYTES, window=WINDOW, **options)


def integers(elems: int, rank: int) -> Array:
    """int32 over its whole range: sums wrap, as the contract says and as numpy does."""
    return np.random.default_rng(rank).integers(-(2**31), 2**31, elems).astype(np.int32)


def representable(elems: int, rank: int) -> Array:
    """float32 whose sums of up to four are exact in any order: integers below 2^20."""
    return np.random.default_rng(rank).integers(-(2**20), 2**20, elems).astype(np.float32)


def normal(elems: int, rank: int) -> Array:
    """float32 as gradients have it, over several orders of magnitude."""
    generator = np.random.default_rng(100 + rank)
    return (generator.normal(size=elems) * 10.0 ** generator.integers(-4, 4, elems)).astype(np.float32)


def summed(make: Any, elems: int, world_size: int) -> Array:
    """The sum in rank order and in the inputs' type."""
    total: Array = make(elems, 0)
    for rank in range(1, world_size):
        total = total + make(elems, rank)
    return total


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("make", [integers, representable], ids=["int32", "float32"])
def test_every_length_is_summed_exactly(appliance: Appliance, job: str, world_size: int, make: Any) -> None:
    def body(rank: int) -> list[Array]:
        tensors = [make(length, rank) for length in LENGTHS]
        with session(job) as membership:
            for tensor in tensors:
                membership.all_reduce(tensor)
        return tensors

    with Ranks(world_size, body, appliance.address) as ranks:
        for rank, tensors in enumerate(ranks.results()):
            for length, tensor in zip(LENGTHS, tensors, strict=True):
                expected = summed(make, length, world_size)
                np.testing.assert_array_equal(tensor, expected, f"rank {rank}, {length} elements")


def test_sixteen_mebibytes(appliance: Appliance, job: str) -> None:
    elems = 2**24 // 4
    before = np.arange(elems, dtype=np.int32) * 1_000_003  # wraps

    def body(rank: int) -> int:
        tensor = before + rank
        with session(job) as membership:
            membership.all_reduce(tensor)
        return int(np.count_nonzero(tensor != before * 2 + 1))

    with Ranks(2, body, appliance.address) as ranks:
        assert ranks.results(timeout_s=400) == [0, 0]
    counters = appliance.job(job)
    assert counters.contribution_bytes == counters.result_bytes == 2 * 2**24


@pytest.mark.parametrize("codec", ["f32", "fixed32"])
def test_random_floats_have_the_same_bits_everywhere_and_stay_within_the_bound(
    appliance: Appliance, job: str, codec: str
) -> None:
    world_size, elems = 4, 2 * CHUNK_ELEMS + 5

    def body(rank: int) -> list[Array]:
        tensors = [normal(elems, rank), normal(elems, rank)]
        with session(job, codec=codec) as membership:
            for tensor in tensors:
                membership.all_reduce(tensor)
        return tensors

    with Ranks(world_size, body, appliance.address) as ranks:
        results = ranks.results()
    for rank in range(1, world_size):
        for mine, first in zip(results[rank], results[0], strict=True):
            np.testing.assert_array_equal(mine.view(np.uint32), first.view(np.uint32))
    inputs = np.array([normal(elems, rank) for rank in range(world_size)], np.float64)
    error = np.abs(results[0][0] - inputs.sum(0))
    if codec == "f32":
        assert np.all(error <= world_size * 2.0**-24 * np.abs(inputs).sum(0))
    else:
        for begin in range(0, elems, CHUNK_ELEMS):
            chunk = inputs[:, begin : begin + CHUNK_ELEMS]
            step = np.abs(chunk).max() * world_size * 2.0**-29  # the codec's 2^-k is this at most
            bound = world_size * step / 2 + 2.0**-24 * np.abs(chunk.sum(0))
            assert np.all(error[begin : begin + CHUNK_ELEMS] <= bound)
        # Integer sums have no order: the same bits in every run.
        np.testing.assert_array_equal(results[0][0].view(np.uint32), results[0][1].view(np.uint32))


def test_infinities_and_nans_arrive_as_such(appliance: Appliance, job: str) -> None:
    inf, nan = np.inf, np.nan
    inputs = [[inf, -inf, inf, nan, 1.0, 3e38], [1.0, -inf, -inf, 2.0, 2.0, 3e38]]
    expected = [inf, -inf, nan, nan, 3.0, inf]

    def body(rank: int) -> Array:
        tensor = np.array(inputs[rank], np.float32)
        with session(job) as membership:
            membership.all_reduce(tensor)
        return tensor

    with Ranks(2, body, appliance.address) as ranks:
        for result in ranks.results():
            np.testing.assert_array_equal(result, np.array(expected, np.float32))


def test_tensors_in_flight_together_keep_apart(appliance: Appliance, job: str) -> None:
    """Two long ones fill the window, ten more queue behind them; types and codecs are mixed."""
    lengths = [6 * CHUNK_ELEMS + 7, 5 * CHUNK_ELEMS, *range(1, 11)]

    def body(rank: int) -> list[Array]:
        makers = [integers, representable]
        tensors = [makers[place % 2](length, rank) for place, length in enumerate(lengths)]
        with session(job) as membership:
            works = [
                membership.all_reduce(tensor, async_op=True, codec=["f32", "fixed32"][place % 3 == 1])
                for place, tensor in enumerate(tensors)
            ]
            assert not works[-1].is_completed(), "nothing was in flight together"
            for work in reversed(works):
                work.wait(180)
        return tensors

    with Ranks(2, body, appliance.address) as ranks:
        for tensors in ranks.results():
            for place, tensor in enumerate(tensors):
                expected = summed([integers, representable][place % 2], lengths[place], 2)
                np.testing.assert_array_equal(tensor, expected, f"tensor {place}")
