"""Never a wrong sum: workers, wires and the appliance fail over real RoCE, and the oracle of faulty.py judges.

One table. A few of its rows are in the default suite; `make softroce-faults` runs all of them (marker `long`).
Points of a worker's life are exact: the injector stops its packets behind the one that is meant, and then the process
gets its signal.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import pascaline
from tests.softroce.faulty import (
    ALL_KINDS,
    HEARTBEAT_S,
    MIDDLES,
    ONE_CHUNK_EACH,
    PROGRESS_S,
    WORLD_SIZE,
    FaultyRack,
    Report,
    judge,
    train,
)
from tests.softroce.injector import DOWN, FIRST, LAST_IMM, MIDDLE, UP, Injector, Rates, Trap
from tests.softroce.ranks import Outcome, Ranks

pytestmark = pytest.mark.figures("live_faults", "live_failed")

VICTIM = WORLD_SIZE - 1
OTHERS = range(VICTIM)
START_S = 180.0  # until a trap closes: three ranks join, under emulation
PATIENCE_S = 300.0  # for a rank's report; only reached in failure
ROUND = 7  # the round, from 1, in which things happen: every slot is in use, and some again
STOP_S = PROGRESS_S + 2
JOIN_PATIENCE_S = 8.0
POINTS = {
    "after-first": Trap(UP, FIRST, ROUND, freezes=UP),
    "mid-message": Trap(UP, MIDDLE, (ROUND - 1) * MIDDLES + MIDDLES // 2, freezes=UP),
    "before-result": Trap(UP, LAST_IMM, ROUND, freezes=DOWN),
    "after-result": Trap(DOWN, LAST_IMM, ROUND, freezes=UP),
}


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyRack]:
    with FaultyRack(tmp_path_factory.mktemp("faulty")) as running:
        yield running


@pytest.fixture
def wire(rack: FaultyRack) -> Iterator[Injector]:
    """The injector, harmless before and after; it must have lost nothing of its own."""
    rack.injector.begin(seed=1)
    yield rack.injector
    rack.injector.begin(seed=1)
    assert rack.injector.counts().overruns == 0


def default_or_long(*names: str, default: tuple[str, ...] = ()) -> list[Any]:
    """Parameters of which only some are in the default suite."""
    return [pytest.param(name, marks=() if name in default else pytest.mark.long) for name in names]


def all_outcomes(ranks: Ranks, who: Any) -> dict[int, Outcome]:
    return {rank: ranks.outcome(rank, PATIENCE_S) for rank in who}


# ---- A bad network: everything must be summed ----


UNHARMED = Rates()


@dataclass(frozen=True)
class Network:
    up: Rates = UNHARMED
    down: Rates = UNHARMED
    must_sum: bool = True


NETWORKS = {
    "loss-0.1-up": Network(up=Rates(loss=0.001)),
    "loss-0.1-down": Network(down=Rates(loss=0.001)),
    "loss-1-up": Network(up=Rates(loss=0.01)),
    "loss-1-down": Network(down=Rates(loss=0.01)),
    "loss-5-up": Network(up=Rates(loss=0.05), must_sum=False),
    "loss-5-down": Network(down=Rates(loss=0.05), must_sum=False),
    "duplication": Network(Rates(duplicate=0.05), Rates(duplicate=0.05)),
    "reordering": Network(Rates(reorder=0.02), Rates(reorder=0.02)),
    "all-at-once": Network(Rates(0.01, 0.02, 0.01), Rates(0.01, 0.02, 0.01)),
}


@pytest.mark.parametrize("network", default_or_long(*NETWORKS, default=("all-at-once",)))
def test_a_bad_network(rack: FaultyRack, wire: Injector, job: str, network: str) -> None:
    rates = NETWORKS[network]
    wire.rates(UP, rates.up)
    wire.rates(DOWN, rates.down)
    before = wire.counts()
    with Ranks(WORLD_SIZE, lambda rank: train(job, rank, ALL_KINDS), rack.appliance.address) as ranks:
        outcomes = {rank: ranks.outcome(rank, 480) for rank in range(WORLD_SIZE)}
        counts = wire.counts()
    print(counts)
    assert (
        counts.lost + counts.duplicated + counts.reordered
        > before.lost + before.duplicated + before.reordered
    )
    reports = judge(ALL_KINDS, outcomes, time.monotonic())
    if rates.must_sum:
        assert all(report.sums == len(ALL_KINDS) == len(report.outcomes) for report in reports.values())


# ---- A worker that dies or stops ----


def at_point(rack: FaultyRack, wire: Injector, job: str, point: str) -> Ranks:
    """Ranks of which the victim is just there: its next packets are held."""
    wire.trap(VICTIM, POINTS[point])
    ranks = Ranks(WORLD_SIZE, lambda rank: train(job, rank, ONE_CHUNK_EACH), rack.appliance.address)
    wire.wait_until_trapped(START_S)
    return ranks


@pytest.mark.parametrize("point", default_or_long(*POINTS, default=("after-first", "after-result")))
def test_a_killed_worker(rack: FaultyRack, wire: Injector, job: str, point: str) -> None:
    with at_point(rack, wire, job, point) as ranks:
        killed_s = time.monotonic()
        ranks.kill(VICTIM)
        wire.thaw(keep=False)
        reports = judge(ONE_CHUNK_EACH, all_outcomes(ranks, OTHERS), killed_s)
    for report in reports.values():
        assert report.outcomes[-1] == "error EpochEnded connection_lost"
        assert f"rank {VICTIM}" in report.message
        if point == "after-result":  # what one rank may have returned is never void
            assert report.sums >= ROUND
        elif point != "before-result":  # what one rank has not contributed whole cannot be complete
            assert report.sums < ROUND


@pytest.mark.long
def test_a_worker_killed_before_its_join(rack: FaultyRack, wire: Injector, job: str) -> None:
    def body(rank: int) -> Report:
        if rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(job, rank, ONE_CHUNK_EACH, JOIN_PATIENCE_S)

    with Ranks(WORLD_SIZE, body, rack.appliance.address) as ranks:
        killed_s = time.monotonic()
        reports = judge(ONE_CHUNK_EACH, all_outcomes(ranks, OTHERS), killed_s + JOIN_PATIENCE_S)
    assert {report.outcomes[0] for report in reports.values()} == {"error Timeout"}


@pytest.mark.parametrize("point", default_or_long(*POINTS))
def test_a_stopped_worker_that_goes_on(rack: FaultyRack, wire: Injector, job: str, point: str) -> None:
    """For longer than the progress clock's limit: its NIC answers, and its process is given time."""
    with at_point(rack, wire, job, point) as ranks:
        os.kill(ranks.pid(VICTIM), signal.SIGSTOP)
        wire.thaw(keep=True)
        time.sleep(STOP_S)
        os.kill(ranks.pid(VICTIM), signal.SIGCONT)
        reports = judge(ONE_CHUNK_EACH, all_outcomes(ranks, range(WORLD_SIZE)), time.monotonic())
    assert all(report.sums == len(ONE_CHUNK_EACH) for report in reports.values())


@pytest.mark.long
def test_a_worker_stopped_before_its_join(rack: FaultyRack, wire: Injector, job: str) -> None:
    def body(rank: int) -> Report:
        if rank == VICTIM:
            os.kill(os.getpid(), signal.SIGSTOP)
        return train(job, rank, ONE_CHUNK_EACH)

    with Ranks(WORLD_SIZE, body, rack.appliance.address) as ranks:
        time.sleep(STOP_S)
        os.kill(ranks.pid(VICTIM), signal.SIGCONT)
        reports = judge(ONE_CHUNK_EACH, all_outcomes(ranks, range(WORLD_SIZE)), time.monotonic())
    assert all(report.sums == len(ONE_CHUNK_EACH) for report in reports.values())


@pytest.mark.parametrize("point", default_or_long(*POINTS, default=("mid-message",)))
def test_a_stopped_worker_that_stays_so(rack: FaultyRack, wire: Injector, job: str, point: str) -> None:
    """It does not answer the heartbeat: dead to the others. When it wakes up it must find that out by itself."""
    with at_point(rack, wire, job, point) as ranks:
        os.kill(ranks.pid(VICTIM), signal.SIGSTOP)
        dead_s = time.monotonic() + HEARTBEAT_S
        wire.thaw(keep=True)
        outcomes = all_outcomes(ranks, OTHERS)
        reports = judge(ONE_CHUNK_EACH, outcomes, dead_s)
        woken_s = time.monotonic()
        os.kill(ranks.pid(VICTIM), signal.SIGCONT)
        outcomes |= all_outcomes(ranks, [VICTIM])
        judge(ONE_CHUNK_EACH, outcomes, woken_s, cut_off=frozenset([VICTIM]))
    for report in reports.values():
        assert report.outcomes[-1] == "error EpochEnded connection_lost"
        assert report.sums >= ROUND  # the victim's NIC has finished what was posted


# ---- The appliance and the network ----


def test_an_appliance_that_is_killed(rack: FaultyRack, wire: Injector, job: str) -> None:
    with at_point(rack, wire, job, "mid-message") as ranks:
        rack.appliance.kill()
        killed_s = time.monotonic()
        wire.thaw(keep=True)
        everybody = frozenset(range(WORLD_SIZE))
        reports = judge(ONE_CHUNK_EACH, all_outcomes(ranks, everybody), killed_s, cut_off=everybody)
    assert {report.outcomes[-1] for report in reports.values()} == {"error ApplianceUnreachable"}


def set_down(rank: int, down: bool) -> None:
    """A network interface that goes down forgets its routes and its link-local address: it gets fabric.sh's again."""
    device, table = f"w{rank}", str(100 + rank)
    subprocess.run(["ip", "link", "set", device, "down" if down else "up"], check=True)
    if not down:
        local = [f"fe80::{10 + rank:x}/64", "dev", device, "nodad"]
        subprocess.run(["ip", "-6", "addr", "replace", *local], check=True)
        for prefix, source in (
            ("10.77.0.0/24", f"10.77.0.{10 + rank}"),
            ("fd00:77::/64", f"fd00:77::{10 + rank:x}"),
        ):
            route = [prefix, "dev", device, "src", source, "table", table]
            subprocess.run(["ip", "route", "replace", *route], check=True)


@pytest.mark.parametrize("comes_back", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_network_interface_that_goes_down(
    rack: FaultyRack, wire: Injector, job: str, comes_back: bool
) -> None:
    victim = frozenset([VICTIM])
    with at_point(rack, wire, job, "mid-message") as ranks:
        set_down(VICTIM, True)
        down_s = time.monotonic()
        try:
            wire.thaw(keep=True)
            if comes_back:
                time.sleep(PROGRESS_S / 2)
                set_down(VICTIM, False)
            outcomes = all_outcomes(ranks, range(WORLD_SIZE))
        finally:
            set_down(VICTIM, False)
        reports = judge(ONE_CHUNK_EACH, outcomes, down_s, cut_off=frozenset() if comes_back else victim)
    everything = len(ONE_CHUNK_EACH)
    assert all((report.sums == everything) is comes_back for report in reports.values())


def test_a_worker_that_is_cut_off(rack: FaultyRack, wire: Injector, job: str) -> None:
    """From the data network and from the control connection at once: nobody can tell it."""
    port = multiprocessing.get_context("fork").Value("i", 0)

    def note_port(session: pascaline.Session) -> None:
        port.value = socket.socket(fileno=os.dup(session._control.fileno())).getsockname()[1]

    def body(rank: int) -> Report:
        return train(job, rank, ONE_CHUNK_EACH, joined=note_port if rank == VICTIM else lambda _: None)

    wire.trap(VICTIM, POINTS["mid-message"])
    with Ranks(WORLD_SIZE, body, rack.appliance.address) as ranks, contextlib.ExitStack() as undo:
        wire.wait_until_trapped(START_S)
        for direction in (UP, DOWN):
            wire.swallow(direction, {VICTIM})
        for end in ("sport", "dport"):
            rule = ["blackhole", "pref", "50", "ipproto", "tcp", end, str(port.value)]
            subprocess.run(["ip", "rule", "add", *rule], check=True)
            undo.callback(subprocess.run, ["ip", "rule", "del", *rule], check=True)
        cut_s = time.monotonic()
        wire.thaw(keep=False)
        outcomes = all_outcomes(ranks, range(WORLD_SIZE))
        reports = judge(ONE_CHUNK_EACH, outcomes, cut_s, cut_off=frozenset([VICTIM]))
    assert reports[VICTIM].outcomes[-1] == "error ApplianceUnreachable"
    assert all(report.outcomes[-1].startswith("error EpochEnded") for report in (reports[r] for r in OTHERS))


# ---- Packet numbers ----


class ChosenPsn:
    """Instead of the client's `secrets`."""

    def __init__(self, psn: int) -> None:
        self.psn = psn

    def randbits(self, bits: int) -> int:
        return self.psn


def check_start(session: pascaline.Session, psn: int) -> None:
    assert [pool.start_psn for pool in session._progress._link.pools] == [psn, psn]


def test_packet_numbers_that_wrap(
    rack: FaultyRack, wire: Injector, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers' wrap, behind the probe or within a message, while packets get lost. The appliance's start from its
    own CSPRNG and a whole turn is 64 GiB of results: their wrap is the protocol tests' and the simulation's.
    """
    starts = [0xFFFFFF, 0xFFFFF8, 0xFFFFE4]

    def body(rank: int) -> Report:
        import pascaline.link.verbs.pool as pool

        monkeypatch.setattr(pool, "secrets", ChosenPsn(starts[rank]))
        return train(job, rank, ALL_KINDS, joined=lambda session: check_start(session, starts[rank]))

    wire.rates(UP, Rates(loss=0.01))
    wire.rates(DOWN, Rates(loss=0.01))
    with Ranks(WORLD_SIZE, body, rack.appliance.address) as ranks:
        reports = judge(ALL_KINDS, all_outcomes(ranks, range(WORLD_SIZE)), time.monotonic())
    assert all(report.sums == len(ALL_KINDS) == len(report.outcomes) for report in reports.values())
