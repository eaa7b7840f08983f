"""A client that is not ours: perftest over rxe against our QP layer on plain memory, all its sizes from 2 B to 8 MiB."""

from collections.abc import Iterator

import pytest

from tests.perftest import plug, runs
from tests.perftest.target import PSN_MASK, Target
from tests.softroce import rc_pair

ADDRESS = "10.77.0.2"
ITERATIONS = 5  # perftest's least
DEVICE = "rxe0"

pytestmark = pytest.mark.figures("perftest_runs", "perftest_failed")


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


@pytest.mark.parametrize("mtu_bytes", [1024, 4096])
@pytest.mark.parametrize("qps", [1, 2, 8])
def test_ib_write_bw(target: Target, device: runs.Device, qps: int, mtu_bytes: int) -> None:
    run = runs.write_bw(target, device, mtu_bytes, qps, ITERATIONS)
    check_what_arrived(run, mtu_bytes)
    assert len(run.counters) == qps


@pytest.mark.parametrize("mtu_bytes", [1024, 4096])
def test_ib_write_lat(target: Target, device: runs.Device, mtu_bytes: int) -> None:
    run = runs.write_lat(target, device, mtu_bytes, ITERATIONS)
    check_what_arrived(run, mtu_bytes)
    assert run.counters[0].acknowledged_writes == ITERATIONS * len(runs.SIZES)
