"""Who a worker is: arguments, then torchrun's environment; what is missing or impossible is named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import pascaline
from pascaline.errors import ConfigurationError, EpochEnded, PascalineError
from pascaline.session import fork
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


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost", "::1", None])
def test_a_rendezvous_on_loopback_is_told_apart_by_its_host(
    master: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"} | (
        {"MASTER_ADDR": master} if master else {}
    )
    names = set()
    for host in ("one", "two"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        names.add(resolved(env).job)
    assert names == {f"{master or 'localhost'}:29500@one", f"{master or 'localhost'}:29500@two"}


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
        ({}, {"job": "my job"}, "job is 'my job': it takes 1 to 90 letters"),
        ({}, {"job": ""}, "job is ''"),
        ({}, {"job": "j" * 91}, "1 to 90"),
        ({}, {"restart_count": -1}, "restart_count is -1"),
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


@pytest.mark.parametrize(
    "wish, words",
    [
        ({"plan": "p" * 129}, "plan has 129 characters"),
        ({"window": 0}, "window is 0: pass a positive number"),
        ({"chunk_bytes": 0}, "chunk_bytes is 0"),
    ],
)
def test_a_wish_that_the_contract_refuses_is_named_before_a_device_is_looked_for(
    wish: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        pascaline.Session(rank=0, world_size=1, appliance="127.0.0.1:1", **wish)  # type: ignore[arg-type]


def test_a_second_session_of_one_rank_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    first = pascaline.Session.__new__(pascaline.Session)
    first.job, first.rank = "j", 0
    first._progress = SimpleNamespace(error=None)  # type: ignore[assignment]
    monkeypatch.setattr(fork, "sessions", lambda: [first])
    with pytest.raises(ConfigurationError, match=r"joined job 'j' as rank 0 already.*session="):
        pascaline.Session(rank=0, world_size=1, appliance="127.0.0.1:1", job="j")
    first._progress.error = EpochEnded("gone", "local")
    with pytest.raises(PascalineError, match=r"^(?!.*already)"):
        pascaline.Session(rank=0, world_size=1, appliance="127.0.0.1:1", job="j")
