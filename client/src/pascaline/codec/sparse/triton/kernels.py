"""sparse's Triton kernels, one program for each `BLOCK` elements. Bitmaps are as docs/sparse.md has them."""

import triton
import triton.language as tl


@triton.jit
def mark(x, bitmap, counts, least, elems, BLOCK: tl.constexpr):
    """Which of x, as int32 (elems,), are at least `least` without their sign: to `bitmap`; how many to `counts`."""
    block = tl.program_id(0).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    size = tl.load(x + at, mask=at < elems, other=0) & 0x7FFFFFFF
    bits = (size >= least).to(tl.int32)
    words = tl.sum(tl.reshape(bits, (BLOCK // 32, 32)) << tl.arange(0, 32)[None, :], axis=1)
    word = block * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    tl.store(bitmap + word, words, mask=word * 32 < elems)
    tl.store(counts + block, tl.sum(bits, axis=0))


@triton.jit
def count(bitmap, counts, elems, BLOCK: tl.constexpr):
    """How many bits are set in each block's words."""
    block = tl.program_id(0).to(tl.int64)
    bits = _bits(bitmap, block * BLOCK + tl.arange(0, BLOCK), elems)
    tl.store(counts + block, tl.sum(bits, axis=0))


@triton.jit
def pack(x, chosen, starts, packed, elems, BLOCK: tl.constexpr):
    """A block's chosen elements from `starts` on."""
    block = tl.program_id(0).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    bits = _bits(chosen, at, elems)
    place = tl.load(starts + block) + tl.cumsum(bits, axis=0) - bits
    value = tl.load(x + at, mask=bits == 1, other=0)
    tl.store(packed + place, value, mask=bits == 1)


@triton.jit
def unpack(packed, chosen, starts, values, elems, BLOCK: tl.constexpr):
    """A block's elements from `packed`, 0 where none was chosen."""
    block = tl.program_id(0).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    bits = _bits(chosen, at, elems)
    place = tl.load(starts + block) + tl.cumsum(bits, axis=0) - bits
    tl.store(values + at, tl.load(packed + place, mask=bits == 1, other=0), mask=at < elems)


@triton.jit
def _bits(bitmap, at, elems):
    """0 or 1 for each element; 0 beyond the last."""
    words = tl.load(bitmap + at // 32, mask=at < elems, other=0)
    return (words >> (at % 32).to(tl.int32)) & 1
