"""Rkeys and addresses that are not the rank's own, and addresses that are, in every way in which one can be wrong."""

from __future__ import annotations

import pytest

from ..protocol import wire
from ..protocol.library import lib
from ..protocol.rack import MTU
from .bench import Bench, payload

TOP = (1 << 64) - 1
OPCODES = {"first": wire.FIRST, "only": wire.ONLY_IMM}
ROUNDS = [-2, -1, 0, 1, 2, 4, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
WINDOWS = [0, 1, 2, 3, 4, 16, 63, 64, 128, 255]
BYTES = [-1, 0, 1, 4, 255, MTU, 2 * MTU, 4 * MTU - 4, 4 * MTU, 1 << 16, (1 << 24) - 4, (1 << 24) - 1]


def begin(bench: Bench, opcode: int, **changes: object) -> bytes:
    packet = bench.only() if opcode == wire.ONLY_IMM else bench.first()
    return wire.quick_build(packet.but(**changes))


@pytest.fixture(params=OPCODES)
def opcode(request):
    return OPCODES[request.param]


@pytest.fixture(params=["idle", "nak", "mid", "err"])
def state(request):
    return request.param


def test_rkeys(family, check, opcode, state):
    """Another rank's, another job's, the worker's own, and those that look like ours."""
    wrong = {
        "of rank 1": lambda b: b.b.rkey,
        "of another job": lambda b: b.other.rkey,
        "of the result": lambda b: b.a.result_rkey,
        "byte-swapped": lambda b: int.from_bytes(b.a.rkey.to_bytes(4, "little"), "big"),
        "0": lambda b: 0,
        "all ones": lambda b: 0xFFFFFFFF,
        "plus one": lambda b: b.a.rkey + 1 & 0xFFFFFFFF,
        "minus one": lambda b: b.a.rkey - 1 & 0xFFFFFFFF,
        **{f"bit {bit}": lambda b, bit=bit: b.a.rkey ^ 1 << bit for bit in range(32)},
    }
    check(
        family,
        [
            (f"rkey {what}", state, lambda b, rkey=rkey: begin(b, opcode, rkey=rkey(b)))
            for what, rkey in wrong.items()
        ],
    )


def test_rounds_of_every_window(family, check, opcode, state):
    def make(window: int, ahead: int):
        return lambda b: begin(b, opcode, va=b.a.address(b.round + ahead & 0xFFFFFFFF, window))

    check(
        family,
        [
            (f"round {ahead:+d}, window {window}", state, make(window, ahead))
            for window in WINDOWS
            for ahead in ROUNDS
        ],
    )


def test_bytes_of_a_slot(family, check, opcode, state):
    """A message starts where its slot starts: no address inside, before or behind it, and none that straddles."""

    def make(window: int, byte: int):
        return lambda b: begin(b, opcode, va=b.a.address(b.round, window) + byte & TOP)

    check(
        family,
        [
            (f"byte {byte:+d}, window {window}", state, make(window, byte))
            for window in range(5)
            for byte in BYTES
        ],
    )


def test_addresses_that_have_nothing_to_do_with_us(family, check, opcode, state):
    addresses = {
        "0": lambda b: 0,
        "1": lambda b: 1,
        "the top": lambda b: TOP,
        "an MTU below the top": lambda b: TOP - MTU + 1,
        "the base": lambda b: b.a.va_base,
        "one below the base": lambda b: b.a.va_base - 1 & TOP,
        "the base of rank 1": lambda b: b.b.address(b.round),
        "the base of another job": lambda b: b.other.address(b.other_round),
        "the result's": lambda b: b.a.result_va,
        "without the base": lambda b: b.a.address(b.round) - b.a.va_base & TOP,
        "the base twice": lambda b: b.a.address(b.round) + b.a.va_base & TOP,
        "byte-swapped": lambda b: int.from_bytes(b.a.address(b.round).to_bytes(8, "little"), "big"),
        **{f"bit {bit}": lambda b, bit=bit: b.a.address(b.round) ^ 1 << bit for bit in range(64)},
    }
    check(
        family,
        [
            (f"address {what}", state, lambda b, va=va: begin(b, opcode, va=va(b)))
            for what, va in addresses.items()
        ],
    )


PROBES = {
    "length": [0, 4, MTU - 4, MTU, MTU + 4, 1 << 31],
    "round": [0, 1, 2, (1 << 32) - 1],
    "byte": [0, 1, 4, MTU],
    "imm": [lib.PSC_IMM_PROBE, 0, lib.PSC_IMM_PROBE + 1, 0xFFFFFFFF],
}


@pytest.mark.parametrize("field", PROBES)
def test_probes(family, check, opcode, field):
    """Before round 0, one field is not what a probe has. What adds nothing changes no sum that follows."""

    def make(value: int):
        def probe(bench: Bench) -> bytes:
            wish = {"length": MTU, "round": 0, "byte": 0, "imm": lib.PSC_IMM_PROBE} | {field: value}
            return begin(
                bench,
                opcode,
                va=bench.a.address(wish["round"], 0) + wish["byte"] & TOP,
                dma_len=wish["length"],
                payload=payload(0, 0, min(wish["length"], MTU)),
                imm=wish["imm"],
            )

        return probe

    for value in PROBES[field]:  # each on a new rack: it is its first packet
        check(family, [(f"probe with {field} {value:#x}", "idle", make(value))])
