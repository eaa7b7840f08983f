"""Who a worker is: arguments, then torchrun's environment; what is missing or impossible is named."""

from __future__ import annotations

import pytest

from pascaline.errors import ConfigurationError
from pascaline.session.identity import Identity, resolve

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "bert large/7",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "PASCALINE_APPLIANCE": "rack7-sum",
    "PASCALINE_DEVICE": "mlx5_0:1",
}
NOTHING = dict.fromkeys(("rank", "world_size", "appliance", "device", "job", "restart_count"))


def resolved(env: dict[str, str], **arguments: object) -> Identity:
    return resolve(**{**NOTHING, **arguments}, env=env)  # type: ignore[arg-type]


def test_torchrun_s_environment_is_enough() -> None:
    assert resolved(TORCHRUN) == Identity("bert-large/7", 1, 4, 2, "rack7-sum", 4790, "mlx5_0:1")


def test_arguments_win_over_the_environment() -> None:
    found = resolved(
        TORCHRUN, rank=0, world_size=2, appliance="10.0.0.9:4000", device="rxe0", job="j", restart_count=0
    )
    assert found == Identity("j", 0, 2, 0, "10.0.0.9", 4000, "rxe0")


def test_runs_without_an_id_are_told_apart_by_their_rendezvous() -> None:
    env = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node3", "MASTER_PORT": "29500"}
    assert resolved(env).job == "node3:29500"


@pytest.mark.parametrize(
    "address, host, port",
    [("a", "a", 4790), ("a:1", "a", 1), ("[fd00::1]:7", "fd00::1", 7), ("[fd00::1]", "fd00::1", 4790)],
)
def test_addresses(address: str, host: str, port: int) -> None:
    found = resolved(TORCHRUN, appliance=address)
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize(
    "changes, arguments, words",
    [
        ({"RANK": None}, {}, r"rank is unknown: pass rank=\.\.\., or start the script by torchrun \(RANK\)"),
        ({"WORLD_SIZE": None}, {}, r"world_size is unknown.*WORLD_SIZE"),
        ({"RANK": "one"}, {}, "RANK is 'one'"),
        ({"RANK": "4"}, {}, "rank is 4: with world_size 4 it is 0 to 3"),
        ({}, {"rank": -1}, "rank is -1"),
        ({}, {"world_size": 65}, "world_size is 65.*1 to 64"),
        ({}, {"world_size": 0}, "world_size is 0"),
        ({"PASCALINE_APPLIANCE": None}, {}, "pass appliance='host:port' or set PASCALINE_APPLIANCE"),
        ({}, {"appliance": "a:b"}, "'a:b' is not host:port"),
        ({}, {"appliance": "a:70000"}, "'a:70000' is not host:port"),
        ({}, {"appliance": "fd00::1"}, "'fd00::1' is not host:port"),
    ],
)
def test_what_is_missing_or_impossible_is_named(
    changes: dict[str, str | None], arguments: dict[str, object], words: str
) -> None:
    env = {name: value for name, value in {**TORCHRUN, **changes}.items() if value is not None}
    with pytest.raises(ConfigurationError, match=words):
        resolved(env, **arguments)
