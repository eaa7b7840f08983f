"""A client that is not ours: perftest over rxe against our QP layer on plain memory, all its sizes, 2 B to 8 MiB.

perftest does not look at bytes; plain pyverbs with a known pattern does.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.perftest import pattern, plug, runs
from tests.perftest.target import PSN_MASK, Target
from tests.softroce import rc_pair

ADDRESS = "10.77.0.2"
ITERATIONS = 5  # perftest's least
DEVICE = "rxe0"
REGION_BYTES = 1 << 20
REMOTE_ACCESS_ERROR = "completion with status 10"  # IBV_WC_REM_ACCESS_ERR

perftest = pytest.mark.figures("perftest_runs", "perftest_failed")


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """A target on a switch port of its own: the appliance keeps app0."""
    with plug.port("target0") as interface, Target(interface, ADDRESS) as running:
        yield running


@pytest.fixture(scope="module")
def device() -> runs.Device:
    index = rc_pair.gid_index(DEVICE, rc_pair.address_of(DEVICE))
    return runs.Device(DEVICE, DEVICE.replace("rxe", "w"), index)


def packets_of_a_run(mtu_bytes: int) -> int:
    return ITERATIONS * sum(-(-size // mtu_bytes) for size in runs.SIZES)


def check_what_arrived(run: runs.Run, mtu_bytes: int) -> None:
    """Every byte of every message was executed, once; and the QP says so in the words of an ACK."""
    assert run.exit_code == 0, run.output
    for first_psn, qp in zip(run.first_psns, run.counters, strict=True):
        assert (qp.fault, qp.expected, qp.got) == ("none", 0, 0)
        assert qp.executed_messages == qp.msn == ITERATIONS * len(runs.SIZES)
        assert qp.executed_bytes == ITERATIONS * sum(runs.SIZES)
        assert qp.expected_psn == (first_psn + packets_of_a_run(mtu_bytes)) & PSN_MASK
    print(f"{run.seconds:.1f} s; frames not executed: {run.drops}\n{run.output}")


@perftest
@pytest.mark.parametrize("mtu_bytes", [1024, 4096])
@pytest.mark.parametrize(
    "qps", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(8, marks=pytest.mark.long)]
)
def test_ib_write_bw(target: Target, device: runs.Device, qps: int, mtu_bytes: int) -> None:
    run = runs.write_bw(target, device, mtu_bytes, qps, ITERATIONS)
    check_what_arrived(run, mtu_bytes)
    assert len(run.counters) == qps


@perftest
@pytest.mark.parametrize("mtu_bytes", [1024, 4096])
def test_ib_write_lat(target: Target, device: runs.Device, mtu_bytes: int) -> None:
    run = runs.write_lat(target, device, mtu_bytes, ITERATIONS)
    check_what_arrived(run, mtu_bytes)
    assert run.counters[0].acknowledged_writes == ITERATIONS * len(runs.SIZES)


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
    expected = np.zeros(REGION_BYTES, np.uint8)
    with pattern.Client(target, device, REGION_BYTES, mtu_bytes) as client:
        for offset, size in pieces(mtu_bytes):
            assert client.write(offset, size) == "success"
            expected[offset : offset + size] = pattern.pattern(REGION_BYTES)[offset : offset + size]
        np.testing.assert_array_equal(client.end.memory, expected)
        for number, (offset, size) in enumerate(pieces(mtu_bytes), 1):  # and back
            client.end.post(client.end.memory[offset : offset + size], offset)
            target.serve(lambda _, due=number: client.end.counters().acknowledged_writes == due, 60)
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
