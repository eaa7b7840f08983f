"""What thc's Triton kernels are made of: random draws, rotation, sums; all are compiled into their callers.

The draws follow their layout in docs/thc.md: a vector of 16 states makes 128 coordinates, so nothing is drawn that is
not used.
"""

import triton
import triton.language as tl


@triton.jit
def philox(q, chunk, sequence, stream, key_low, key_high):
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
    w0, w1, w2, w3 = philox(q, chunk, sequence, first * 0, key_low, key_high)
    if SIZE < 128:
        words = tl.join(w0, w1)
    else:
        words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (GROUPS, 4))
    bits = (words[:, :, None] >> tl.arange(0, 32).to(tl.uint32)[None, None, :]) & 1
    return tl.reshape(bits, (SIZE,))


@triton.jit
def halves(first, chunk, sequence, stream, key_low, key_high, SIZE: tl.constexpr):
    """16 random bits for each coordinate, uint32 (SIZE,); 16 states for 128 coordinates."""
    GROUPS: tl.constexpr = (SIZE + 127) // 128
    q = 16 * (first // 128 + tl.arange(0, GROUPS)[:, None]) + tl.arange(0, 16)[None, :]
    w0, w1, w2, w3 = philox(q, chunk, sequence, stream, key_low, key_high)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # (group, state, word / 2, word mod 2)
    if SIZE < 128:
        halves = tl.permute(words & 0xFFFF, (0, 2, 3, 1))
    else:
        halves = tl.permute(tl.join(words & 0xFFFF, words >> 16), (0, 4, 2, 3, 1))
    return tl.reshape(halves, (SIZE,))


@triton.jit
def block_signs(
    begin, chunk, sequence, key_low, key_high, ROTATE: tl.constexpr, FRESH: tl.constexpr, SIZE: tl.constexpr
):
    """The signs of the block that begins at `begin`; 0 where nothing is rotated."""
    if ROTATE:
        if FRESH:
            sign = _signs(begin, chunk, sequence, key_low, key_high, SIZE)
        else:
            zero = (begin * 0).to(tl.int32)
            sign = _signs(begin * 0, zero, zero, key_low, key_high, SIZE)
    else:
        sign = tl.zeros((SIZE,), tl.uint32)
    return sign


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
def rotate(x, sign, ROTATE: tl.constexpr, SIZE: tl.constexpr):
    """X with its signs, times the Hadamard matrix."""
    if ROTATE:
        x = _rotated(_flipped(x, sign), SIZE)
    return x


@triton.jit
def rotate_back(w, coef, sign, ROTATE: tl.constexpr, SIZE: tl.constexpr):
    """The way back, times `coef`."""
    if ROTATE:
        value = _flipped(_rotated(w, SIZE) * coef, sign)
    else:
        value = w * coef
    return value


@triton.jit
def gradient(grad, residual, at, live, loss_scale, FEEDBACK: tl.constexpr):
    """What is encoded: a block of the gradient, and of what earlier steps left."""
    x = tl.load(grad + at, mask=live, other=0.0)
    if FEEDBACK:
        x = x + tl.load(residual + at, mask=live, other=0.0) * loss_scale
    return x


@triton.jit
def power(e):
    """2^e for e in -126 .. 127."""
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _fold(partial, W: tl.constexpr, ROWS: tl.constexpr):
    low, high = tl.split(tl.permute(tl.reshape(partial, (ROWS, 2, W)), (0, 2, 1)))
    return low + high


@triton.jit
def squares(
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
    scale = power(first)
    rest = power(-e - first)
    partial = tl.zeros((ROWS, 64), tl.float32)
    for column in tl.static_range(0, BLOCK, 64):
        at = begin + column + tl.arange(0, 64)[None, :]
        x = gradient(grad, residual, at, at < elems, loss_scale, FEEDBACK) * scale * rest
        partial = partial + x * x
    partial = _fold(partial, 32, ROWS)
    partial = _fold(partial, 16, ROWS)
    partial = _fold(partial, 8, ROWS)
    partial = _fold(partial, 4, ROWS)
    partial = _fold(partial, 2, ROWS)
    return _fold(partial, 1, ROWS)
