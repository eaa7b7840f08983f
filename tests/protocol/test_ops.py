"""Every op through the lane, frames in and frames out: results that are longer than contributions, look-ups, and what
is refused. The definitions are ops.py's.
"""

from __future__ import annotations

import numpy as np
import pytest

from . import ops, wire
from .epochs import halt, imm, reconnect
from .library import ffi, lib
from .rack import MTU, Rack, results
from .worker import Worker

NAK_INVALID, NAK_ACCESS = 0x61, 0x62
SLOT_PACKETS = 16
EXPANDING = [op for op in ops.ALL_OPS if ops.EXPANSION[op] > 1]


def lengths(op: int, mtu: int) -> list[int]:
    """A unit; a packet, one unit less and one more; the longest, one unit less: its last packet is short both ways."""
    unit, longest = ops.UNIT[op], SLOT_PACKETS * mtu // ops.EXPANSION[op]
    return sorted({unit, mtu - unit, mtu, mtu + unit, longest - unit, longest})


def contribute(rack: Rack, round: int, op: int, parts: list[bytes]) -> None:
    rack.run(p for w, part in zip(rack.workers(), parts, strict=True) for p in w.write(round, part, op=op))


def parts_of(op: int, world: int, length: int, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng([op, length, seed])
    return [ops.contribution(op, rng, length) for _ in range(world)]


@pytest.mark.parametrize("mtu", [256, 1024, 4096])
@pytest.mark.parametrize("op", ops.ARRAYS, ids=ops.NAMES.get)
def test_the_result_is_exact_at_every_length(make_rack, op, mtu):
    world = 3
    tables = ops.tables(world)
    rack = make_rack(world=world, packets=SLOT_PACKETS, mtu=mtu, ops=ops.ALL_OPS, tables=tables)
    rack.build, rack.read = wire.quick_build, wire.quick_read
    sent = received = 0
    for round, length in enumerate(lengths(op, mtu)):
        parts = parts_of(op, world, length)
        sums = ops.expected(op, parts, tables.get(op, b""))
        assert sums.nbytes == length * ops.EXPANSION[op]
        contribute(rack, round, op, parts)
        for worker in rack.workers():
            np.testing.assert_array_equal(worker.result(round, sums), sums)
            assert worker.completions[round:] == [imm(round)]
        sent, received = sent + world * length, received + world * sums.nbytes
        stats = rack.jobs[0].stats
        assert (stats.contribution_bytes, stats.result_bytes) == (sent, received)
    assert not rack.drops()


@pytest.mark.parametrize("op", EXPANDING, ids=ops.NAMES.get)
def test_a_summed_packet_of_a_contribution_makes_as_many_of_the_result(make_rack, op):
    """Cut-through: range by range, and a last packet that is short in the contribution is what is left."""
    rack = make_rack(packets=SLOT_PACKETS, ops=ops.ALL_OPS, tables=ops.tables(2))
    a, b = rack.workers()
    expansion = ops.EXPANSION[op]
    length = SLOT_PACKETS * MTU // expansion - ops.UNIT[op]
    parts = parts_of(op, 2, length)
    assert results(rack.poll(*a.write(0, parts[0], op=op))) == []
    packets, came = b.write(0, parts[1], op=op), 0
    for number, packet in enumerate(packets):
        out = results(rack.poll(packet), a)
        came += len(out)
        whole = number == len(packets) - 1
        assert came == (-(-length * expansion // MTU) if whole else (number + 1) * expansion)
        assert all(len(p.payload) == MTU for p in out[: -1 if whole else None])
        assert out[-1].opcode in ((wire.LAST_IMM, wire.ONLY_IMM) if whole else (wire.FIRST, wire.MIDDLE))
        if number == 0:
            assert (out[0].va, out[0].dma_len) == (a.result_va, length * expansion)


def test_halves_arrive_exactly_inf_nan_and_subnormals_among_them(make_rack):
    """All 65536 bit patterns, added to zeros: binary32 holds each."""
    for op in (lib.PSC_OP_SUM_F16, lib.PSC_OP_SUM_BF16):
        rack = make_rack(packets=128, mtu=4096, ops=ops.ALL_OPS, tables=ops.tables(2))
        rack.build, rack.read = wire.quick_build, wire.quick_read
        every = np.arange(65536, dtype=np.uint16).tobytes()
        expected = ops.expected(op, [every, bytes(len(every))])
        contribute(rack, 0, op, [every, bytes(len(every))])
        for worker in rack.workers():
            result = worker.result(0, expected)
            np.testing.assert_array_equal(result, expected)
            assert np.isnan(result).sum() == np.isnan(expected).sum() > 0
            finite = ~np.isnan(expected) & (expected != 0)
            np.testing.assert_array_equal(np.signbit(result[finite]), np.signbit(expected[finite]))


@pytest.mark.parametrize("world", [1, 2, 8])
@pytest.mark.parametrize("op", ops.TABLE, ids=ops.NAMES.get)
def test_sums_reach_the_last_value_that_their_width_holds(make_rack, op, world):
    tables = ops.tables(world)
    rack = make_rack(world=world, packets=8, ops=ops.ALL_OPS, tables=tables)
    contribute(rack, 0, op, [b"\xff" * 64] * world)
    greatest = world * tables[op][-1]
    assert greatest + world > ops.SUM_MAX[op] or tables[op][-1] == 255
    for worker in rack.workers():
        sums = ops.expected(op, [b"\xff" * 64] * world, tables[op])
        np.testing.assert_array_equal(worker.result(0, sums), np.full_like(sums, greatest))


def test_ops_may_change_from_round_to_round_and_pools_share_the_tables(make_rack):
    tables = ops.tables(2)
    rack = make_rack(packets=SLOT_PACKETS, window=2, pools=2, ops=ops.ALL_OPS, tables=tables)
    for round, op in enumerate(ops.ALL_OPS * 2):
        for pool in range(2):
            parts = parts_of(op, 2, ops.UNIT[op] * (1 + round % 3), seed=pool)
            workers = rack.workers(pool=pool)
            rack.run(p for w, part in zip(workers, parts, strict=True) for p in w.write(round, part, op=op))
            sums = ops.expected(op, parts, tables.get(op, b""))
            for worker in workers:
                np.testing.assert_array_equal(worker.result(round, sums), sums)
    assert not rack.drops()


# ---- Refusals. ----


def refused(rack: Rack, worker: Worker, op: int, length: int, nak: int) -> tuple[str, int, int]:
    """The one NAK and the one fault that a contribution of this length makes."""
    (first, *_) = worker.write(0, bytes(length), op=op)
    out = rack.poll(first)
    assert [(p.opcode, p.syndrome) for p in out] == [(wire.ACK, nak)]
    assert rack.drops() == {"refused": 1}
    fault = rack.fault()
    return fault.fault, fault.expected, fault.got


@pytest.mark.parametrize("op", ops.ARRAYS, ids=ops.NAMES.get)
@pytest.mark.parametrize("off", [-4, 4, -2])
def test_a_length_that_is_no_whole_units_is_refused(make_rack, op, off):
    rack = make_rack(packets=SLOT_PACKETS, ops=ops.ALL_OPS, tables=ops.tables(2))
    unit, length = ops.UNIT[op], MTU + 64 + off
    if length % unit == 0:
        contribute(rack, 0, op, [bytes(length)] * 2)
        assert not rack.drops()
        return
    assert refused(rack, rack.workers()[0], op, length, NAK_INVALID) == ("invalid_request", unit, length)


@pytest.mark.parametrize("op", ops.ALL_OPS, ids=ops.NAMES.get)
def test_a_contribution_whose_result_has_no_room_is_refused(make_rack, op):
    rack = make_rack(packets=SLOT_PACKETS, ops=ops.ALL_OPS, tables=ops.tables(2))
    longest = SLOT_PACKETS * MTU // ops.EXPANSION[op]
    got = refused(rack, rack.workers()[0], op, longest + ops.UNIT[op], NAK_ACCESS)
    assert got == ("remote_access", longest, longest + ops.UNIT[op])


def test_a_slot_without_room_for_a_unit_s_result_takes_none(make_rack):
    """256 / 8 bytes are less than a unit."""
    rack = make_rack(packets=1, ops=ops.ALL_OPS, tables=ops.tables(2))
    got = refused(rack, rack.workers()[0], lib.PSC_OP_LUT2_U16, 64, NAK_ACCESS)
    assert got == ("remote_access", MTU // 8, 64)


def test_lengths_are_compared_as_contributions_not_as_results(make_rack):
    """128 bytes of LUT4_U16 and 256 of LUT4_U8 are results of one length, and yet different."""
    rack = make_rack(packets=SLOT_PACKETS, ops=ops.ALL_OPS, tables=ops.tables(2))
    a, b = rack.workers()
    rack.poll(*a.write(0, bytes(256), op=lib.PSC_OP_LUT4_U8))
    rack.poll(*b.write(0, bytes(128), op=lib.PSC_OP_LUT4_U16))
    fault = rack.fault()
    assert (fault.fault, fault.expected, fault.got) == (
        "op_mismatch", lib.PSC_OP_LUT4_U8, lib.PSC_OP_LUT4_U16,
    )  # fmt: skip


@pytest.mark.parametrize(
    "table",
    [b"\x01" * 16, bytes(16), bytes([0, 2, 1] + [2] * 13), bytes([0] * 15 + [128])],
    ids=["begins with 1", "all 0", "falls", "overflows"],
)
def test_a_job_with_an_impossible_table_is_not_made(rack, table):
    spec = {
        "world_size": 2,
        "mtu": MTU,
        "ops": [lib.PSC_OP_LUT4_U8],
        "op_count": 1,
        "tables": [[]] * lib.PSC_OP_LUT4_U8 + [list(table)],
        "pools": [{"pool_class": 0, "window": 1, "chunk_bytes": MTU}],
        "pool_count": 1,
    }
    assert lib.psc_job_new(ffi.new("struct psc_job_spec *", spec), rack._memory) == ffi.NULL
    spec["tables"] = [[]] * lib.PSC_OP_LUT4_U8 + [list(bytes([0] * 15 + [127]))]
    job = lib.psc_job_new(ffi.new("struct psc_job_spec *", spec), rack._memory)
    assert job != ffi.NULL
    lib.psc_job_free(job)


# ---- From one epoch to the next. ----


@pytest.mark.parametrize("op", EXPANDING, ids=ops.NAMES.get)
def test_a_long_result_is_delivered_again_and_a_torn_one_replayed(make_rack, op):
    """Rank 1 lacks round 0 whole; round 1 is half summed, and half published, when the epoch ends."""
    tables = ops.tables(2)
    rack = make_rack(packets=SLOT_PACKETS, connected=False, ops=ops.ALL_OPS, tables=tables)
    for worker in rack.workers():
        assert rack.connect(worker)
    rack.greet(rack.jobs[0])
    rack.run(worker.probe() for worker in rack.workers())
    a, b = rack.workers()
    length = SLOT_PACKETS * MTU // ops.EXPANSION[op] - ops.UNIT[op]
    rounds = [parts_of(op, 2, length, seed) for seed in range(2)]
    out = rack.poll(*a.write(0, rounds[0][0], op=op), *b.write(0, rounds[0][1], op=op))
    rack.run(reply for p in out if rack.owner(p) is a for reply in a.receive(p))
    rack.poll(*a.write(1, rounds[1][0], op=op), b.write(1, rounds[1][1], op=op)[0])
    assert (a.received, b.received) == (1, 0)

    assert halt(rack)
    reconnect(rack)
    sums = [ops.expected(op, parts, tables.get(op, b"")) for parts in rounds]
    np.testing.assert_array_equal(b.result(0, sums[0]), sums[0])
    contribute(rack, 1, op, rounds[1])
    for worker in rack.workers():
        np.testing.assert_array_equal(worker.result(1, sums[1]), sums[1])
        assert worker.received == 2
