"""A client that is not ours: perftest over rxe against our QP layer on plain memory, all its sizes, 2 B to 8 MiB.

perftest does not look at bytes; plain pyverbs with a known pattern does.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.perftest import pattern, plug, runs
from tests.perftest.target import PSN_MASK, Target
from tests.softroce import rc_pair

ADDRESS, ADDRESS6 = "10.77.0.2", "fd00:77::2"
ONE_SIZE = (1 << 16,)  # for runs that are short enough for the default suite
DEVICE = "rxe0"
REGION_BYTES = 1 << 20
REMOTE_ACCESS_ERROR = "completion with status 10"  # IBV_WC_REM_ACCESS_ERR

perftest = pytest.mark.figures("perftest_runs", "perftest_failed")

long = pytest.mark.long


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """A target on a switch port of its own: the appliance keeps app0."""
    with plug.port("target0") as interface, Target(interface, ADDRESS) as running:
        yield running


def device_of(family: int) -> runs.Device:
    index = rc_pair.gid_index(DEVICE, rc_pair.address_of(DEVICE, family))
    return runs.Device(DEVICE, DEVICE.replace("rxe", "w"), index)


@pytest.fixture(scope="module")
def device() -> runs.Device:
    return device_of(4)


@pytest.fixture(scope="module")
def target6() -> Iterator[Target]:
    """The same behind an IPv6 address."""
    with plug.port("target6") as interface, Target(interface, ADDRESS6) as running:
        yield running


@pytest.fixture(scope="module")
def device6() -> runs.Device:
    return device_of(6)


def check_what_arrived(run: runs.Run, shape: runs.Shape, answers: bool) -> None:
    """Every byte of every message was executed, once; and the QP says so in the words of an ACK. `answers`: the target
    has written as many messages, and all of them were acknowledged."""
    assert run.exit_code == 0, run.output
    assert len(run.counters) == shape.qps
    for first_psn, qp in zip(run.first_psns, run.counters, strict=True):
        assert (qp.fault, qp.expected, qp.got) == ("none", 0, 0)
        assert qp.executed_messages == qp.msn == shape.messages
        assert qp.executed_bytes == shape.bytes
        assert qp.expected_psn == (first_psn + shape.packets) & PSN_MASK
        assert qp.acknowledged_writes == (shape.messages if answers else 0)
        assert qp.unacked_psn == (runs.OUR_START_PSN + answers * shape.packets) & PSN_MASK
    print(f"{run.seconds:.1f} s; frames not executed: {run.drops}\n{run.output}")


@perftest
@pytest.mark.parametrize("mtu_bytes", [1024, 4096])
@pytest.mark.parametrize("qps", [1, pytest.param(2, marks=long), pytest.param(8, marks=long)])
def test_ib_write_bw(target: Target, device: runs.Device, qps: int, mtu_bytes: int) -> None:
    shape = runs.Shape(mtu_bytes, qps)
    check_what_arrived(runs.write_bw(target, device, shape), shape, False)


@perftest
@pytest.mark.parametrize("mtu_bytes", [1024, 4096])
def test_ib_write_lat(target: Target, device: runs.Device, mtu_bytes: int) -> None:
    shape = runs.Shape(mtu_bytes)
    check_what_arrived(runs.write_lat(target, device, shape), shape, True)


@perftest
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(runs.Shape(4096, 2, ONE_SIZE), id="2-4096-one-size"),
        pytest.param(runs.Shape(1024, 1), id="1-1024", marks=long),
        pytest.param(runs.Shape(4096, 1), id="1-4096", marks=long),
    ],
)
def test_ib_write_bw_both_ways(target: Target, device: runs.Device, shape: runs.Shape) -> None:
    check_what_arrived(runs.write_bw_both_ways(target, device, shape), shape, True)


@perftest
@pytest.mark.parametrize("program", [runs.write_bw, runs.write_bw_both_ways, runs.write_lat])
def test_over_ipv6(target6: Target, device6: runs.Device, program: Any) -> None:
    shape = runs.Shape(4096, 1, ONE_SIZE)
    check_what_arrived(program(target6, device6, shape), shape, program is not runs.write_bw)


def pieces(mtu_bytes: int) -> list[tuple[int, int]]:
    """(offset, size) of writes that end before, at and after packets' ends, and at odd places; some overlap nothing,
    and the last byte of the region is in the last."""
    sizes = [
        1,
        2,
        3,
        mtu_bytes - 1,
        mtu_bytes,
        mtu_bytes + 1,
        2 * mtu_bytes,
        2 * mtu_bytes + 3,
        150 * mtu_bytes - 2,
    ]
    offset, found = 1, []
    for size in sizes:
        found.append((offset, size))
        offset += size + 5
    return [*found, (REGION_BYTES - 7, 7)]


@pytest.mark.parametrize("mtu_bytes", [1024, 4096])
def test_the_bytes_are_those_of_the_client_and_nothing_else_changes(
    target: Target, device: runs.Device, mtu_bytes: int
) -> None:
    check_bytes(target, device, mtu_bytes)


def test_the_bytes_over_ipv6(target6: Target, device6: runs.Device) -> None:
    check_bytes(target6, device6, 4096)


def check_bytes(target: Target, device: runs.Device, mtu_bytes: int) -> None:
    """Pieces of a pattern there and back."""
    expected = np.zeros(REGION_BYTES, np.uint8)
    with pattern.Client(target, device, REGION_BYTES, mtu_bytes) as client:
        for offset, size in pieces(mtu_bytes):
            assert client.write(offset, size) == "success"
            expected[offset : offset + size] = pattern.pattern(REGION_BYTES)[offset : offset + size]
        np.testing.assert_array_equal(client.end.memory, expected)
        for number, (offset, size) in enumerate(pieces(mtu_bytes), 1):  # and back
            client.end.post(client.end.memory[offset : offset + size], offset)
            target.serve(lambda _, due=number: client.end.counters().acknowledged_writes == due, 180)
        np.testing.assert_array_equal(client.written(), expected)


@pytest.mark.parametrize(
    "size, va_error, rkey_error",
    [
        (1, -1, 0),
        (1, REGION_BYTES, 0),
        (4097, REGION_BYTES - 4096, 0),
        (4 * 4096, REGION_BYTES - 1, 0),
        (8, 0, -1),
    ],
)
def test_a_write_outside_is_refused(
    target: Target, device: runs.Device, size: int, va_error: int, rkey_error: int
) -> None:
    with pattern.Client(target, device, REGION_BYTES, 4096) as client:
        assert client.write(0, size, va_error, rkey_error) == REMOTE_ACCESS_ERROR
        assert client.end.counters().fault == "remote_access"
        assert not client.end.memory.any()
