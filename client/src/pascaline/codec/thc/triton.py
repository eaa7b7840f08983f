"""The codec thc in Triton, for CUDA tensors: the same three functions as `reference`, and the same bits.

Not verified on a GPU: run by Triton's interpreter and compiled for sm_80 and sm_90, no more, in tests/client. Every
launch asks for no FMA contraction, and division and square root for IEEE rounding. One program is one block. The random
draws follow their layout in docs/thc.md: a vector of 16 states makes 128 coordinates, so nothing is drawn that is not
used. Tensors are contiguous and lie on the current device.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pascaline.codec.thc import philox
from pascaline.codec.thc.params import BLOCK, MIN_NORM, Params

LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}
"""Options of every launch and every ahead-of-time compilation."""
_NORM_ROWS = 4
_EACH_CALL = ["sequence", "chunk", "rank", "n", "first", "elems", "key_low", "key_high", "contributors"]
"""Arguments that change from call to call: Triton must not compile anew for their values."""


def norms(params: Params, grad: Tensor, residual: Tensor | None = None, loss_scale: float = 1.0) -> Tensor:
    """As `reference.norms`."""
    blocks = params.blocks(grad.numel())
    out = torch.empty(blocks, dtype=torch.float32, device=grad.device)
    _norms[(-(-blocks // _NORM_ROWS),)](
        grad,
        residual if residual is not None else grad,
        out,
        grad.numel(),
        float(loss_scale),
        SQUARES=params.norm == "l2",
        FEEDBACK=residual is not None,
        MIN_NORM=MIN_NORM,
        ROWS=_NORM_ROWS,
        BLOCK=BLOCK,
        **LAUNCH,
    )
    return out


def encode(
    params: Params,
    rank: int,
    sequence: int,
    chunk: int,
    grad: Tensor,
    residual: Tensor | None,
    residual_out: Tensor | None,
    loss_scale: float,
    scales: Tensor,
    tensor_coordinates: int,
    packed: Tensor,
) -> None:
    """As `reference.encode`."""
    cells, levels = _tables(params, grad.device)
    fractions = 65536 * params.n if params.rounding == "stratified" else 65536
    key_low, key_high = philox.key_of(params.seed)
    for first, blocks, size in _launches(params, grad.numel()):
        kappa = float(params.kappa(tensor_coordinates, size))
        _encode[(blocks,)](
            grad,
            residual if residual is not None else grad,
            residual_out if residual_out is not None else grad,
            scales,
            packed,
            cells,
            levels,
            first,
            grad.numel(),
            rank,
            params.n,
            sequence,
            chunk,
            key_low,
            key_high,
            float(loss_scale),
            1 / loss_scale,
            kappa,
            _divisor(params, kappa, size),
            params.t,
            float(params.s_pos),
            float(params.half_inc),
            params.debias,
            _f32(1 / fractions),
            FEEDBACK=residual is not None,
            KEEP=residual_out is not None,
            STRATIFIED=params.rounding == "stratified",
            SHARED=params.rounding == "shared",
            ROTATE=params.rotate,
            FRESH=params.fresh_rotation,
            G=params.g,
            WIRE_BITS=params.wire_bits,
            SIZE=size,
            **LAUNCH,
        )


def decode(
    params: Params,
    sequence: int,
    chunk: int,
    contributors: int,
    sums: Tensor,
    scales: Tensor,
    tensor_coordinates: int,
    values: Tensor,
) -> None:
    """As `reference.decode`."""
    key_low, key_high = philox.key_of(params.seed)
    signed = sums if params.sum_bits == 8 else sums.view(torch.int16)
    for first, blocks, size in _launches(params, values.numel()):
        _decode[(blocks,)](
            signed,
            scales,
            values,
            first,
            values.numel(),
            contributors,
            sequence,
            chunk,
            key_low,
            key_high,
            _divisor(params, float(params.kappa(tensor_coordinates, size)), size),
            float(params.half_inc),
            params.debias,
            ROTATE=params.rotate,
            FRESH=params.fresh_rotation,
            G=params.g,
            SUM_MASK=(1 << params.sum_bits) - 1,
            SIZE=size,
            **LAUNCH,
        )


# ---- On the host ----


def _f32(value: float) -> float:
    """Rounded to float32, which is how Triton passes a float."""
    return float(torch.tensor(value, dtype=torch.float32))


def _divisor(params: Params, kappa: float, size: int) -> float:
    """What a decoded block is divided by; dividing by 1 is exact where it is not."""
    return _f32(kappa * size) if params.rotate else 1.0


def _launches(params: Params, elems: int) -> list[tuple[int, int, int]]:
    """(first coordinate, blocks, size) of the whole blocks and of the short one."""
    whole, rest = divmod(elems, BLOCK)
    found = [(0, whole, BLOCK)] if whole else []
    return found + ([(whole * BLOCK, 1, params.coordinates(rest))] if rest else [])


@functools.lru_cache(maxsize=64)
def _tables(params: Params, device: torch.device) -> tuple[Tensor, Tensor]:
    """K, int32 (g,), and T, f32 (2^bits,), on `device`."""
    cells = torch.tensor(params.cells, dtype=torch.int32, device=device)
    return cells, torch.tensor(params.table, dtype=torch.float32, device=device)


# ---- On the device ----


@triton.jit
def _philox(q, chunk, sequence, stream, key_low, key_high):
    """Four words for each q, uint32; docs/thc.md, "Random numbers"."""
    c0 = q.to(tl.uint32)
    c1 = tl.zeros_like(c0) + chunk.to(tl.uint32)
    c2 = tl.zeros_like(c0) + sequence.to(tl.uint32)
    c3 = tl.zeros_like(c0) + stream.to(tl.uint32)
    k0 = key_low.to(tl.uint32)
    k1 = key_high.to(tl.uint32)
    a = tl.full(c0.shape, 0xD2511F53, tl.uint32)
    b = tl.full(c0.shape, 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(7):
        high0 = tl.umulhi(a, c0)
        low0 = a * c0
        high2 = tl.umulhi(b, c2)
        low2 = b * c2
        c0 = high2 ^ c1 ^ k0
        c2 = high0 ^ c3 ^ k1
        c1 = low2
        c3 = low0
        k0 = k0 + tl.full([], 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full([], 0xBB67AE85, tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def _signs(first, chunk, sequence, key_low, key_high, SIZE: tl.constexpr):
    """1 where a coordinate is negated, uint32 (SIZE,); one state for 128 coordinates."""
    GROUPS: tl.constexpr = (SIZE + 127) // 128
    q = first // 128 + tl.arange(0, GROUPS)
    w0, w1, w2, w3 = _philox(q, chunk, sequence, first * 0, key_low, key_high)
    if SIZE < 128:
        words = tl.join(w0, w1)
    else:
        words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (GROUPS, 4))
    bits = (words[:, :, None] >> tl.arange(0, 32).to(tl.uint32)[None, None, :]) & 1
    return tl.reshape(bits, (SIZE,))


@triton.jit
def _halves(first, chunk, sequence, stream, key_low, key_high, SIZE: tl.constexpr):
    """16 random bits for each coordinate, uint32 (SIZE,); 16 states for 128 coordinates."""
    GROUPS: tl.constexpr = (SIZE + 127) // 128
    q = 16 * (first // 128 + tl.arange(0, GROUPS)[:, None]) + tl.arange(0, 16)[None, :]
    w0, w1, w2, w3 = _philox(q, chunk, sequence, stream, key_low, key_high)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # (group, state, word / 2, word mod 2)
    if SIZE < 128:
        halves = tl.permute(words & 0xFFFF, (0, 2, 3, 1))
    else:
        halves = tl.permute(tl.join(words & 0xFFFF, words >> 16), (0, 4, 2, 3, 1))
    return tl.reshape(halves, (SIZE,))


@triton.jit
def _flipped(y, sign):
    return (y.to(tl.uint32, bitcast=True) ^ (sign << 31)).to(tl.float32, bitcast=True)


@triton.jit
def _butterfly(y, H: tl.constexpr, SIZE: tl.constexpr):
    pairs = tl.permute(tl.reshape(y, (SIZE // (2 * H), 2, H)), (0, 2, 1))
    low, high = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), (SIZE,))


@triton.jit
def _rotated(y, SIZE: tl.constexpr):
    """Times the Hadamard matrix, h ascending."""
    y = _butterfly(y, 1, SIZE)
    y = _butterfly(y, 2, SIZE)
    y = _butterfly(y, 4, SIZE)
    y = _butterfly(y, 8, SIZE)
    y = _butterfly(y, 16, SIZE)
    y = _butterfly(y, 32, SIZE)
    if SIZE > 64:
        y = _butterfly(y, 64, SIZE)
    if SIZE > 128:
        y = _butterfly(y, 128, SIZE)
    if SIZE > 256:
        y = _butterfly(y, 256, SIZE)
    if SIZE > 512:
        y = _butterfly(y, 512, SIZE)
    return y


@triton.jit
def _input(grad, residual, at, live, loss_scale, FEEDBACK: tl.constexpr):
    x = tl.load(grad + at, mask=live, other=0.0)
    if FEEDBACK:
        x = x + tl.load(residual + at, mask=live, other=0.0) * loss_scale
    return x


@triton.jit
def _power(e):
    """2^e for e in -126 .. 127."""
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _fold(partial, W: tl.constexpr, ROWS: tl.constexpr):
    low, high = tl.split(tl.permute(tl.reshape(partial, (ROWS, 2, W)), (0, 2, 1)))
    return low + high


@triton.jit
def _squares(
    grad,
    residual,
    begin,
    elems,
    loss_scale,
    e,
    FEEDBACK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum of squares of each row times 2^-e, (ROWS,), in the order of docs/thc.md; begin, e: (ROWS, 1)."""
    first = tl.minimum(tl.maximum(-e, -126), 127)
    scale = _power(first)
    rest = _power(-e - first)
    partial = tl.zeros((ROWS, 64), tl.float32)
    for column in tl.static_range(0, BLOCK, 64):
        at = begin + column + tl.arange(0, 64)[None, :]
        x = _input(grad, residual, at, at < elems, loss_scale, FEEDBACK) * scale * rest
        partial = partial + x * x
    partial = _fold(partial, 32, ROWS)
    partial = _fold(partial, 16, ROWS)
    partial = _fold(partial, 8, ROWS)
    partial = _fold(partial, 4, ROWS)
    partial = _fold(partial, 2, ROWS)
    return _fold(partial, 1, ROWS)


@triton.jit(do_not_specialize=_EACH_CALL)
def _norms(
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
        x = _input(grad, residual, at, at < elems, loss_scale, FEEDBACK)
        largest = tl.maximum(largest, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    bits = tl.max(largest, axis=1, keep_dims=True)
    norm = bits.to(tl.float32, bitcast=True)
    if SQUARES:
        plain = _squares(grad, residual, begin, elems, loss_scale, bits * 0, FEEDBACK, ROWS, BLOCK)
        odd = (plain < 7.888609052210118e-31) | ~(plain < float("inf"))  # 2^-100
        sound = (bits > 0) & (bits < 0x7F800000)
        result = tl.sqrt_rn(plain)
        if tl.max((odd & sound).to(tl.int32)) > 0:
            # M < 2^-126 is taken as 2^-126: its block's norm is far below MIN_NORM whatever it is
            e = tl.where(sound, tl.maximum(bits >> 23, 1) - 126, 0)
            careful = tl.sqrt_rn(_squares(grad, residual, begin, elems, loss_scale, e, FEEDBACK, ROWS, BLOCK))
            first = tl.minimum(e, 127)
            result = tl.where(odd, careful * _power(first) * _power(e - first), result)
        norm = tl.where(odd & ~sound, norm, result)
    norm = tl.where(norm < MIN_NORM, 0.0, norm)
    tl.store(out + row, norm, mask=begin < elems)


@triton.jit(do_not_specialize=_EACH_CALL)
def _encode(
    grad,
    residual,
    residual_out,
    scales,
    packed,
    cells,
    levels,
    first,
    elems,
    rank,
    n,
    sequence,
    chunk,
    key_low,
    key_high,
    loss_scale,
    inverse_loss_scale,
    kappa,
    divisor,
    t,
    s_pos,
    half_inc,
    debias,
    fraction,
    FEEDBACK: tl.constexpr,
    KEEP: tl.constexpr,
    STRATIFIED: tl.constexpr,
    SHARED: tl.constexpr,
    ROTATE: tl.constexpr,
    FRESH: tl.constexpr,
    G: tl.constexpr,
    WIRE_BITS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """One block: rotate, round, pack, and what is left of it."""
    begin = first.to(tl.int64) + tl.program_id(0).to(tl.int64) * SIZE
    at = begin + tl.arange(0, SIZE)
    live = at < elems
    x = _input(grad, residual, at, live, loss_scale, FEEDBACK)
    scale = tl.load(scales + begin // 1024)
    finite = scale < float("inf")
    sound = finite & (scale != 0)
    usable = tl.where(sound, scale, 1.0)

    y = tl.where(sound, x * tl.div_rn(kappa, usable), 0.0)
    zero = (begin * 0).to(tl.int32)
    if ROTATE:
        if FRESH:
            sign = _signs(begin, chunk, sequence, key_low, key_high, SIZE)
        else:
            sign = _signs(begin * 0, zero, zero, key_low, key_high, SIZE)
        y = _rotated(_flipped(y, sign), SIZE)
    pos = tl.minimum(tl.maximum((y + t) * s_pos, 0.0), G * 1.0)
    k = tl.load(cells + tl.minimum(pos.to(tl.int32), G - 1))
    low = tl.load(levels + k)
    gap = tl.load(levels + k + 1) - low

    own_stream = zero + 2 if SHARED else zero + 2 + rank
    v = _halves(begin, chunk, sequence, own_stream, key_low, key_high, SIZE)
    if STRATIFIED:
        shared = _halves(begin, chunk, sequence, zero + 1, key_low, key_high, SIZE)
        stratum = (rank.to(tl.uint32) + ((shared * n.to(tl.uint32)) >> 16)) % n.to(tl.uint32)
        v = stratum * 65536 + v
    up = (v.to(tl.float32) + 0.5) * fraction * gap < pos - low
    index = tl.where(sound, k + up.to(tl.int32), 0)

    PER_BYTE: tl.constexpr = 8 // WIRE_BITS
    rows = tl.permute(tl.reshape(index, (SIZE // (64 * PER_BYTE), PER_BYTE, 64)), (0, 2, 1))
    shifted = rows << (tl.arange(0, PER_BYTE) * WIRE_BITS)[None, None, :]
    byte = tl.reshape(tl.sum(shifted, axis=2), (SIZE // PER_BYTE,))
    tl.store(packed + begin // PER_BYTE + tl.arange(0, SIZE // PER_BYTE), byte.to(tl.uint8))

    if KEEP:
        own = 2 * (low + tl.where(up, gap, 0.0)) - G * 1.0
        coef = tl.div_rn(usable * half_inc, divisor) * debias
        if ROTATE:
            own = _flipped(_rotated(own, SIZE) * coef, sign)
        else:
            own = own * coef
        left = (x - tl.where(sound, own, 0.0)) * inverse_loss_scale
        if FEEDBACK:
            left = tl.where(finite, left, tl.load(residual + at, mask=live, other=0.0))
        else:
            left = tl.where(finite, left, 0.0)
        tl.store(residual_out + at, left, mask=live)


@triton.jit(do_not_specialize=_EACH_CALL)
def _decode(
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
    if ROTATE:
        if FRESH:
            sign = _signs(begin, chunk, sequence, key_low, key_high, SIZE)
        else:
            zero = (begin * 0).to(tl.int32)
            sign = _signs(begin * 0, zero, zero, key_low, key_high, SIZE)
        value = _flipped(_rotated(w, SIZE) * coef, sign)
    else:
        value = w * coef
    tl.store(values + at, tl.where(sound, value, scale), mask=at < elems)


KERNELS: dict[str, Any] = {"norms": _norms, "encode": _encode, "decode": _decode}
