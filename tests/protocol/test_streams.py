"""EXPAND_SUM through the lane: sums of sub-blocks at every size, when they leave, and streams that are refused.

The format is streams.py's, which was written from docs/expand-sum.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from . import ops, streams, wire
from .epochs import halt, imm, reconnect
from .library import lib
from .rack import MTU, Rack, acks, results
from .streams import SUB_BLOCK
from .worker import Worker

NAK_INVALID = 0x61
SLOT_PACKETS = 200
"""Of 256 bytes: six sub-blocks."""
I32, F32 = lib.PSC_OP_EXPAND_SUM_I32, lib.PSC_OP_EXPAND_SUM_F32
LONGEST = streams.elements_max(SLOT_PACKETS * MTU)


def make(make_rack: Callable[..., Rack], **options: object) -> Rack:
    options = {"packets": SLOT_PACKETS, "ops": ops.ALL_OPS, "tables": ops.tables(2)} | options
    rack = make_rack(**options)
    rack.build, rack.read = wire.quick_build, wire.quick_read
    return rack


def contribute(rack: Rack, round: int, op: int, parts: list[bytes]) -> None:
    rack.run(p for w, part in zip(rack.workers(), parts, strict=True) for p in w.write(round, part, op=op))


def parts_of(op: int, world: int, elements: int, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng([op, elements, seed])
    return [ops.contribution(op, rng, 4 * elements) for _ in range(world)]


def one(elements: int, *places: int, value: int = 1, dtype: type = np.int32) -> bytes:
    """A stream with these elements alone."""
    there = np.zeros(elements, bool)
    there[list(places)] = True
    return streams.encode(there, np.full(elements, value, dtype))


def check(rack: Rack, round: int, op: int, parts: list[bytes]) -> None:
    """The result of a round that is over is this sum, on every rank."""
    sums = ops.expected(op, parts)
    for worker in rack.workers():
        np.testing.assert_array_equal(worker.result(round, sums), sums)
        assert worker.completions[round:] == [imm(round)]


# ---- Sums. ----


@pytest.mark.parametrize("mtu", [256, 1024, 4096])
@pytest.mark.parametrize("op", ops.STREAMS, ids=ops.NAMES.get)
def test_the_sum_is_exact_at_every_number_of_elements(make_rack, op, mtu):
    packets = SLOT_PACKETS * MTU // mtu
    rack = make(make_rack, world=3, packets=packets, mtu=mtu, tables=ops.tables(3))
    most = streams.elements_max(packets * mtu)
    sizes = [1, 31, 32, 33, 1000, SUB_BLOCK - 1, SUB_BLOCK, SUB_BLOCK + 1, 3 * SUB_BLOCK + 77, most - 1, most]
    sent = received = 0
    for round, elements in enumerate(sizes):
        parts = parts_of(op, 3, elements)
        contribute(rack, round, op, parts)
        check(rack, round, op, parts)
        sent += sum(map(len, parts))
        received += 3 * ops.expected(op, parts).nbytes
        stats = rack.jobs[0].stats
        assert (stats.contribution_bytes, stats.result_bytes) == (sent, received)
    assert not rack.drops()


def test_a_slot_holds_what_is_left_of_other_rounds(make_rack):
    """Long and short, dense and empty, one after the other in the same slots: nothing of an earlier round shows."""
    rack = make(make_rack, window=1)
    rnd = random.Random(3)
    for round in range(24):
        op = rnd.choice([I32, F32, lib.PSC_OP_SUM_I32])
        parts = parts_of(op, 2, rnd.choice([5, 2048, 5000, LONGEST]), round)
        contribute(rack, round, op, parts)
        check(rack, round, op, parts)


def test_no_rank_has_anything(make_rack):
    rack = make(make_rack)
    contribute(rack, 0, F32, [one(LONGEST)] * 2)
    empty = np.zeros(1 + -(-LONGEST // SUB_BLOCK), np.uint32)
    empty[0] = LONGEST
    np.testing.assert_array_equal(rack.workers()[0].result(0, empty), empty)


def test_a_result_is_never_longer_than_the_bound_that_join_has_for_it(make_rack):
    """All but one element of every sub-block, in the longest stream that a slot takes."""
    rack = make(make_rack)
    there = np.arange(LONGEST) % SUB_BLOCK != SUB_BLOCK - 1
    there[-1] = False
    stream = streams.encode(there, np.arange(LONGEST, dtype=np.int32))
    assert len(stream) == 4 * (1 + LONGEST + -(-LONGEST // 32)) <= SLOT_PACKETS * MTU
    contribute(rack, 0, I32, [stream] * 2)
    check(rack, 0, I32, [stream] * 2)


def test_a_result_leaves_when_it_is_whole_and_says_how_long_it_is(make_rack):
    """No cut-through: its FIRST carries the length of all of it, which its last sub-block decides."""
    rack = make(make_rack)
    a, b = rack.workers()
    parts = [one(LONGEST, 1), one(LONGEST, *range(0, LONGEST, 3))]
    assert results(rack.poll(*b.write(0, parts[1], op=I32))) == []
    packets = a.write(0, parts[0], op=I32)
    for packet in packets[:-1]:
        assert results(rack.poll(packet)) == []
    first, *_ = out = results(rack.poll(packets[-1]), a)
    assert first.dma_len == ops.expected(I32, parts).nbytes > max(map(len, parts)) - 4 * SUB_BLOCK
    assert sum(len(packet.payload) for packet in out) == first.dma_len


def test_floats_are_added_in_the_order_of_arrival(make_rack):
    rack = make(make_rack, world=3, tables=ops.tables(3))
    workers = rack.workers()
    values = [1e8, -1e8, 1.0]
    for round, order in enumerate([(0, 1, 2), (2, 0, 1), (1, 2, 0)]):
        parts = [one(40, 7, value=value, dtype=np.float32) for value in values]
        rack.run(p for rank in order for p in workers[rank].write(round, parts[rank], op=F32))
        sums = np.frombuffer(streams.add([parts[rank] for rank in order], np.float32), np.uint32)
        np.testing.assert_array_equal(workers[0].result(round, sums), sums)


def test_who_alone_has_an_element_gets_its_bits_back(make_rack):
    """-0.0, infinities, subnormals and NaN with every bit; where two have it, IEEE's sum."""
    rack = make(make_rack)
    bits = np.array([0x80000000, 0x7F800001, 0xFFC12345, 0xFF800000, 1, 0x80000000, 0x7F800000], np.uint32)
    first = np.array([1, 1, 1, 1, 1, 1, 1], bool)
    second = np.array([0, 0, 0, 0, 0, 1, 0], bool)
    parts = [streams.encode(first, bits), streams.encode(second, bits)]
    contribute(rack, 0, F32, parts)
    expected = np.concatenate([np.array([7, 7], np.uint32), bits])
    np.testing.assert_array_equal(rack.workers()[0].result(0, expected), expected)


@pytest.mark.parametrize("seed", range(20))
def test_ranks_overtake_each_other_in_every_order(make_rack, seed):
    """Packet by packet, whose turn it is by lot; some packets twice."""
    rnd = random.Random(seed)
    rack = make(make_rack, world=3, tables=ops.tables(3))
    parts = parts_of(I32, 3, rnd.randint(1, LONGEST), seed)
    queues = [w.write(0, part, op=I32) for w, part in zip(rack.workers(), parts, strict=True)]
    while any(queues):
        queue = rnd.choice([queue for queue in queues if queue])
        packet = queue.pop(0)
        rack.run([packet, packet] if rnd.random() < 0.2 else [packet])
    check(rack, 0, I32, parts)


# ---- Refusals. ----

SOUND = one(SUB_BLOCK + 40, 0, 100, 200, SUB_BLOCK, SUB_BLOCK + 10)
SECOND = 4 * (1 + 1 + SUB_BLOCK // 32 + 3)
"""Byte of the second sub-block's count."""


def put(stream: bytes, at: int, word: int) -> bytes:
    return stream[:at] + word.to_bytes(4, "little") + stream[at + 4 :]


WRONG = {
    "no elements": put(SOUND, 0, 0),
    "more elements than a slot takes": put(SOUND, 0, LONGEST + 1),
    "elements without end": put(SOUND, 0, (1 << 32) - 1),
    "another number of elements": put(SOUND, 0, SUB_BLOCK + 41),
    "a count above its sub-block": put(SOUND, 4, SUB_BLOCK + 1),
    "a count above the last sub-block": put(SOUND, SECOND, 41),
    "a count above its bitmap": put(SOUND, 4, 4),
    "a count below its bitmap": put(SOUND, SECOND, 1),
    "a bit that is no element": put(SOUND, SECOND + 8, 1 << 8),
    "a word too many": SOUND + bytes(4),
    "a packet too many": SOUND + bytes(MTU),
    "a word too few": SOUND[:-4],
    "half of it": SOUND[:SECOND],
    "its first word": SOUND[:4],
    "nothing but zeros": bytes(2 * MTU),
    "nothing but ones": b"\xff" * 3 * MTU,
}


def fault_at(wrong: bytes) -> tuple[int, streams.Fault]:
    """The packet that shows it, and what."""
    for packet in range(-(-len(wrong) // MTU)):
        fault = streams.fault_of(wrong[: (packet + 1) * MTU], len(wrong), LONGEST, SUB_BLOCK + 40)
        if fault:
            return packet, fault
    raise AssertionError("nothing is wrong")


@pytest.mark.parametrize("op", ops.STREAMS, ids=ops.NAMES.get)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_stream_is_refused_and_both_values_are_named(make_rack, op, wrong):
    rack = make(make_rack)
    a, b = rack.workers()
    rack.run(a.write(0, SOUND, op=op))
    at, fault = fault_at(WRONG[wrong])
    packets = b.write(0, WRONG[wrong], op=op)
    before = rack.jobs[0].stats.contribution_bytes
    out = rack.poll(*packets)
    assert [(psn, syndrome) for psn, syndrome, _ in acks(out)] == [(packets[at].psn, NAK_INVALID)]
    assert results(out) == []
    event = rack.fault()
    assert (event.rank, event.round) == (1, 0)
    assert (event.fault, event.expected, event.got) == (fault.name, fault.expected, fault.got)
    assert event.complete == (0,)
    assert rack.drops() == {"refused": 1, **({"qp_state": n} if (n := len(packets) - at - 1) else {})}
    assert rack.jobs[0].stats.contribution_bytes == before + MTU * at
    assert rack.poll(*a.write(1, SOUND, op=op)) == []


def test_the_rank_that_states_a_number_of_elements_first_sets_it(make_rack):
    """Not the rank that ends first."""
    rack = make(make_rack)
    a, b = rack.workers()
    first, *_ = a.write(0, one(3000, *range(200)), op=I32)
    rack.poll(first)
    rack.poll(*b.write(0, one(2999, 1), op=I32))
    event = rack.fault()
    assert (event.fault, event.rank, event.expected, event.got) == ("elements_mismatch", 1, 3000, 2999)


def test_op_and_immediate_are_compared_as_ever(make_rack):
    for change, fault in (({"op": F32}, "op_mismatch"), ({"imm": 7}, "imm_mismatch")):
        rack = make(make_rack)
        a, b = rack.workers()
        rack.run(a.write(0, SOUND, op=I32))
        out = rack.poll(*b.write(0, SOUND, **({"op": I32} | change)))
        assert results(out) == [] and acks(out)[0][1] == NAK_INVALID
        assert rack.fault().fault == fault


def test_a_job_without_these_ops_has_no_window_for_them(make_rack):
    rack = make(make_rack, ops=[lib.PSC_OP_SUM_I32])
    rack.poll(*rack.workers()[0].write(0, SOUND, op=2))
    assert rack.fault().fault == "remote_access"


# ---- From one epoch to the next. ----


def connected(make_rack: Callable[..., Rack]) -> tuple[Rack, Worker, Worker]:
    rack = make(make_rack, connected=False)
    for worker in rack.workers():
        assert rack.connect(worker)
    rack.greet(rack.jobs[0])
    rack.run(worker.probe() for worker in rack.workers())
    return rack, *rack.workers()


@pytest.mark.parametrize("op", ops.STREAMS, ids=ops.NAMES.get)
def test_a_whole_result_is_delivered_again_and_a_half_read_one_replayed(make_rack, op):
    """Rank 1 lacks round 0; of round 1 rank 0's stream is whole and rank 1's read to its middle when the epoch ends."""
    rack, a, b = connected(make_rack)
    rounds = [parts_of(op, 2, 4000, seed) for seed in range(2)]
    out = rack.poll(*a.write(0, rounds[0][0], op=op), *b.write(0, rounds[0][1], op=op))
    rack.run(reply for p in out if rack.owner(p) is a for reply in a.receive(p))
    half = b.write(1, rounds[1][1], op=op)
    rack.poll(*a.write(1, rounds[1][0], op=op), *half[: len(half) // 2])
    assert (a.received, b.received) == (1, 0)

    assert halt(rack)
    reconnect(rack)
    sums = ops.expected(op, rounds[0])
    np.testing.assert_array_equal(b.result(0, sums), sums)
    contribute(rack, 1, op, rounds[1])
    sums = ops.expected(op, rounds[1])
    for worker in rack.workers():
        np.testing.assert_array_equal(worker.result(1, sums), sums)
        assert worker.received == 2


def test_after_a_refusal_the_round_is_void_and_another_one_may_take_its_place(make_rack):
    """What the refused stream and the sound one before it have added is nowhere, and neither is their size."""
    rack, a, b = connected(make_rack)
    rack.poll(*a.write(0, one(LONGEST, *range(LONGEST)), op=I32))
    rack.poll(*b.write(0, one(LONGEST, *range(5000))[:-4], op=I32))
    assert rack.fault().fault == "stream_length"
    reconnect(rack)
    parts = parts_of(I32, 2, 4000)
    contribute(rack, 0, I32, parts)
    sums = ops.expected(I32, parts)
    for worker in rack.workers():
        np.testing.assert_array_equal(worker.result(0, sums), sums)
        assert worker.received == 1
