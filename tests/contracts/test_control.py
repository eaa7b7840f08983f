"""The control contract: every message survives the way through JSON, and what the schema does not know is refused.

The file is loaded by its path: this tests the contract, not one of the distributions that ship it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import cffi
import pydantic
import pytest

ROOT = Path(__file__).parents[2]
CONTROL = ROOT / "appliance" / "src" / "pascaline_appliance" / "contract" / "control.py"


def load_control() -> ModuleType:
    spec = importlib.util.spec_from_file_location("contract_control", CONTROL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["contract_control"] = module
    spec.loader.exec_module(module)
    return module


control = load_control()

POOL_OFFER = {
    "pool": 0,
    "pool_class": "data",
    "lane": 0,
    "window": 16,
    "chunk_bytes": 262144,
    "qpn": 0xABCDEF,
    "start_psn": 0xFFFFFF,
    "rkey": 0xFFFFFFFF,
    "va_base": "0x3fffffffffffffff",
}
POOL_CONNECT = {
    "pool": 0,
    "qpn": 17,
    "start_psn": 0,
    "result_rkey": 1,
    "result_va": "0xffffffffffffffff",
    "result_bytes": 4194304,
}
FROM_WORKER: list[dict[str, Any]] = [
    {
        "type": "join",
        "control_version": 4,
        "wire_version": 2,
        "job": "digits@host-1:4/run_2",
        "restart_count": 0,
        "rank": 63,
        "world_size": 64,
        "ops": ["sum_f32", "max_f32", "lut2_u8"],
        "tables": {"lut2_u8": [0, 1, 2, 255]},
        "plan": "",
        "mtu": 4096,
        "address": "10.0.0.2",
    },
    {"type": "connect", "pools": [POOL_CONNECT]},
    {"type": "broken", "message": "write 7 of pool 0 on rxe0: transport retry counter exceeded"},
    {"type": "resume", "epoch": 7, "received": [4294967295, 0]},
    {"type": "leave", "received": [4294967295, 0]},
]
FROM_APPLIANCE: list[dict[str, Any]] = [
    {
        "type": "offer",
        "epoch": 7,
        "address": "10.0.0.1",
        "mtu": 4096,
        "traffic_class": 106,
        "pools": [POOL_OFFER],
        "straggler_timeout_s": 1800.0,
        "deadline_s": 5.0,
        "complete": [4294967295],
        "tables": {"lut2_u8": 32 * "0f"},
    },
    {"type": "connected"},
    {"type": "ready", "epoch": 7},
    {"type": "left"},
    {
        "type": "refused",
        "reason": "mtu",
        "message": "this job uses 4096 bytes and the port of rank 1 takes 1024",
    },
    {"type": "event", "kind": "waiting", "ranks": [3, 7], "message": "round 12 waits for ranks 3, 7"},
    {"type": "ended", "fault": "round_mismatch", "message": "rank 1 sent round 9, its next is 8", "rank": 1},
]
EVERY = [(control.from_worker, message) for message in FROM_WORKER] + [
    (control.from_appliance, message) for message in FROM_APPLIANCE
]
by_type = pytest.mark.parametrize(
    ("adapter", "message"), EVERY, ids=[message["type"] for _, message in EVERY]
)


@by_type
def test_a_message_survives_json(adapter: Any, message: dict[str, Any]) -> None:
    first = adapter.validate_json(json.dumps(message))
    again = adapter.validate_json(first.model_dump_json())
    assert again == first
    assert message.items() <= json.loads(first.model_dump_json()).items() or "pools" in message
    for sent, kept in zip(message.get("pools", []), getattr(first, "pools", []), strict=True):
        assert kept.model_dump() == sent


def test_there_is_an_example_of_every_type() -> None:
    for union, examples in ((control.FromWorker, FROM_WORKER), (control.FromAppliance, FROM_APPLIANCE)):
        members = typing.get_args(typing.get_args(union)[0])
        assert {member.model_fields["type"].default for member in members} == {m["type"] for m in examples}


@by_type
def test_an_unknown_field_is_refused(adapter: Any, message: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError, match="surprise"):
        adapter.validate_json(json.dumps({**message, "surprise": 1}))


@by_type
def test_an_unknown_type_is_refused(adapter: Any, message: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError, match="surprise"):
        adapter.validate_json(json.dumps({**message, "type": "surprise"}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", 64),
        ("rank", -1),
        ("rank", "0"),
        ("world_size", 0),
        ("world_size", True),
        ("ops", []),
        ("ops", ["sum_f8"]),
        ("tables", {"lut3_u8": [0, 1]}),
        ("tables", {"lut2_u8": [0, 1, 2, -1]}),
        ("tables", {"lut2_u8": [0, 1, 2, 1.5]}),
        ("tables", {"lut2_u8": "0123"}),
        ("ops", ["sum_f32"] * 16),
        ("mtu", 1500),
        ("job", ""),
        ("job", "two words"),
        ("job", "x" * 91),
        ("restart_count", 1 << 32),
    ],
)
def test_a_value_outside_its_range_is_refused(field: str, value: object) -> None:
    with pytest.raises(pydantic.ValidationError, match=field):
        control.from_worker.validate_json(json.dumps({**FROM_WORKER[0], field: value}))


@pytest.mark.parametrize("text", ["", "17", "0x", "0xg", "0x10000000000000000", "0x-1", "0x1_0", "0x 1"])
def test_what_is_no_64_bit_number_is_refused(text: str) -> None:
    connect = {"type": "connect", "pools": [{**POOL_CONNECT, "result_va": text}]}
    with pytest.raises(pydantic.ValidationError, match="result_va"):
        control.from_worker.validate_json(json.dumps(connect))


def test_it_speaks_of_the_same_things_as_the_wire_contract() -> None:
    ffi = cffi.FFI()
    for definition in ("psc_wire.def.h", "psc_stats.def.h"):
        ffi.cdef((ROOT / "dpdk_c" / "contract" / definition).read_text())
    wire = ffi.dlopen(None)

    def labels(prefix: str, *without: str) -> set[str]:
        return {name.removeprefix(prefix).lower() for name in dir(wire) if name.startswith(prefix)} - set(
            without
        )

    assert set(typing.get_args(control.Op)) == labels("PSC_OP_", "probe", "count")
    assert set(typing.get_args(control.PoolClass)) == labels("PSC_POOL_", "class_count")

    def limit(model: str, field: str, name: str) -> int:
        (value,) = (
            getattr(m, name) for m in getattr(control, model).model_fields[field].metadata if hasattr(m, name)
        )
        return int(value)

    assert limit("Join", "ops", "max_length") == wire.PSC_MAX_OPS
    assert limit("Join", "rank", "lt") == limit("Join", "world_size", "le") == wire.PSC_MAX_RANKS
    assert (
        limit("Offer", "pools", "max_length") == limit("Connect", "pools", "max_length") == wire.PSC_MAX_POOLS
    )
    assert limit("Join", "job", "max_length") < wire.PSC_STATS_JOB_NAME_BYTES


def test_a_table_s_hash_is_of_one_byte_per_entry() -> None:
    """Of the bytes 00 01 02 ff: what `printf '\\0\\1\\2\\377' | sha256sum` says."""
    assert (
        control.table_hash([0, 1, 2, 255])
        == "3d1f57c984978ef98a18378c8166c1cb8ede02c03eeb6aee7e2f121dfeee3e56"
    )
