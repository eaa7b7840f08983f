"""Window and chunk of a job that asks for nothing, by what caches there are; and how an appliance says so."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

import pytest

from pascaline_appliance import cli, sizes
from pascaline_appliance.admission import plan_pools
from pascaline_appliance.config import Config, Limits
from pascaline_appliance.contract.control import CONTROL_VERSION, Join
from pascaline_appliance.dataplane import WIRE_VERSION
from pascaline_appliance.sizes import Sizes
from tests.appliance.conftest import Start
from tests.appliance.rack import Rack

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("limits", "l2", "expected"),
    [
        ({}, [MIB], Sizes(4, 64 * KIB, "l2", MIB)),
        ({}, [2 * MIB, MIB, None], Sizes(4, 64 * KIB, "l2", MIB)),
        ({}, [2 * MIB], Sizes(4, 128 * KIB, "l2", 2 * MIB)),
        ({}, [MIB + MIB // 4], Sizes(4, 64 * KIB, "l2", MIB + MIB // 4)),
        ({}, [256 * KIB], Sizes(4, 16 * KIB, "l2", 256 * KIB)),
        ({}, [128 * KIB], Sizes(4, 16 * KIB, "l2", 128 * KIB)),
        ({}, [16 * MIB], Sizes(4, 128 * KIB, "l2", 16 * MIB)),
        ({}, [None, None], Sizes(4, 64 * KIB, "assumed_l2", MIB)),
        ({"window": 8}, [MIB], Sizes(8, 32 * KIB, "l2", MIB)),
        ({"chunk_bytes": 64 * KIB}, [2 * MIB], Sizes(4, 64 * KIB, "l2", 2 * MIB)),
        ({"chunk_bytes": 100_000}, [MIB], Sizes(2, 100_000, "l2", MIB)),
        ({"chunk_bytes": MIB}, [MIB], Sizes(2, MIB, "l2", MIB)),
        ({"window": 1, "chunk_bytes": MIB}, [MIB], Sizes(1, MIB, "limits")),
    ],
)
def test_slots_lie_in_half_of_the_smallest_l2(
    limits: dict[str, int], l2: list[int | None], expected: Sizes
) -> None:
    assert sizes.of(Limits(**limits), l2) == expected  # type: ignore[arg-type]


def test_a_job_gets_what_the_caches_say_and_less_where_a_budget_does() -> None:
    config = Config.model_validate(
        {"data": {"address": "10.0.0.1/24"}, "port": [{"device": "--vdev=net_null0"}]}
    )
    join = Join(
        control_version=CONTROL_VERSION,
        wire_version=WIRE_VERSION,
        job="job",
        rank=0,
        world_size=2,
        ops=["sum_i32"],
        plan="",
        restart_count=0,
        mtu=4096,
        address="10.0.0.2",
    )
    for l2, ring, expected in ((2 * MIB, 1024, 128 * KIB), (2 * MIB, 256, 64 * KIB), (MIB, 1024, 64 * KIB)):
        data, small = plan_pools(config, sizes.of(config.limits, [l2]), [ring], [], [join], 4096)
        assert (data.window, data.chunk_bytes, small.chunk_bytes) == (4, expected, 4096)


def test_status_says_what_a_job_gets_and_why(rack: Rack, start: Start) -> None:
    appliance = start(limits={"slot_bytes": 8 << 20})
    appliance.ready()
    said = appliance.status()["data_pool"]
    assert said == {
        "window": 4,
        "chunk_bytes": 65536,
        "source": "limits",
        "l2_bytes": None,
        "slot_bytes": 524288,
    }


@pytest.mark.parametrize(
    ("source", "l2", "why"),
    [
        ("limits", None, "as [limits] says"),
        ("l2", 2 * MIB, "by half of an L2 of 2097152"),
        ("assumed_l2", MIB, "by half of an L2 of 1048576, assumed since no core says what it has"),
    ],
)
def test_people_are_told_why(source: Literal["limits", "l2", "assumed_l2"], l2: int | None, why: str) -> None:
    job = Sizes(4, 64 * KIB, source, l2)
    line = cli.data_pool_line({**asdict(job), "slot_bytes": job.slot_bytes})
    assert line == (
        "chunks  of 65536 bytes, window 4, for a job that asks for nothing (524288 bytes of slots on each lane), "
        + why
    )
