"""lhc's Triton kernels: a program is a few blocks of 32 lanes, a tile (ROWS, 32).

Peeling is in rounds of two launches: `find` reads counts and values and writes what peels, `take` takes that out of
counts and table. A launch's end is what orders them. `finish` goes on alone, in one program, where rounds were too few.
"""

import triton
import triton.language as tl

from pascaline.codec.thc.triton.device import philox

_EACH_CALL = ["sequence", "chunk", "rows", "elems", "blocks", "key_low", "key_high"]
"""Arguments that change from call to call: Triton must not compile anew for their values."""


@triton.jit
def _bucket(j, words, rotations, rows, lane):
    row = tl.umulhi(words, tl.zeros_like(words) + rows.to(tl.uint32)).to(tl.int64) + j * rows
    rotation = ((rotations >> (5 * j)) & 31).to(tl.int64)
    return row[:, None] * 32 + ((lane + rotation[:, None]) & 31)


@triton.jit
def _buckets(block, lane, sequence, chunk, rows, key_low, key_high, PLACES: tl.constexpr):
    """Of a tile's elements in the three sub-tables, int64 (ROWS, 32)."""
    w0, w1, w2, w3 = philox(block, chunk, sequence, block * 0 + PLACES, key_low, key_high)
    return (
        _bucket(0, w0, w3, rows, lane),
        _bucket(1, w1, w3, rows, lane),
        _bucket(2, w2, w3, rows, lane),
    )


@triton.jit
def _sign(words, lane):
    return 1 - 2 * ((words[:, None] >> lane.to(tl.uint32)) & 1).to(tl.int32)


@triton.jit
def _signs(block, lane, sequence, chunk, key_low, key_high, SIGNS: tl.constexpr):
    """1 or -1, int32 (ROWS, 32), for the three sub-tables."""
    w0, w1, w2, _ = philox(block, chunk, sequence, block * 0 + SIGNS, key_low, key_high)
    return _sign(w0, lane), _sign(w1, lane), _sign(w2, lane)


@triton.jit
def _word(lanes, lane):
    """The lanes of a tile that are true as one bitmap word for each block, int32 (ROWS,)."""
    return tl.sum(tl.where(lanes, 1 << lane, 0), axis=1)


@triton.jit
def _lanes(words, lane):
    return ((words[:, None] >> lane) & 1) != 0


@triton.jit
def _rounded(x):
    """To the nearest integer, ties to even: above 2^23 a float32 is one."""
    size = tl.abs(x)
    near = (size + 8388608.0) - 8388608.0
    near = tl.where(size < 8388608.0, near, size)
    return tl.where(x < 0, -near, near).to(tl.int32)


@triton.jit
def _add(at, buckets, values, lanes):
    tl.atomic_add(at + buckets, values, mask=lanes, sem="relaxed")


@triton.jit(do_not_specialize=_EACH_CALL)
def sketch(
    values, left_out, table, elems, blocks, sequence, chunk, rows, key_low, key_high, first, rest,
    OMIT: tl.constexpr, PLACES: tl.constexpr, SIGNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Adds a tile's values to `table`, which has been zeroed."""
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, 32)[None, :]
    element = block.to(tl.int64)[:, None] * 32 + lane
    live = element < elems
    x = tl.load(values + element, mask=live, other=0.0)
    v = _rounded(x * first * rest)
    live = live & (v != 0)
    if OMIT:
        live = live & ~_lanes(tl.load(left_out + block, mask=block < blocks, other=0), lane)
    b0, b1, b2 = _buckets(block, lane, sequence, chunk, rows, key_low, key_high, PLACES)
    s0, s1, s2 = _signs(block, lane, sequence, chunk, key_low, key_high, SIGNS)
    _add(table, b0, s0 * v, live)
    _add(table, b1, s1 * v, live)
    _add(table, b2, s2 * v, live)


@triton.jit(do_not_specialize=_EACH_CALL)
def count(
    union, left, counts, elems, blocks, sequence, chunk, rows, key_low, key_high,
    PLACES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Counts a union's elements in `counts`, which has been zeroed; `left` becomes those of the chunk."""
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, 32)[None, :]
    live = block.to(tl.int64)[:, None] * 32 + lane < elems
    live = live & _lanes(tl.load(union + block, mask=block < blocks, other=0), lane)
    tl.store(left + block, _word(live, lane), mask=block < blocks)
    b0, b1, b2 = _buckets(block, lane, sequence, chunk, rows, key_low, key_high, PLACES)
    one = live.to(tl.int32)
    _add(counts, b0, one, live)
    _add(counts, b1, one, live)
    _add(counts, b2, one, live)


@triton.jit
def _alone(counts, buckets, lanes):
    return lanes & (tl.load(counts + buckets, mask=lanes, other=0) == 1)


@triton.jit
def _found(table, counts, b0, b1, b2, s0, s1, s2, live, VALUES: tl.constexpr):
    """Which lanes peel, and their integers."""
    a0 = _alone(counts, b0, live)
    a1 = _alone(counts, b1, live)
    a2 = _alone(counts, b2, live)
    v = live.to(tl.int32) * 0
    if VALUES:
        at = tl.where(a0, b0, tl.where(a1, b1, b2))
        sign = tl.where(a0, s0, tl.where(a1, s1, s2))
        v = sign * tl.load(table + at, mask=a0 | a1 | a2, other=0)
    return a0 | a1 | a2, v


@triton.jit
def _taken(table, counts, b0, b1, b2, s0, s1, s2, v, peels, VALUES: tl.constexpr):
    fewer = peels.to(tl.int32) * -1
    _add(counts, b0, fewer, peels)
    _add(counts, b1, fewer, peels)
    _add(counts, b2, fewer, peels)
    if VALUES:
        _add(table, b0, -s0 * v, peels)
        _add(table, b1, -s1 * v, peels)
        _add(table, b2, -s2 * v, peels)


@triton.jit(do_not_specialize=_EACH_CALL)
def find(
    table, left, turn, integers, counts, elems, blocks, sequence, chunk, rows, key_low, key_high,
    VALUES: tl.constexpr, PLACES: tl.constexpr, SIGNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Which elements are alone in a bucket: `turn`, a bitmap, and their integers. Nothing else changes."""
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, 32)[None, :]
    words = tl.load(left + block, mask=block < blocks, other=0)
    if tl.max((words != 0).to(tl.int32)) > 0:
        b0, b1, b2 = _buckets(block, lane, sequence, chunk, rows, key_low, key_high, PLACES)
        s0, s1, s2 = _signs(block, lane, sequence, chunk, key_low, key_high, SIGNS)
        peels, v = _found(table, counts, b0, b1, b2, s0, s1, s2, _lanes(words, lane), VALUES)
        tl.store(turn + block, _word(peels, lane), mask=block < blocks)
        if VALUES:
            tl.store(integers + block.to(tl.int64)[:, None] * 32 + lane, v, mask=peels)
    else:
        tl.store(turn + block, words, mask=block < blocks)


@triton.jit(do_not_specialize=_EACH_CALL)
def take(
    table, left, turn, integers, counts, elems, blocks, sequence, chunk, rows, key_low, key_high,
    VALUES: tl.constexpr, PLACES: tl.constexpr, SIGNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Takes what `find` has found out of counts and table."""
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, 32)[None, :]
    words = tl.load(turn + block, mask=block < blocks, other=0)
    if tl.max((words != 0).to(tl.int32)) > 0:
        b0, b1, b2 = _buckets(block, lane, sequence, chunk, rows, key_low, key_high, PLACES)
        s0, s1, s2 = _signs(block, lane, sequence, chunk, key_low, key_high, SIGNS)
        peels = _lanes(words, lane)
        v = peels.to(tl.int32) * 0
        if VALUES:
            v = tl.load(integers + block.to(tl.int64)[:, None] * 32 + lane, mask=peels, other=0)
        _taken(table, counts, b0, b1, b2, s0, s1, s2, v, peels, VALUES)
        old = tl.load(left + block, mask=block < blocks, other=0)
        tl.store(left + block, old & ~words, mask=block < blocks)


@triton.jit(do_not_specialize=_EACH_CALL)
def finish(
    table, left, turn, integers, counts, elems, blocks, sequence, chunk, rows, key_low, key_high,
    VALUES: tl.constexpr, PLACES: tl.constexpr, SIGNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program: pass after pass until nothing peels. Most often the first finds that."""
    lane = tl.arange(0, 32)[None, :]
    any_ = 1
    while any_ > 0:
        any_ = 0
        begin = 0
        while begin < blocks:
            block = begin + tl.arange(0, ROWS)
            words = tl.load(left + block, mask=block < blocks, other=0)
            if tl.max((words != 0).to(tl.int32)) > 0:
                b0, b1, b2 = _buckets(block, lane, sequence, chunk, rows, key_low, key_high, PLACES)
                s0, s1, s2 = _signs(block, lane, sequence, chunk, key_low, key_high, SIGNS)
                peels, v = _found(table, counts, b0, b1, b2, s0, s1, s2, _lanes(words, lane), VALUES)
                tl.debug_barrier()
                _taken(table, counts, b0, b1, b2, s0, s1, s2, v, peels, VALUES)
                found = _word(peels, lane)
                tl.store(left + block, words & ~found, mask=block < blocks)
                if VALUES:
                    tl.store(integers + block.to(tl.int64)[:, None] * 32 + lane, v, mask=peels)
                any_ = any_ | tl.max((found != 0).to(tl.int32))
                tl.debug_barrier()
            begin += ROWS


@triton.jit(do_not_specialize=_EACH_CALL)
def scale(integers, values, elems, first, rest, SIZE: tl.constexpr):
    """Integers to float32."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    v = tl.load(integers + at, mask=at < elems, other=0)
    tl.store(values + at, v.to(tl.float32) * first * rest, mask=at < elems)
