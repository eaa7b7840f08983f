"""Ops that look up, through the real process: which tables a join may bring, what is echoed, and the sums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.appliance.job import at_rest
from tests.appliance.rack import Appliance, Rack, until
from tests.appliance.test_control import refused, until_joined
from tests.appliance.worker import Control, Wire, Worker

GENTLE = list(range(16))
STEEP = [0, 1, 2, 4, 5, 7, 9, 11, 13, 15, 18, 20, 22, 25, 28, 30]
"""Not even; adds up to 30 per rank."""


@pytest.fixture(autouse=True)
def no_job_is_left(appliance: Appliance) -> Iterator[None]:
    yield
    until(lambda: not appliance.status()["jobs"])
    assert "Traceback" not in appliance.stderr


def lut4(table: Any, **fields: Any) -> dict[str, Any]:
    return {"ops": ["max_f32", "lut4_u8"], "tables": {"lut4_u8": table}, **fields}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"ops": ["lut4_u8"]}, "rank 0 (host host-0) wants lut4_u8 and sends no table: send its 16 entries"),
        (
            {"tables": {"sum_f32": GENTLE}},
            "rank 0 (host host-0) sends a table for sum_f32, which looks nothing up: send tables for the ops"
            " lut4_u8, lut4_u16, lut2_u8, lut2_u16, lut8_u16",
        ),
        (
            {"ops": ["sum_i32", "lut4_u16"], "tables": {"lut4_u16": GENTLE, "lut4_u8": GENTLE}},
            "rank 0 (host host-0) sends a table for lut4_u8, its ops are sum_i32, lut4_u16: name the op among them,"
            " or send no table",
        ),
        (
            lut4(GENTLE[:15]),
            "the table of lut4_u8 of rank 0 (host host-0) has 15 entries, the op has 16 indices: send one for each",
        ),
        (
            {"ops": ["lut8_u16"], "tables": {"lut8_u16": GENTLE}},
            "the table of lut8_u16 of rank 0 (host host-0) has 16 entries, the op has 256 indices: send one for each",
        ),
        (
            lut4([1, *GENTLE[1:]]),
            "the table of lut4_u8 of rank 0 (host host-0) begins with 1, not with 0: subtract that from all entries",
        ),
        (
            lut4([*GENTLE[:15], 13]),
            "the table of lut4_u8 of rank 0 (host host-0) falls from 14 to 13 at index 15: entries may only rise",
        ),
        (
            lut4([*GENTLE[:15], 256]),
            "the table of lut4_u8 of rank 0 (host host-0) ends with 256: its last entry, the greatest, is 1 to 255",
        ),
        (
            lut4([0] * 16),
            "the table of lut4_u8 of rank 0 (host host-0) ends with 0: its last entry, the greatest, is 1 to 255",
        ),
        (lut4(STEEP, world_size=9), "lut4_u8 adds up to 30 x 9 = 270, above 255: use lut4_u16"),
        (
            {"ops": ["lut2_u8"], "tables": {"lut2_u8": [0, 1, 2, 128]}, "world_size": 2},
            "lut2_u8 adds up to 128 x 2 = 256, above 255: use lut2_u16",
        ),
    ],
)
def test_a_table_that_cannot_be(rack: Rack, fields: dict[str, Any], sentence: str) -> None:
    control = Control(rack, **fields)
    message = control.receive()
    assert (message["type"], message.get("reason")) == ("refused", "tables"), message
    assert message["message"] == sentence
    assert control.receive()["type"] == "closed"


def test_ranks_with_different_tables_are_all_told_both_hashes(rack: Rack) -> None:
    first = Control(rack, 0, **lut4(STEEP, world_size=2))
    until_joined(rack, first)
    second = Control(rack, 1, **lut4([*STEEP[:15], 29], world_size=2))
    hashes = [hashlib.sha256(bytes(table)).hexdigest() for table in ([*STEEP[:15], 29], STEEP)]
    sentence = (
        f"the table of lut4_u8 of rank 1 (host host-1) has the hash {hashes[0]}, that of rank 0 (host host-0)"
        f" {hashes[1]}: use one codec with the same settings on all ranks"
    )
    for control in (second, first):
        refused(control, "tables", sentence)


@pytest.mark.parametrize("op", ["lut4_u8", "lut4_u16"])
def test_as_many_ranks_as_the_sums_hold_may_join(rack: Rack, op: str) -> None:
    """8 * 30 = 240 fits 8 bits; 64 * 255 fits 16."""
    table, world_size = (STEEP, 8) if op == "lut4_u8" else ([*STEEP[:15], 255], 64)
    control = Control(
        rack, 0, ops=[op], tables={op: table}, world_size=world_size, window=1, chunk_bytes=4096
    )
    until_joined(rack, control)
    control.send({"type": "leave", "received": []})
    assert control.receive()["type"] == "left"


def packed(low: int, high: int) -> bytes:
    return bytes([low | high << 4]) * 64


def test_a_lookup_s_sums_come_back_at_their_own_length(rack: Rack, appliance: Appliance, wire: Wire) -> None:
    """Two units of nibbles make 256 sums of 8 bits, then of 16; the offer says in which table."""
    before = at_rest(appliance)
    fields = {
        "ops": ["lut4_u8", "lut4_u16"],
        "tables": {"lut4_u8": STEEP, "lut4_u16": [*STEEP[:15], 255]},
        "world_size": 2,
        "job": "lookup",
    }
    workers = [Worker(rack, wire, rank, **fields) for rank in range(2)]
    for worker in workers:
        worker.connect()
        echoed = {op: hashlib.sha256(bytes(table)).hexdigest() for op, table in fields["tables"].items()}
        assert worker.offer["tables"] == echoed
    for worker in workers:
        worker.probe()
    for worker in workers:
        worker.expect("ready")
    for window in (1, 2):
        for rank, worker in enumerate(workers):
            worker.write(worker.pairs[0], window, window - 1, packed(3 + rank, 15) + packed(0, 9), window)
        for worker in workers:
            wire.pump(lambda worker=worker, window=window: worker.pairs[0].completions[-1:] == [window])
    pool = workers[0].offer["pools"][0]
    for worker in workers:
        narrow = bytes([4 + 5] * 64 + [30 + 30] * 64 + [0] * 64 + [15 + 15] * 64)
        assert worker.pairs[0].result[:256] == narrow
        wide = [9] * 64 + [510] * 64 + [0] * 64 + [30] * 64
        at = pool["chunk_bytes"]
        assert worker.pairs[0].result[at : at + 512] == b"".join(n.to_bytes(2, "little") for n in wide)
    (job,) = appliance.status()["jobs"]
    assert (job["contribution_bytes"], job["result_bytes"]) == (2 * 2 * 128, 2 * (256 + 512))
    for worker in workers:
        worker.control.send({"type": "leave", "received": [2, 0]})
    until(lambda: not appliance.status()["jobs"])
    assert at_rest(appliance) == before
