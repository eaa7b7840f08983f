"""Streams of sub-blocks that are none: every word of their heads, every length, and what follows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ..protocol import ops, streams, wire
from ..protocol.library import lib
from ..protocol.rack import MTU
from .bench import SLOT_PACKETS, Bench

ELEMENTS = streams.elements_max(SLOT_PACKETS * MTU)
HEAD_WORDS = 2 + -(-ELEMENTS // 32)
"""Number of elements, count, bitmap: all in the first packet."""
SOUND = streams.encode(np.arange(ELEMENTS) % 3 != 1, np.arange(ELEMENTS, dtype=np.int32))
Make = Callable[[Bench], bytes]


def begun(bench: Bench, op: int, data: bytes) -> bytes:
    """The first packet of this contribution; the next ones follow it."""
    bench.stream = data
    va, size = bench.a.address(bench.round, op), min(len(data), MTU)
    packet = bench.only() if len(data) <= MTU else bench.first()
    return wire.quick_build(packet.but(va=va, dma_len=len(data), payload=data[:size]))


def first_of(op: int, data: bytes) -> Make:
    return lambda bench: begun(bench, op, data)


def last_of(op: int, data: bytes) -> Make:
    """All packets of a contribution but for the last, which is looked at, if none before is refused."""

    def make(bench: Bench) -> bytes:
        frame = begun(bench, op, data)
        for _ in range((len(data) - 1) // MTU):
            if bench.see(frame).fault:
                return frame  # from here on nobody is heard
            frame = wire.quick_build(bench.next())
        return frame

    return make


def put(at: int, word: int) -> bytes:
    return SOUND[: 4 * at] + (word & 0xFFFFFFFF).to_bytes(4, "little") + SOUND[4 * at + 4 :]


@pytest.mark.parametrize("op", ops.STREAMS, ids=ops.NAMES.get)
@pytest.mark.parametrize("state", ["idle", "nak"])
def test_every_word_of_a_head(family, check, op, state):
    cases = []
    for at in range(HEAD_WORDS):
        word = int.from_bytes(SOUND[4 * at : 4 * at + 4], "little")
        words = {0, 1, 2, 31, 32, ELEMENTS, ELEMENTS + 1, 1 << 16, 1 << 31, -1, word, word - 1, word + 1}
        words |= {word ^ 1 << bit for bit in (0, 7, 15, 24, 30, 31)}
        cases += [(f"word {at} is {new & 0xFFFFFFFF:#x}", state, first_of(op, put(at, new))) for new in words]
    check(family, cases, ops=ops.ALL_OPS)


@pytest.mark.parametrize("op", ops.STREAMS, ids=ops.NAMES.get)
def test_every_length(family, check, op):
    """The sound stream cut, or longer by zeros, at every word; and what is hardly one."""
    slot = SLOT_PACKETS * MTU
    padded = SOUND + bytes(slot)
    cases = [
        (f"{length} bytes", "idle", last_of(op, padded[:length]))
        for length in range(4, slot + 1, 4 if op == lib.PSC_OP_EXPAND_SUM_I32 else 36)
    ]
    short = [
        [1],
        [1, 0],
        [1, 1],
        [1, 1, 9],
        [1, 2, 9],
        [2, 1, 1, 9],
        [2, 1, 3, 9],
        [2, 1, 4, 9],
        [2, 2, 8, 9],
    ]
    cases += [
        (f"{words}", "idle", first_of(op, np.array(words, "<u4").tobytes()))
        for words in [*short, [32, 1, 1 << 31, 9], [33, 1, 0, 1, 9], [33, 1, 0, 2, 9], [0], [0, 0]]
    ]
    check(family, cases, ops=ops.ALL_OPS)


def test_nothing_of_a_refused_stream_reaches_another_job_s_sum(family):
    """Its other rank's contribution was whole; the job is over for both, and the lane goes on."""
    bench = Bench(family, ops=ops.ALL_OPS)
    bench.rack.run(bench.b.write(0, SOUND, op=lib.PSC_OP_EXPAND_SUM_I32))
    bench.see(begun(bench, lib.PSC_OP_EXPAND_SUM_I32, put(1, 7)))
    assert bench.qp.in_error and not bench.b.completions
    bench.finish()
    bench.close()
