"""Joining and leaving: late ranks, many lives, and nothing left behind."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import pascaline
from tests.softroce.appliance import Appliance
from tests.softroce.ranks import Ranks

LIVES = 50


def test_a_rank_that_joins_late_is_waited_for(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> list[int]:
        tensor = np.full(5000, 1 + rank, np.int32)
        with pascaline.Session(job=job) as session:
            session.all_reduce(tensor)
        return [int(tensor.min()), int(tensor.max())]

    with Ranks(2, body, appliance.address, start_delays_s={1: 4.0}) as ranks:
        assert ranks.results() == [[3, 3], [3, 3]]


def test_fifty_lives_leave_nothing_behind(appliance: Appliance, job: str) -> None:
    """mbufs, slots, QPs, MRs and descriptors of workers and appliance return to their numbers after the first life."""

    def body(rank: int) -> list[dict[str, Any]]:
        return [_live_once(job, rank, life) for life in range(LIVES)]

    _settle(appliance, job + "-before")
    before = _appliance_resources(appliance)
    with Ranks(2, body, appliance.address) as ranks:
        lives = ranks.results(timeout_s=500)
    after = _appliance_resources(appliance)
    assert after == before
    assert after["slots"] == after["qps"] == 0
    for rank, resources in enumerate(lives):
        assert resources[-1] == resources[0], f"rank {rank}"
        assert resources[0]["mr"] == 0


def _live_once(job: str, rank: int, life: int) -> dict[str, Any]:
    tensor = np.full(3000, life + rank, np.int32)
    with pascaline.Session(job=job) as session:
        session.all_reduce(tensor)
    assert np.all(tensor == 2 * life + 1)
    return _worker_resources(f"rxe{rank}")


def _settle(appliance: Appliance, job: str) -> None:
    """One life first: what is made once and kept does not count."""

    def body(rank: int) -> None:
        _live_once(job, rank, 0)

    with Ranks(2, body, appliance.address) as ranks:
        ranks.results()


def _worker_resources(device: str) -> dict[str, Any]:
    """This process's descriptors and the kernel's count of verbs objects on the device."""
    shown = subprocess.run(["rdma", "-j", "resource"], check=True, capture_output=True, text=True).stdout
    ours = next(entry for entry in json.loads(shown) if entry["ifname"] == device)
    return {kind: ours[kind] for kind in ("qp", "mr", "cq", "pd")} | {"fds": _descriptors("self")}


def _appliance_resources(appliance: Appliance) -> dict[str, int]:
    status = appliance.status()
    usage: dict[str, int] = status["usage"]
    return usage | {"slots": status["lanes"][0]["slots"], "fds": _descriptors(appliance.pid)}


def _descriptors(process: int | str) -> int:
    return len(list(Path(f"/proc/{process}/fd").iterdir()))
