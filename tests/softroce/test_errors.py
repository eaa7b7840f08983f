"""Faults in the middle of a job: every rank that is left has an error that names the cause, in time.

What a Session itself refuses, and how it waits, is in test_session_features.py.
"""

import os
import signal

import numpy as np

import pascaline
from tests.softroce.appliance import Appliance
from tests.softroce.bench import PLACE_VARIABLE
from tests.softroce.ranks import Ranks

DEADLINE_S = 30.0 if os.environ.get(PLACE_VARIABLE) == "rxe-vm" else 5.0


def test_different_tensors_end_the_epoch_on_all_ranks(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> None:
        with pascaline.Session(job=job) as session:
            session.all_reduce(np.ones(1000 + rank, np.float32))

    with Ranks(2, body, appliance.address) as ranks:
        for outcome in ranks.outcomes(DEADLINE_S):
            assert outcome.error == "EpochEnded"
            assert "4000" in outcome.message and "4004" in outcome.message


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
