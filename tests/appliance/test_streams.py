"""Ops with sub-blocks through the real process: the sum and its length, what people read of a broken one."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.appliance.job import at_rest, ended, join
from tests.appliance.rack import Appliance, Rack, until
from tests.appliance.worker import Wire

ELEMENTS = 2048 + 40
OPS = ["expand_sum_i32", "expand_sum_f32"]


@pytest.fixture(autouse=True)
def no_job_is_left(appliance: Appliance) -> Iterator[None]:
    yield
    until(lambda: not appliance.status()["jobs"])
    assert "Traceback" not in appliance.stderr


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def stream(second_place: int, value: int) -> bytes:
    """All of the first sub-block, and one element of the second."""
    full = words(2048, *range(2048))
    return words(ELEMENTS) + full + words(1, 1 << second_place, 0, value)


def test_the_union_comes_back_with_its_own_length(rack: Rack, appliance: Appliance, wire: Wire) -> None:
    before = at_rest(appliance)
    workers = join(rack, wire, 2, "union", ops=OPS)
    for rank, worker in enumerate(workers):
        worker.write(worker.pairs[0], 1, 0, stream(3 + rank, 100 + rank), 0xE0)
    result = words(ELEMENTS, 2048, *range(0, 4096, 2), 2, 0b11000, 0, 100, 101)
    for worker in workers:
        wire.pump(lambda worker=worker: worker.pairs[0].completions == [0xE0])
        assert worker.pairs[0].result[: len(result)] == result
        assert worker.pairs[0].place == len(result)
    (job,) = appliance.status()["jobs"]
    sent = 2 * len(stream(0, 0))
    assert (job["contribution_bytes"], job["result_bytes"]) == (sent, 2 * len(result)) == (sent, sent + 8)
    for worker in workers:
        worker.control.send({"type": "leave", "received": [1, 0]})
    assert at_rest(appliance) == before


@pytest.mark.parametrize(
    ("wrong", "fault", "parts"),
    [
        (
            words(2000, 0),
            "elements_mismatch",
            ["contributed a stream of 2000 elements to round 0 of the data pool", "has 2088"],
        ),
        (words(1 << 20, 0), "elements_range", ["a stream of 1048576 elements", "a slot takes 1 to 15872"]),
        (words(ELEMENTS, 0, 7), "stream_length", ["contributed 12 bytes", "sub-blocks take 48 or more"]),
        (
            words(ELEMENTS, 0, 41),
            "sub_block",
            ["a sub-block to round 0", "expected 40, got 41; what encodes it is broken"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_stream_ends_the_job_in_a_sentence(
    rack: Rack, wire: Wire, wrong: bytes, fault: str, parts: list[str]
) -> None:
    workers = join(rack, wire, 2, fault, ops=OPS)
    pair = workers[0].pairs[0]
    workers[0].write(pair, 1, 0, stream(0, 0), 1)
    wire.pump(lambda: pair.acknowledged == (pair.psn - 1) & 0xFFFFFF)
    workers[1].write(workers[1].pairs[0], 1, 0, wrong, 1)
    ended(workers, fault, "rank 1 (host host-1)", *parts)
