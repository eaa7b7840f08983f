"""What goes wrong ends in one sentence on every rank, in time, and names both values or who is missing."""

import multiprocessing
import os
import re
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import pascaline
from tests.softroce.appliance import Appliance
from tests.softroce.bench import PLACE_VARIABLE
from tests.softroce.ranks import Ranks

DEADLINE_S = 30.0 if os.environ.get(PLACE_VARIABLE) == "rxe-vm" else 5.0


def test_mismatched_world_sizes_are_refused_with_both(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> None:
        pascaline.Session(job=job, world_size=2 + rank).close()

    with Ranks(2, body, appliance.address) as ranks:
        outcomes = ranks.outcomes(DEADLINE_S)
    for outcome in outcomes:
        assert outcome.error == "JoinRefused"
        assert set(re.findall(r"says (?:world size )?(\d)", outcome.message)) == {"2", "3"}, outcome.message


def test_mismatched_plans_are_refused_with_both(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> None:
        pascaline.Session(job=job, plan=f"plan-of-{rank}").close()

    with Ranks(2, body, appliance.address) as ranks:
        outcomes = ranks.outcomes(DEADLINE_S)
    for outcome in outcomes:
        assert outcome.error == "JoinRefused"
        assert "plan-of-0" in outcome.message and "plan-of-1" in outcome.message


def test_different_tensors_end_the_epoch_on_all_ranks(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> None:
        with pascaline.Session(job=job) as session:
            session.all_reduce(np.ones(1000 + rank, np.float32))

    with Ranks(2, body, appliance.address) as ranks:
        for outcome in ranks.outcomes(DEADLINE_S):
            assert outcome.error == "EpochEnded"
            assert "4000" in outcome.message and "4004" in outcome.message


def test_an_unreachable_appliance_is_named() -> None:
    def body(rank: int) -> None:
        pascaline.Session(job="nowhere", appliance="127.0.0.1:1")

    began = time.monotonic()
    with Ranks(1, body, "") as ranks:
        (outcome,) = ranks.outcomes(DEADLINE_S)
    assert outcome.error == "ApplianceUnreachable" and "127.0.0.1:1" in outcome.message
    assert time.monotonic() - began < DEADLINE_S


def test_a_missing_device_is_named_with_those_that_are_there(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> None:
        pascaline.Session(job=job, device="rxe99")

    with Ranks(1, body, appliance.address) as ranks:
        (outcome,) = ranks.outcomes(DEADLINE_S)
    assert outcome.error == "LocalSetupError" and "rxe99" in outcome.message and "rxe0" in outcome.message


def test_a_time_out_names_the_rank_that_does_not_come(appliance: Appliance, job: str) -> None:
    over = multiprocessing.get_context("fork").Event()

    def body(rank: int) -> Any:
        with pascaline.Session(job=job, timeout_s=6.0) as session:
            if rank == 1:
                over.wait(60)
                session.close()
                return None
            try:
                session.all_reduce(np.ones(10, np.float32))
            except pascaline.Timeout as error:
                over.set()
                session.close()
                return error.ranks, str(error)
        return "no time-out"

    with Ranks(2, body, appliance.address) as ranks:
        (missing, message), _ = ranks.results()
    assert missing == (1,)
    assert "rank 1" in message


def test_a_killed_rank_is_an_error_on_the_others(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> None:
        with pascaline.Session(job=job) as session:
            session.all_reduce(np.ones(10, np.float32))
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            session.all_reduce(np.ones(10, np.float32))

    with Ranks(2, body, appliance.address) as ranks:
        survivor, killed = ranks.outcomes(DEADLINE_S)
    assert killed.error == "Died"
    assert survivor.error == "EpochEnded" and "rank 1" in survivor.message


def test_python_runs_on_and_ctrl_c_ends_a_wait_for_a_missing_rank(appliance: Appliance, job: str) -> None:
    over = multiprocessing.get_context("fork").Event()

    def body(rank: int) -> Any:
        if rank == 1:
            with pascaline.Session(job=job) as session:
                over.wait(60)
                session.close()
            return None
        ticks: list[float] = []
        session = pascaline.Session(job=job)
        threading.Thread(target=_tick, args=(ticks, 2.0), daemon=True).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt), session:
            session.all_reduce(np.ones(10, np.float32))
        waited_s = time.monotonic() - began
        over.set()
        return len(ticks), waited_s

    with Ranks(2, body, appliance.address) as ranks:
        (ticks, waited_s), _ = ranks.results()
    assert ticks > 20, "another thread did not run while a round waited"
    assert 2.0 <= waited_s < 4.0, "Ctrl-C did not end the wait within 2 s"


def _tick(ticks: list[float], seconds: float) -> None:
    """Count hundredths of a second, then press Ctrl-C."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ticks.append(time.monotonic())
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
