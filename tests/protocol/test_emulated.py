"""The emulated link's arithmetic against the real core's: what codecs encode, packet by packet through the lane, and by
numpy. Every byte agrees, for every op that a codec uses.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from pascaline import codec as codecs
from pascaline.contract import wire
from pascaline.link.emulated import streams
from pascaline.link.emulated.ops import combine
from tests.client import lockstep

from . import streams as reference
from .rack import MTU
from .test_streams import SLOT_PACKETS, SOUND, WRONG, fault_at

ELEMS = 1024 + 300
CODECS = {
    "f32": codecs.resolve("f32"),
    "f16": codecs.resolve("f16"),
    "bf16": codecs.resolve("bf16"),
    "fixed32": codecs.resolve("fixed32"),
    "lut4_u8": codecs.resolve("thc"),
    "lut4_u16": codecs.Thc(g=200, p=0.01),
    "lut2_u8": codecs.resolve("terngrad"),
    "lut2_u16": codecs.Thc(bits=2, g=200, p=0.01),
    "lut8_u16": codecs.Thc(bits=8, g=255, p=0.001),
    "3 bits": codecs.Thc(bits=3, g=20, p=0.01),
    "one scale": codecs.resolve("thc-paper"),
}


def gradients(world: int) -> list[np.ndarray]:
    """Of scales over two decades."""
    rng = np.random.default_rng(world)
    scale = np.repeat(10.0 ** rng.uniform(-1, 1, 10), -(-ELEMS // 10))[:ELEMS]
    return [(rng.normal(size=ELEMS) * scale).astype(np.float32) for _ in range(world)]


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("name", CODECS)
def test_the_core_and_the_emulated_link_make_the_same_bytes(make_rack, name, world):
    ranks = [CODECS[name].build(rank, world, seed=7) for rank in range(world)]
    codec, grads = ranks[0], gradients(world)
    if "lut" in name and world > 1:
        assert codec.op == name
    tables = {wire.OPS[codec.op]: bytes(codec.table)} if codec.table else {}
    packets = codec.result_bytes(ELEMS) // 256 + 1
    rack = make_rack(
        world=world, packets=packets, ops=[wire.OPS["max_f32"], wire.OPS[codec.op]], tables=tables
    )
    scales = np.zeros(codec.scale_count(ELEMS), np.float32)
    if scales.size:
        norms = np.zeros((world, scales.size), np.float32)
        for one, x, row in zip(ranks, grads, norms, strict=True):
            one.norms(x, codecs.NOTHING, row)
        if codec.one_scale:
            norms = np.array([[codec.fold(row)] for row in norms])
        scales = through(rack, 0, 1, "max_f32", [row.view(np.uint8) for row in norms]).view(np.float32)
    place = codecs.Place(3, 0, ELEMS)
    encoded = [np.zeros(codec.contribution_bytes(ELEMS), np.uint8) for _ in ranks]
    for one, x, out in zip(ranks, grads, encoded, strict=True):
        one.encode(place, x, codecs.NOTHING, scales, out)
    round_ = 1 if scales.size else 0
    combined = through(rack, round_, 2, codec.op, encoded, codec.table or ())
    assert combined.size == codec.result_bytes(ELEMS) == encoded[0].size * wire.EXPANSIONS[codec.op]
    assert encoded[0].size % wire.UNIT_BYTES[codec.op] == 0


@pytest.mark.parametrize("name", ["expand_sum_i32", "expand_sum_f32"])
@pytest.mark.parametrize("elements", [1, 33, 2048, 5000])
def test_streams_too(make_rack, name, elements):
    """In rank order, which the lane is given too: of floats every bit, with values that do not add exactly."""
    rng = np.random.default_rng(elements)
    rack = make_rack(world=3, packets=100, ops=[wire.OPS[name]])
    masks = [rng.random(elements) < density for density in (0.02, 0.5, 1)]
    values = [rng.normal(size=elements).astype(np.float32) for _ in range(3)]
    encoded = [streams.encode(there, x) for there, x in zip(masks, values, strict=True)]
    assert [one.tobytes() for one in encoded] == [
        reference.encode(there, x) for there, x in zip(masks, values, strict=True)
    ]
    through(rack, 0, 1, name, encoded)


@pytest.mark.parametrize("wrong", WRONG)
def test_streams_that_are_none_are_refused_with_the_same_values(wrong):
    """As test_streams.py shows that the core refuses them."""
    _, fault = fault_at(WRONG[wrong])
    words = [np.frombuffer(stream, np.uint8) for stream in (SOUND, WRONG[wrong])]
    with pytest.raises(streams.StreamFault) as raised:
        combine("expand_sum_i32", words, chunk_bytes=SLOT_PACKETS * MTU)
    assert (raised.value.fault, raised.value.rank) == (fault.name, 1)
    named = {int(number) for number in re.findall(r"\d+", str(raised.value))}
    # Of a stream that ends early the core names what it lacks in all, the emulated link what it lacks first.
    assert {fault.got} | ({fault.expected} if fault.name != "stream_length" else set()) <= named


def through(rack, round_, window, op, contributions, table=()):
    """One round's bytes through the lane, in rank order; the same on every rank and from numpy."""
    expected = combine(op, contributions, table)
    rack.run(
        packet
        for worker, bytes_ in zip(rack.workers(), contributions, strict=True)
        for packet in worker.write(round_, bytes_.tobytes(), op=window)
    )
    for worker in rack.workers():
        np.testing.assert_array_equal(worker.result(round_, expected), expected)
    return expected


@pytest.mark.parametrize(
    "options", [codecs.Sparse(), codecs.Sparse("fixed32"), codecs.TopK(share=1 / 50)], ids=str
)
def test_rounds_of_one_chunk_through_the_core(make_rack, options):
    """Each round's bytes, whose number the one before has told."""
    ranks = [options.build(rank, 3, seed=7) for rank in range(3)]
    grads = [
        np.where(np.random.default_rng(rank).random(ELEMS) < 0.05, x, 0)
        for rank, x in enumerate(gradients(3))
    ]
    rack = make_rack(world=3, packets=ELEMS * 4 // 256 + 1, ops=[wire.OPS[op] for op in ranks[0].ops])
    done = []

    def combined(op, encoded):
        done.append(op)
        return through(rack, len(done) - 1, 1 + ranks[0].ops.index(op), op, encoded)

    reduced = lockstep.reduce_chunk(ranks, [x.astype(np.float32) for x in grads], combined_by=combined)
    assert done == ["or_u32", "or_u32", ranks[0].ops[1]]
    assert {one.encoding for one in reduced.outcomes} == {"bitmap"}


@pytest.mark.parametrize(
    "options",
    [codecs.Sparse(phases=1), codecs.Sparse("fixed32", phases=1), codecs.TopK(share=1 / 50, phases=1)],
    ids=str,
)
@pytest.mark.parametrize("density", [0.05, 1])
def test_sparse_in_one_phase_through_the_core(make_rack, options, density):
    """Streams of lengths of their own; the result's is the core's."""
    ranks = [options.build(rank, 3, seed=7) for rank in range(3)]
    chosen = [np.random.default_rng(rank).random(3 * ELEMS) < density for rank in range(3)]
    grads = [np.where(own, np.resize(x, 3 * ELEMS), 0) for own, x in zip(chosen, gradients(3), strict=True)]
    rack = make_rack(world=3, packets=3 * ELEMS * 4 // 256 + 4, ops=[wire.OPS[op] for op in ranks[0].ops])
    done = []

    def combined(op, encoded):
        done.append(op)
        assert density == 1 or len({one.size for one in encoded}) > 1 or isinstance(options, codecs.TopK)
        return through(rack, 0, 1, op, encoded)

    reduced = lockstep.reduce_chunk(ranks, [x.astype(np.float32) for x in grads], combined_by=combined)
    assert done == [ranks[0].ops[0]] and {one.encoding for one in reduced.outcomes} == {"stream"}
    if not isinstance(options, codecs.TopK):
        dense = lockstep.reduce_chunk(
            [codecs.resolve(options.values).build(0, 3, 0)] * 3, [x.astype(np.float32) for x in grads]
        )
        assert {x.tobytes() for x in reduced.values} == {dense.values[0].tobytes()}


@pytest.mark.parametrize(
    "options",
    [codecs.Lhc(), codecs.Lhc(permille=700), codecs.Lhc(phases=1), codecs.Lhc(permille=700, phases=1)],
    ids=str,
)
def test_lhc_through_the_core_is_fixed32(make_rack, options):
    """Index and sketch, with what does not peel behind the sketch; in one phase from the second step on, the index
    right before the sketch, and what does not peel in a third round.
    """
    ranks = [options.build(rank, 3, seed=7) for rank in range(3)]
    rack = make_rack(world=3, packets=ELEMS * 4 // 256 + 1, ops=[wire.OPS[op] for op in ranks[0].ops])
    done = []

    def combined(op, encoded):
        done.append(op)
        return through(rack, len(done) - 1, 1 + ranks[0].ops.index(op), op, encoded)

    for step in range(3):
        chosen = [np.random.default_rng((rank, step)).random(ELEMS) < 0.05 for rank in range(3)]
        grads = [np.where(own, x, 0).astype(np.float32) for own, x in zip(chosen, gradients(3), strict=True)]
        before = len(done)
        reduced = lockstep.reduce_chunk(ranks, grads, combined_by=combined, sequence=step)
        repaired = options.permille == 700
        third = repaired and options.phases == 1 and step > 0
        assert done[before:] == ["or_u32", "sum_i32", *(["sum_i32"] if third else [])]
        assert {one.encoding for one in reduced.outcomes} == {"sketch and repair" if repaired else "sketch"}
        dense = lockstep.reduce_chunk([codecs.Fixed32(3)] * 3, grads)
        assert all(got.tobytes() == dense.values[0].tobytes() for got in reduced.values)
