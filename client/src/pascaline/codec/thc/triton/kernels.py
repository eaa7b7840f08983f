"""thc's Triton kernels: norms, encode and decode; one program is one block, or a few of them.

Division and square root ask for IEEE rounding; their launches ask for no FMA contraction.
"""

import triton
import triton.language as tl

from pascaline.codec.thc.triton.device import (
    block_signs,
    gradient,
    halves,
    power,
    rotate,
    rotate_back,
    squares,
)

_EACH_CALL = ["sequence", "chunk", "rank", "n", "first", "elems", "key_low", "key_high", "contributors"]
"""Arguments that change from call to call: Triton must not compile anew for their values."""


@triton.jit(do_not_specialize=_EACH_CALL)
def norms(
    grad,
    residual,
    out,
    elems,
    loss_scale,
    SQUARES: tl.constexpr,
    FEEDBACK: tl.constexpr,
    MIN_NORM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ROWS blocks' norms. Padding a last block to BLOCK adds +0 to its sums, which leaves their bits."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    begin = row.to(tl.int64) * BLOCK
    largest = tl.zeros((ROWS, 64), tl.int32)
    for column in tl.static_range(0, BLOCK, 64):
        at = begin + column + tl.arange(0, 64)[None, :]
        x = gradient(grad, residual, at, at < elems, loss_scale, FEEDBACK)
        largest = tl.maximum(largest, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    bits = tl.max(largest, axis=1, keep_dims=True)
    norm = bits.to(tl.float32, bitcast=True)
    if SQUARES:
        plain = squares(grad, residual, begin, elems, loss_scale, bits * 0, FEEDBACK, ROWS, BLOCK)
        odd = (plain < 7.888609052210118e-31) | ~(plain < float("inf"))  # 2^-100
        sound = (bits > 0) & (bits < 0x7F800000)
        result = tl.sqrt_rn(plain)
        if tl.max((odd & sound).to(tl.int32)) > 0:
            # M < 2^-126 is taken as 2^-126: its block's norm is far below MIN_NORM whatever it is
            e = tl.where(sound, tl.maximum(bits >> 23, 1) - 126, 0)
            careful = tl.sqrt_rn(squares(grad, residual, begin, elems, loss_scale, e, FEEDBACK, ROWS, BLOCK))
            first = tl.minimum(e, 127)
            result = tl.where(odd, careful * power(first) * power(e - first), result)
        norm = tl.where(odd & ~sound, norm, result)
    norm = tl.where(norm < MIN_NORM, 0.0, norm)
    tl.store(out + row, norm, mask=begin < elems)


@triton.jit
def _goes_up(pos, low, gap, begin, rank, n, chunk, sequence, key_low, key_high, fraction,
             STRATIFIED: tl.constexpr, SHARED: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """Whether a coordinate rounds up, by its draw."""
    zero = (begin * 0).to(tl.int32)
    own_stream = zero + 2 if SHARED else zero + 2 + rank
    v = halves(begin, chunk, sequence, own_stream, key_low, key_high, SIZE)
    if STRATIFIED:
        shared = halves(begin, chunk, sequence, zero + 1, key_low, key_high, SIZE)
        stratum = (rank.to(tl.uint32) + ((shared * n.to(tl.uint32)) >> 16)) % n.to(tl.uint32)
        v = stratum * 65536 + v
    return (v.to(tl.float32) + 0.5) * fraction * gap < pos - low


@triton.jit
def _pack(packed, index, begin, WIRE_BITS: tl.constexpr, SIZE: tl.constexpr):
    PER_BYTE: tl.constexpr = 8 // WIRE_BITS
    rows = tl.permute(tl.reshape(index, (SIZE // (64 * PER_BYTE), PER_BYTE, 64)), (0, 2, 1))
    shifted = rows << (tl.arange(0, PER_BYTE) * WIRE_BITS)[None, None, :]
    byte = tl.reshape(tl.sum(shifted, axis=2), (SIZE // PER_BYTE,))
    tl.store(packed + begin // PER_BYTE + tl.arange(0, SIZE // PER_BYTE), byte.to(tl.uint8))


@triton.jit(do_not_specialize=_EACH_CALL)
def encode(
    grad, residual, residual_out, scales, packed, cells, levels,
    first, elems, rank, n, sequence, chunk, key_low, key_high,
    loss_scale, inverse_loss_scale, kappa, divisor, t, s_pos, half_inc, debias, fraction,
    FEEDBACK: tl.constexpr, KEEP: tl.constexpr, STRATIFIED: tl.constexpr, SHARED: tl.constexpr,
    ROTATE: tl.constexpr, FRESH: tl.constexpr, G: tl.constexpr, WIRE_BITS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One block: rotate, round, pack, and what is left of it."""
    begin = first.to(tl.int64) + tl.program_id(0).to(tl.int64) * SIZE
    at = begin + tl.arange(0, SIZE)
    live = at < elems
    x = gradient(grad, residual, at, live, loss_scale, FEEDBACK)
    scale = tl.load(scales + begin // 1024)
    finite = scale < float("inf")
    sound = finite & (scale != 0)
    usable = tl.where(sound, scale, 1.0)

    sign = block_signs(begin, chunk, sequence, key_low, key_high, ROTATE, FRESH, SIZE)
    y = rotate(tl.where(sound, x * tl.div_rn(kappa, usable), 0.0), sign, ROTATE, SIZE)
    pos = tl.minimum(tl.maximum((y + t) * s_pos, 0.0), G * 1.0)
    k = tl.load(cells + tl.minimum(pos.to(tl.int32), G - 1))
    low = tl.load(levels + k)
    gap = tl.load(levels + k + 1) - low
    up = _goes_up(
        pos, low, gap, begin, rank, n, chunk, sequence, key_low, key_high, fraction, STRATIFIED, SHARED, SIZE
    )
    _pack(packed, tl.where(sound, k + up.to(tl.int32), 0), begin, WIRE_BITS, SIZE)

    if KEEP:
        own = 2 * (low + tl.where(up, gap, 0.0)) - G * 1.0
        own = rotate_back(own, tl.div_rn(usable * half_inc, divisor) * debias, sign, ROTATE, SIZE)
        left = (x - tl.where(sound, own, 0.0)) * inverse_loss_scale
        old = 0.0
        if FEEDBACK:
            old = tl.load(residual + at, mask=live, other=0.0)
        tl.store(residual_out + at, tl.where(finite, left, old), mask=live)


@triton.jit(do_not_specialize=_EACH_CALL)
def decode(
    sums,
    scales,
    values,
    first,
    elems,
    contributors,
    sequence,
    chunk,
    key_low,
    key_high,
    divisor,
    half_inc,
    debias,
    ROTATE: tl.constexpr,
    FRESH: tl.constexpr,
    G: tl.constexpr,
    SUM_MASK: tl.constexpr,
    SIZE: tl.constexpr,
):
    """One block: sums to values."""
    begin = first.to(tl.int64) + tl.program_id(0).to(tl.int64) * SIZE
    at = begin + tl.arange(0, SIZE)
    scale = tl.load(scales + begin // 1024)
    sound = (scale < float("inf")) & (scale != 0)
    usable = tl.where(sound, scale, 1.0)
    w = (2 * (tl.load(sums + at).to(tl.int32) & SUM_MASK) - contributors * G).to(tl.float32)
    coef = tl.div_rn(usable * half_inc, divisor) * debias
    sign = block_signs(begin, chunk, sequence, key_low, key_high, ROTATE, FRESH, SIZE)
    value = rotate_back(w, coef, sign, ROTATE, SIZE)
    tl.store(values + at, tl.where(sound, value, scale), mask=at < elems)
