"""Epochs over real RoCE: a path that fails and comes back is noticed by nobody; a rank that dies costs no result that
is complete; an appliance that dies is an error in time.

The paths fail in the switch: a bridge port drops everything, or one direction only (a locked port forgets who may
send, a port without flooding where to send). The appliance is this file's own, with less patience than the shared one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pascaline
from tests.softroce.appliance import Appliance
from tests.softroce.ranks import Ranks

CHUNK_BYTES, WINDOW = 16384, 4
ELEMS = 5 * CHUNK_BYTES // 4 + 7  # six chunks: more than the window
CALLS = 40
PATIENCE_S = 180.0  # reached only in failure
SLACK_S = 8.0


class Impatient(Appliance):
    """A second appliance on the same switch."""

    address = "127.0.0.1:4791"
    data_address = "10.77.0.2"
    interface = "app1"
    progress_s, deadline_s = 4.0, 16.0
    retransmit_exponent = 16  # seven tries in 1.9 s


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def bridge(*words: str) -> None:
    subprocess.run(["bridge", *words], check=True)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Impatient]:
    """It runs until somebody kills it."""
    ours, theirs = Impatient.interface, "bapp1"
    ip("link", "add", ours, "mtu", "9000", "type", "veth", "peer", "name", theirs, "mtu", "9000")
    for interface in (ours, theirs):
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")
    ip("link", "set", theirs, "master", "br0", "up")
    ip("link", "set", ours, "up")
    appliance = Impatient(tmp_path_factory.mktemp("impatient"))
    yield appliance
    appliance.kill()
    ip("link", "del", ours)


class Switch:
    """What the switch does to worker k's packets."""

    def __init__(self, worker: int) -> None:
        self.port, self.worker = f"b{worker}", f"w{worker}"

    def _mac(self) -> str:
        return Path(f"/sys/class/net/{self.worker}/address").read_text().strip()

    def both(self, drop: bool) -> None:
        bridge("link", "set", "dev", self.port, "state", "0" if drop else "3")

    def towards(self, drop: bool) -> None:
        state = "off" if drop else "on"
        bridge("link", "set", "dev", self.port, "learning", state, "flood", state)
        if drop:
            subprocess.run(["bridge", "fdb", "del", self._mac(), "dev", self.port, "master"], check=False)

    def away(self, drop: bool) -> None:
        bridge("link", "set", "dev", self.port, "learning", "off" if drop else "on")
        bridge("link", "set", "dev", self.port, "locked", "on" if drop else "off")
        if drop:
            subprocess.run(["bridge", "fdb", "del", self._mac(), "dev", self.port, "master"], check=False)


def tensor(rank: int, call: int) -> Any:
    return np.arange(ELEMS, dtype=np.int32) * (call + 1) + rank


def expected(world_size: int, call: int) -> Any:
    return np.arange(ELEMS, dtype=np.int32) * (call + 1) * world_size + sum(range(world_size))


def run(
    job: str, rank: int, world_size: int, going: Any, hook: Callable[[int], None] = lambda _: None
) -> Any:
    """CALLS sums with three of them pending; returns wrong sums, and how often the connections were made anew."""
    wrong = 0
    with pascaline.Session(job=job, chunk_bytes=CHUNK_BYTES, window=WINDOW) as session:
        began = session.stats()["epoch"]
        pending: list[tuple[int, Any, Any]] = []
        for call in range(CALLS):
            values = tensor(rank, call)
            pending.append((call, values, session.all_reduce(values, async_op=True)))
            if len(pending) > 3:
                number, values, work = pending.pop(0)
                work.wait(PATIENCE_S)
                wrong += not np.array_equal(values, expected(world_size, number))
            if call == 8:
                going.set()
            hook(call)
        for number, values, work in pending:
            work.wait(PATIENCE_S)
            wrong += not np.array_equal(values, expected(world_size, number))
        return wrong, session.stats()["epoch"] - began


@pytest.mark.parametrize("direction", ["both", "towards", "away"])
def test_a_path_that_comes_back_costs_nothing_but_time(
    impatient: Impatient, job: str, direction: str
) -> None:
    going = multiprocessing.get_context("fork").Event()
    drop = getattr(Switch(1), direction)
    halts = impatient.log().count("has halted")
    with Ranks(3, lambda rank: run(job, rank, 3, going), impatient.address) as ranks:
        assert going.wait(PATIENCE_S)
        try:
            drop(True)
            deadline = time.monotonic() + PATIENCE_S
            while impatient.log().count("has halted") == halts:
                assert time.monotonic() < deadline, impatient.log()
                time.sleep(0.1)
            time.sleep(1)  # some tries to connect again are in vain
        finally:
            drop(False)
        results = ranks.results()
    assert [wrong for wrong, _ in results] == [0, 0, 0]
    epochs = {epochs for _, epochs in results}
    assert len(epochs) == 1 and epochs.pop() >= 1, results


def test_a_path_that_stays_down_is_one_error_everywhere(impatient: Impatient, job: str) -> None:
    going = multiprocessing.get_context("fork").Event()

    def body(rank: int) -> Any:
        began = time.monotonic()

        def mark(call: int) -> None:
            nonlocal began
            began = time.monotonic()

        try:
            return run(job, rank, 3, going, mark)
        except pascaline.EpochEnded as error:
            return error.fault, str(error), time.monotonic() - began

    switch = Switch(1)
    with Ranks(3, body, impatient.address) as ranks:
        assert going.wait(PATIENCE_S)
        try:
            switch.both(True)
            results = ranks.results()
        finally:
            switch.both(False)
    assert len({message for _, message, _ in results}) == 1, results
    assert "rank 1" in results[0][1]
    assert all(waited_s < Impatient.deadline_s + SLACK_S for _, _, waited_s in results), results


def test_a_killed_rank_costs_no_complete_round(impatient: Impatient, job: str) -> None:
    def body(rank: int) -> Any:
        session = pascaline.Session(job=job, chunk_bytes=CHUNK_BYTES, window=WINDOW)
        values = [tensor(rank, call) for call in range(CALLS)]
        works = [session.all_reduce(v, async_op=True) for v in values]
        if rank == 2:
            works[11].wait(PATIENCE_S)
            os.kill(os.getpid(), signal.SIGKILL)
        whole = []
        for call, work in enumerate(works):
            try:
                work.wait(PATIENCE_S)
            except pascaline.EpochEnded as error:
                return whole, error.fault, error.rank, session.stats()["rounds"]
            whole.append(bool(np.array_equal(values[call], expected(3, call))))
        return whole, "none", -1, 0

    with Ranks(3, body, impatient.address) as ranks:
        *survivors, killed = ranks.outcomes()
    assert killed.error == "Died"
    assert not any(outcome.error for outcome in survivors), survivors
    first, second = (outcome.value for outcome in survivors)
    assert first == second  # the same rounds, the same error
    whole, fault, rank, _ = first
    assert all(whole) and len(whole) >= 12
    assert (fault, rank) == ("connection_lost", 2)


def test_a_stopped_rank_is_waited_for(impatient: Impatient, job: str) -> None:
    going = multiprocessing.get_context("fork").Event()
    with Ranks(2, lambda rank: run(job, rank, 2, going), impatient.address) as ranks:
        assert going.wait(PATIENCE_S)
        os.kill(ranks.pid(1), signal.SIGSTOP)
        time.sleep(Impatient.progress_s + 3)
        os.kill(ranks.pid(1), signal.SIGCONT)
        results = ranks.results()
    assert results == [(0, 0), (0, 0)]


def test_an_appliance_that_dies_is_an_error_in_time(impatient: Impatient, job: str) -> None:
    """The last of this file, since it takes the appliance with it."""
    going = multiprocessing.get_context("fork").Event()

    def body(rank: int) -> Any:
        began = time.monotonic()
        try:
            with pascaline.Session(job=job, chunk_bytes=CHUNK_BYTES, window=WINDOW) as session:
                while True:
                    began = time.monotonic()
                    session.all_reduce(tensor(rank, 0))
                    going.set()
        except pascaline.ApplianceUnreachable as error:
            return str(error), time.monotonic() - began

    with Ranks(2, body, impatient.address) as ranks:
        assert going.wait(PATIENCE_S)
        time.sleep(1)
        impatient.kill()
        results = ranks.results()
    for message, waited_s in results:
        assert impatient.address in message
        assert waited_s < Impatient.deadline_s + SLACK_S
