"""Messages that no client sends, by hypothesis, to the real process.

It answers with messages of the contract or hangs up with a reason, it never fails inside, and a sound worker that
follows is served.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from pascaline_appliance.contract import control as contract
from tests.appliance.job import at_rest, join
from tests.appliance.rack import CONTROL_PORT, PATIENCE_S, WORKER_IP, Appliance, Rack
from tests.appliance.worker import Wire

ANSWER_S = 0.05
"""For what the appliance has to say about one message; the answer to a sound one takes less."""
POLITE = {1000, 1003, 1006, 1007, 1008, 1009}
"""Close codes that say what the peer did. 1011 says that the appliance failed; 1006: cut without one."""

# ---- What is sent. ----

JOIN = {
    "type": "join",
    "control_version": contract.CONTROL_VERSION,
    "wire_version": 5,
    "job": "fuzz",
    "restart_count": 0,
    "rank": 0,
    "world_size": 1,
    "ops": ["sum_i32", "lut2_u8"],
    "tables": {"lut2_u8": [0, 1, 2, 2]},
    "plan": "",
    "mtu": 1024,
    "address": WORKER_IP,
    "host": "fuzz",
}
POOL = {"qpn": 17, "start_psn": 1, "result_rkey": 1, "result_va": "0x1000", "result_bytes": 1 << 23}
CONNECT = {"type": "connect", "pools": [{"pool": 0, **POOL}, {"pool": 1, **POOL}]}
LEAVE = {"type": "leave", "received": [0, 0]}

numbers = st.one_of(
    st.integers(-2, 70),
    st.sampled_from([2**24, 2**24 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64, 10**400, -(2**63)]),
    st.floats(allow_nan=False),
)
texts = st.one_of(
    st.text(max_size=200),
    st.sampled_from(
        ["", "0x", "0x0", "0x" + "f" * 16, "0x" + "f" * 17, WORKER_IP, "10.77.0.1", "0.0.0.0", "224.0.0.1"]
    ),
    st.sampled_from(
        ["255.255.255.255", "::1", "fe80::1%eth0", "::ffff:10.77.0.2", "fd00:77::2", "join", "max_f32"]
    ),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=12,
)


def mutated(message: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A message of the contract with some fields changed, missing or unknown."""
    changes = st.dictionaries(st.sampled_from(sorted(message)) | texts, values, max_size=3)
    missing = st.sets(st.sampled_from(sorted(message)), max_size=1)
    return st.builds(
        lambda changes, missing: {k: v for k, v in (message | changes).items() if k not in missing},
        changes,
        missing,
    )


def mutated_connect() -> st.SearchStrategy[dict[str, Any]]:
    pool = mutated({"pool": 0, **POOL})
    return st.builds(lambda pools: {"type": "connect", "pools": pools}, st.lists(pool, max_size=9))


def mutated_tables() -> st.SearchStrategy[dict[str, Any]]:
    entries = st.lists(st.integers(-1, 1 << 33) | st.integers(0, 255), max_size=300)
    names = st.sampled_from(["lut2_u8", "lut8_u16", "sum_i32"]) | texts
    return st.dictionaries(names, entries | values, max_size=3).map(lambda tables: JOIN | {"tables": tables})


deep = st.builds(
    lambda depth, bracket: bracket[0] * depth + bracket[1] * depth,
    st.sampled_from([10, 500, 5000, 30000]),
    st.sampled_from(["[]", ('{"type":', "}")]),
)
sound = st.sampled_from([JOIN, CONNECT, LEAVE]).map(json.dumps)
broken = st.one_of(
    mutated(JOIN).map(json.dumps),
    mutated_tables().map(json.dumps),
    mutated(CONNECT).map(json.dumps),
    mutated_connect().map(json.dumps),
    mutated(LEAVE).map(json.dumps),
    values.map(json.dumps),
    deep,
    st.text(max_size=300),
    st.binary(max_size=300),
    st.integers(0, 70000).map(lambda size: json.dumps(JOIN | {"plan": "x" * size})),
)
conversations = st.tuples(st.booleans(), st.lists(sound | broken, min_size=1, max_size=4)).map(
    lambda pair: [json.dumps(JOIN), *pair[1]] if pair[0] else pair[1]
)


# ---- What is seen. ----


def converse(connection: ClientConnection, messages: list[str | bytes]) -> None:
    """All that the appliance says is of the contract, and it gives a reason when it hangs up."""
    try:
        for message in messages:
            connection.send(message)
            try:
                while True:
                    contract.from_appliance.validate_json(connection.recv(ANSWER_S))
            except TimeoutError:
                pass
    except ConnectionClosed as closed:
        code = closed.rcvd.code if closed.rcvd else 1006
        assert code in POLITE, closed
        assert closed.rcvd is None or code == 1000 or closed.rcvd.reason or code == 1007, "no reason is given"


def explore(rack: Rack, examples: int, number: int | None) -> None:
    """So many conversations, each on a connection of its own: those of this number, or new ones."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(conversations)
    @example(["[" * 30000])
    @example([json.dumps(JOIN | {"\u0800" * 60: 1})])
    def one(messages: list[str | bytes]) -> None:
        connection = connect(
            f"ws://127.0.0.1:{CONTROL_PORT}",
            sock=rack.control_socket(),
            compression=None,
            max_size=None,
            open_timeout=PATIENCE_S,
            ping_timeout=PATIENCE_S,
        )
        with connection:
            converse(connection, messages)

    (one if number is None else seed(number)(one))()


@pytest.fixture
def unharmed(rack: Rack, appliance: Appliance, wire: Wire) -> Iterator[None]:
    """Afterwards nothing has failed inside, nothing is kept, and a sound worker is served."""
    before = at_rest(appliance)
    yield
    assert "Traceback" not in appliance.stderr, appliance.stderr[-2000:]
    assert at_rest(appliance) == before
    (worker,) = join(rack, wire, 1, "sound")
    worker.leave(0, 0)


def test_no_message_harms_the_appliance(rack: Rack, unharmed: None) -> None:
    explore(rack, 100, 0)


@pytest.mark.skipif("PASCALINE_FUZZ_SECONDS" not in os.environ, reason="for `make fuzz`, which says how long")
def test_no_message_harms_it_for_so_long(rack: Rack, unharmed: None, record_property: Any) -> None:
    end = time.monotonic() + float(os.environ["PASCALINE_FUZZ_SECONDS"])
    first = int(os.environ.get("PASCALINE_FUZZ_SEED", "0"))
    held = 0
    while time.monotonic() < end:
        explore(rack, 50, first + held if first else None)
        held += 50
        record_property("conversations", held)
