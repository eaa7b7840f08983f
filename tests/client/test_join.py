"""The client's side of the join against a scripted peer on loopback: every way in which it can end before an offer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from websockets.sync.server import ServerConnection, serve

from pascaline.contract import control as contract
from pascaline.contract import wire
from pascaline.errors import (
    ApplianceUnreachable,
    ContractMismatch,
    EpochEnded,
    JoinRefused,
    LocalSetupError,
    PascalineError,
    Timeout,
)
from pascaline.link.verbs.device import Port
from pascaline.session.control import EMULATED_HANDSHAKE_S, Control
from pascaline.session.identity import Identity
from pascaline.session.join import Joining
from pascaline.session.membership import Wishes

from .rack import PATIENCE_S

PORT = Port(None, "rxe0", 1, 3, "10.0.0.7", 1024, True, gid_index6=5, address6="fd00::7")
CLASSES: list[contract.PoolClass] = ["data", "small"]
OFFER = contract.Offer(
    epoch=1,
    mtu=1024,
    traffic_class=106,
    pools=[
        contract.PoolOffer(
            pool=index,
            pool_class=pool_class,
            lane=0,
            address="10.0.0.1",
            window=4,
            chunk_bytes=65536,
            qpn=1,
            start_psn=2,
            rkey=3,
            va_base="0x4",
        )
        for index, pool_class in enumerate(CLASSES)
    ],
    straggler_timeout_s=60,
    deadline_s=5,
)


TABLE = (0, 1, 2, 2)
LOOKED_UP: dict[contract.Op, str] = {"lut2_u8": contract.table_hash(TABLE)}


def wishes(timeout_s: float, look_up: bool = False) -> Wishes:
    ops, tables = ("sum_f32", "sum_i32", "max_f32"), {}
    if look_up:
        ops, tables = (*ops, "lut2_u8"), {"lut2_u8": TABLE}  # type: ignore[assignment]
    return Wishes("the plan", 65536, 4, None, timeout_s, ops, tables)


@contextmanager
def peer(script: Callable[[ServerConnection], None]) -> Iterator[int]:
    """A server that runs `script` for each connection; yields its port."""
    with serve(script, "127.0.0.1", 0, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()


def offered(port: int, timeout_s: float = PATIENCE_S, look_up: bool = False) -> contract.Offer:
    control = Control("127.0.0.1", port, PATIENCE_S)
    identity = Identity("job", 1, 2, 0, "127.0.0.1", port, None)
    try:
        return Joining(control, identity, wishes(timeout_s, look_up)).offer(PORT)
    finally:
        control.close()


def answering(*messages: object) -> Callable[[ServerConnection], None]:
    def script(connection: ServerConnection) -> None:
        connection.recv()
        for message in messages:
            connection.send(message if isinstance(message, str) else message.model_dump_json())  # type: ignore[attr-defined]

    return script


def refused(reason: str, message: str) -> contract.Refused:
    return contract.Refused.model_validate({"reason": reason, "message": message})


def test_a_join_says_who_and_what_and_gets_its_offer() -> None:
    heard: list[contract.Join | contract.Connect | contract.Leave] = []

    def script(connection: ServerConnection) -> None:
        heard.append(contract.from_worker.validate_json(connection.recv()))
        event = contract.Event(kind="rank_joined", ranks=[0], message="rank 0 has joined")
        connection.send(event.model_dump_json())
        connection.send(OFFER.model_dump_json())

    with peer(script) as port:
        assert offered(port) == OFFER
    join = heard[0]
    assert isinstance(join, contract.Join)
    assert (join.job, join.rank, join.world_size, join.plan) == ("job", 1, 2, "the plan")
    assert (join.wire_version, join.control_version) == (wire.VERSION, contract.CONTROL_VERSION)
    assert (join.ops, join.mtu, join.address) == (["sum_f32", "sum_i32", "max_f32"], 1024, "10.0.0.7")
    assert (join.chunk_bytes, join.window, join.address6) == (65536, 4, "fd00::7")


@pytest.mark.parametrize(
    "message, error, words",
    [
        (refused("plan", "rank 0 has plan 'a', rank 1 has 'b'"), JoinRefused, "'a', rank 1 has 'b'"),
        (refused("world_size", "2 against 3"), JoinRefused, "2 against 3"),
        (refused("version", "client 1, appliance 2"), ContractMismatch, "client 1, appliance 2"),
        (
            contract.Ended(fault="stopping", message="is being stopped", rank=None),
            EpochEnded,
            "being stopped",
        ),
        (
            OFFER.model_copy(update={"mtu": 4096}),
            LocalSetupError,
            "MTU of 4096 bytes, rxe0 can 1024.*at least 4176",
        ),
        (
            OFFER.model_copy(update={"pools": OFFER.pools[:1]}),
            ContractMismatch,
            r"offers pools \['data'\] .*, a session needs data pools of one size and one pool for small",
        ),
        (
            OFFER.model_copy(
                update={"pools": [*OFFER.pools, OFFER.pools[0].model_copy(update={"pool": 2, "window": 8})]}
            ),
            ContractMismatch,
            r"data pools of \(window, chunk\) \[\(4, 65536\), \(8, 65536\)\], a session needs",
        ),
        (
            OFFER.model_copy(
                update={
                    "mtu": 4096,
                    "pools": [pool.model_copy(update={"address": "fd00::1"}) for pool in OFFER.pools],
                }
            ),
            LocalSetupError,
            "MTU of 4096 bytes, rxe0 can 1024.*at least 4180",
        ),
        ('{"type": "hello"}', ContractMismatch, "does not know"),
        ("not json", ContractMismatch, "does not know"),
    ],
)
def test_how_a_join_ends_instead(message: object, error: type[PascalineError], words: str) -> None:
    with peer(answering(message)) as port, pytest.raises(error, match=words):
        offered(port)


def test_a_join_brings_its_table_and_wants_its_hash_back() -> None:
    heard: list[object] = []

    def script(connection: ServerConnection) -> None:
        heard.append(contract.from_worker.validate_json(connection.recv()))
        connection.send(OFFER.model_copy(update={"tables": LOOKED_UP}).model_dump_json())

    with peer(script) as port:
        assert offered(port, look_up=True).tables == LOOKED_UP
    join = heard[0]
    assert isinstance(join, contract.Join)
    assert join.tables == {"lut2_u8": list(TABLE)}
    assert join.ops[-1] == "lut2_u8"


@pytest.mark.parametrize(
    "echo", [{}, {"lut2_u8": contract.table_hash((0, 1, 1, 2))}, {"lut4_u8": "0" * 64, **LOOKED_UP}]
)
def test_another_table_at_the_appliance_is_refused_by_both_hashes(echo: dict[str, str]) -> None:
    other = OFFER.model_copy(update={"tables": echo})
    ours = LOOKED_UP["lut2_u8"][:12]
    with (
        peer(answering(other)) as port,
        pytest.raises(
            ContractMismatch, match=f"looks up in tables .* and this worker means lut2_u8 {ours}: install"
        ),
    ):
        offered(port, look_up=True)


def test_a_queue_pair_s_gid_is_of_the_appliance_s_family() -> None:
    assert PORT.towards("10.0.0.1") == (3, "10.0.0.7")
    assert PORT.towards("fd00::1") == (5, "fd00::7")
    alone = Port(None, "rxe0", 1, 4, "fd00::7", 1024, True)
    assert alone.towards("fd00::1") == (4, "fd00::7")


def test_a_refusal_keeps_its_reason() -> None:
    with peer(answering(refused("world_size", "2 against 3"))) as port, pytest.raises(JoinRefused) as caught:
        offered(port)
    assert caught.value.reason == "world_size"


def test_hanging_up_is_told_from_silence() -> None:
    with (
        peer(lambda connection: None) as port,
        pytest.raises(ApplianceUnreachable, match="hung up during the join"),
    ):
        offered(port)


def test_a_join_that_lacks_ranks_times_out_with_the_last_word() -> None:
    def script(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(
            contract.Event(kind="waiting", ranks=[0], message="rank 0 is missing").model_dump_json()
        )
        connection.recv()

    began = time.monotonic()
    with (
        peer(script) as port,
        pytest.raises(Timeout, match=r"rank 1 of job 'job' has waited 2 s.*rank 0 is missing"),
    ):
        offered(port, timeout_s=2)
    assert 2 <= time.monotonic() - began < PATIENCE_S / 2


def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(
            ApplianceUnreachable, match=f"127.0.0.1:{port} does not answer.*PASCALINE_APPLIANCE"
        ):
            Control("127.0.0.1", port)


def test_somebody_listens_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began = time.monotonic()
        with pytest.raises(ApplianceUnreachable, match="does not answer"):
            Control("127.0.0.1", mute.getsockname()[1])
        assert time.monotonic() - began < EMULATED_HANDSHAKE_S


def test_an_unknown_host() -> None:
    with pytest.raises(ApplianceUnreachable, match=r"no-such-host\.invalid:4790 does not answer"):
        Control("no-such-host.invalid", 4790)


def test_an_ipv6_appliance_is_reached_and_named_in_brackets() -> None:
    with pytest.raises(ApplianceUnreachable, match=r"\[::1\]:1 does not answer"):
        Control("::1", 1)
