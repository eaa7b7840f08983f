"""Faults in the middle of a job: every rank that is left has an error that names the cause, in time.

What a Session itself refuses, and how it waits, is in test_session_features.py.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import pascaline
from tests.softroce.appliance import Appliance
from tests.softroce.ranks import Ranks

SLACK_S = 10.0


@contextmanager
def in_time() -> Iterator[None]:
    """However it ends, it does so by the appliance's deadline."""
    began = time.monotonic()
    try:
        yield
    finally:
        assert time.monotonic() - began < Appliance.deadline_s + SLACK_S


def test_different_tensors_end_the_epoch_on_all_ranks(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> None:
        with pascaline.Session(job=job) as session, in_time():
            session.all_reduce(np.ones(1000 + rank, np.float32))

    with Ranks(2, body, appliance.address) as ranks:
        for outcome in ranks.outcomes():
            assert outcome.error == "EpochEnded", outcome
            assert "4000" in outcome.message and "4004" in outcome.message


def test_a_killed_rank_is_an_error_on_the_others(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> None:
        with pascaline.Session(job=job) as session:
            session.all_reduce(np.ones(10, np.float32))
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            with in_time():
                session.all_reduce(np.ones(10, np.float32))

    with Ranks(2, body, appliance.address) as ranks:
        survivor, killed = ranks.outcomes()
    assert killed.error == "Died"
    assert survivor.error == "EpochEnded" and "rank 1" in survivor.message, survivor
