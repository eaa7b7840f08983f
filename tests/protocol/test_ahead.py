"""Packets of one range that come close together are added while their ICRCs are checked, before it is decided whether
they may be: whatever then becomes of each, the result is the sum of what was executed.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from . import ops, wire
from .library import lib
from .rack import Rack, ints
from .wire import Packet

MTU, PACKETS, WORLD = 1024, 8, 4
TESTED = [lib.PSC_OP_SUM_I32, lib.PSC_OP_MAX_F32, lib.PSC_OP_OR_U32, lib.PSC_OP_LUT4_U8, lib.PSC_OP_LUT4_U16]


def make(make_rack, world: int = WORLD) -> Rack:
    return make_rack(world=world, packets=PACKETS, mtu=MTU, ops=ops.ALL_OPS, tables=ops.tables(world))


def side_by_side(messages: list[list[Packet]], lag: int) -> list[Packet]:
    """Packet by packet, each rank `lag` packets behind the one before it."""
    steps = len(messages[0]) + lag * len(messages)
    return [
        message[step - lag * rank]
        for step in range(steps)
        for rank, message in enumerate(messages)
        if 0 <= step - lag * rank < len(message)
    ]


def damaged(packet: Packet, rnd: random.Random) -> bytes:
    frame = bytearray(wire.build(packet))
    frame[-rnd.randrange(1, MTU)] ^= 1 << rnd.randrange(8)
    return bytes(frame)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("op", TESTED, ids=ops.NAMES.get)
@pytest.mark.parametrize(("world", "lag"), [(4, 0), (4, 1), (8, 0), (5, 0)])
def test_the_result_is_exact_whatever_is_lost_damaged_or_twice(make_rack, world, lag, op, seed):
    rack, rnd, rng = make(make_rack, world), random.Random(seed), np.random.default_rng(seed)
    length = PACKETS * MTU // ops.EXPANSION[op]
    parts = [ops.contribution(op, rng, length) for _ in range(world)]
    messages = [w.write(0, part, op=op) for w, part in zip(rack.workers(), parts, strict=True)]
    packets = side_by_side(messages, lag)
    frames = []
    for packet in packets:
        fate = rnd.random() if seed else 1.0
        if fate > 0.05:
            frames.append(damaged(packet, rnd) if fate < 0.12 else wire.build(packet))
        if 0.12 < fate < 0.16:
            frames.append(wire.build(packet))
    if not seed:
        rack.feed(*frames[:-1])
        rack.run(packets[-1:])
    else:
        for at in range(0, len(frames), 32):
            rack.feed(*frames[at : at + 32])
        for worker in rack.workers():
            rack.run(messages[worker.rank])
        rack.run(packets)
    sums = ops.expected(op, parts, ops.tables(world).get(op, b""))
    rack.now_ns += 2_000_000  # results that came while nobody listened are sent again
    rack.run()
    for worker in rack.workers():
        np.testing.assert_array_equal(worker.result(0, sums), sums)


def test_a_packet_that_was_added_ahead_and_dropped_is_not_in_the_sum(make_rack):
    """The fourth rank's FIRST is damaged, so its next packet, sound and summed ahead, is a gap. What comes in its place
    later in the burst has other bytes: a sender may do that to itself, and gets the sum of what was executed.
    """
    rack = make(make_rack)
    parts = [ints(2 * MTU // 256, seed=rank) for rank in range(WORLD)]
    messages = [w.write(0, part) for w, part in zip(rack.workers(), parts, strict=True)]
    first, second = ([message[i] for message in messages] for i in range(2))
    other = second[3].but(payload=bytes(MTU))
    last = [wire.build(packet) for packet in (first[3], second[3])]
    frames = [*map(wire.build, first[:3]), damaged(first[3], random.Random(1))]
    out = rack.feed(*frames, *map(wire.build, second[:3]), wire.build(other), *last)
    assert rack.drops() == {"icrc": 1, "gap": 1}
    rack.run(reply for packet in out for reply in rack.owner(packet).receive(packet))
    sums = sum(part.astype(np.int64) for part in parts).astype(np.int32)
    for worker in rack.workers():
        np.testing.assert_array_equal(worker.result(0, sums), sums)


def test_short_packets_inside_messages_are_refused_and_nothing_is_read_behind_them(make_rack):
    """Four MIDDLEs of a quarter of the MTU, alike in everything: no full packets, so none is added ahead."""
    rack = make(make_rack)
    part = ints(4 * MTU // 256)
    messages = [w.write(0, part) for w in rack.workers()]
    rack.feed(*(wire.build(message[0]) for message in messages))
    rack.feed(*(wire.build(message[1].but(payload=bytes(256))) for message in messages))
    assert rack.fault().fault == "invalid_request"


def test_a_range_that_no_message_has_is_foreseen_by_nobody(make_rack):
    """PSN after PSN of what is not even the responder's next, sound in form: the range foreseen leaves the slot."""
    rack = make(make_rack)
    rack.build = wire.quick_build
    part = ints(2 * MTU // 256)
    messages = [w.write(0, part) for w in rack.workers()]
    rack.feed(*(wire.build(message[0]) for message in messages))
    stray = []
    for step in range(2, 40):
        for message in messages:
            opcode = wire.FIRST if step == 2 else wire.MIDDLE
            fields = {"payload": bytes(MTU)} if step > 2 else {}
            packet = message[0] if step == 2 else message[1]
            stray.append(packet.but(opcode=opcode, psn=(message[0].psn + step) & 0xFFFFFF, **fields))
    rack.poll(*stray)
    assert set(rack.drops()) == {"gap"}
    rack.run(message[1] for message in messages)
    sums = (part.astype(np.int64) * WORLD).astype(np.int32)
    for worker in rack.workers():
        np.testing.assert_array_equal(worker.result(0, sums), sums)
