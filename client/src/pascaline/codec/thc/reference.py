"""The codec thc in PyTorch: slow, obvious, and docs/thc.md in code, which the C and Triton kernels equal bit by bit.

One chunk at a time: norms -> (the ranks' maximum) -> encode -> (the aggregator's table sum) -> decode. Float arithmetic
is IEEE binary32, each operation rounded alone: nothing here may be fused or reordered. Source: arXiv 2302.08545,
with the changes that docs/thc.md lists.

Law: with l a block's scale, every decoded coordinate of an unclipped block is within n * max step * l of the sum of
the ranks' coordinates, and its expectation is that sum times `debias`; own + residual' is x, exactly up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from pascaline.codec.thc import philox
from pascaline.codec.thc.params import BLOCK, MIN_NORM, Params

_PARTIAL_SUMS = 64
_SMALL = 2.0**-100


def norms(params: Params, grad: Tensor, residual: Tensor | None = None, loss_scale: float = 1.0) -> Tensor:
    """Each block's own norm, f32 (blocks,), of the chunk `grad` (+ residual * loss_scale), f32 (elems,)."""
    x = _input(grad, residual, loss_scale)
    return torch.cat([_norms(params, block) for _, block in _blocks(params, x)])


def tensor_norm(params: Params, block_norms: Tensor) -> Tensor:
    """The one norm of a tensor with `scale_per` tensor, f32 (1,), of its blocks' norms in order, f32 (blocks,)."""
    rows = torch.nn.functional.pad(block_norms, (0, -block_norms.numel() % _PARTIAL_SUMS))
    return _norms(params, rows[None, :])


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
    """Write the chunk's indices to `packed`, u8 (packed_bytes,), and what they miss to `residual_out`, f32 (elems,).

    `grad`, `residual`: f32 (elems,); `residual` is unscaled, `grad` carries `loss_scale`, a power of two. `scales`: the
    ranks' maximum of each block's norm, f32 (blocks,). `tensor_coordinates`: of the whole tensor, used with one scale
    per tensor. `residual_out` may be `residual`, or takes its place when the round is accepted: the caller's affair.
    """
    x = _input(grad, residual, loss_scale)
    indices, missed = [], []
    for first, block in _blocks(params, x):
        scale = scales[first // BLOCK : first // BLOCK + len(block), None]
        index, own = _encode(params, rank, sequence, chunk, first, block, scale, tensor_coordinates)
        indices.append(index.reshape(-1))
        missed.append(torch.where(torch.isfinite(scale), block - own, block).reshape(-1))
    packed.copy_(pack(params, torch.cat(indices)))
    if residual_out is not None:
        fresh = torch.cat(missed)[: x.numel()] * _f32(1 / loss_scale)
        finite = torch.isfinite(scales).repeat_interleave(BLOCK)[: x.numel()]
        kept = torch.zeros_like(fresh) if residual is None else residual
        residual_out.copy_(torch.where(finite, fresh, kept))


def table_sum(params: Params, packed: Sequence[Tensor]) -> Tensor:
    """The aggregator's part: `packed`, u8 (packed_bytes,) of each rank, to sums in coordinate order, u8 or u16."""
    table = torch.tensor(params.wire_table, dtype=torch.int32)
    total = torch.stack([table[unpack(params, one)] for one in packed]).sum(0)
    return total.to(torch.uint8 if params.sum_bits == 8 else torch.uint16)


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
    """Write the chunk's sum over `contributors` ranks to `values`, f32 (elems,); `sums`: u8 or u16 (coordinates,)."""
    s = sums.to(torch.int32)
    out = []
    for first, block in _blocks(params, torch.zeros_like(values)):
        scale = scales[first // BLOCK : first // BLOCK + len(block), None]
        w = (
            (2 * s[first : first + block.numel()] - contributors * params.g)
            .to(torch.float32)
            .reshape(block.shape)
        )
        value = _from_steps(params, sequence, chunk, first, w, scale, tensor_coordinates)
        out.append(torch.where(torch.isfinite(scale) & (scale != 0), value, scale).reshape(-1))
    values.copy_(torch.cat(out)[: values.numel()])


def pack(params: Params, indices: Tensor) -> Tensor:
    """Bytes, u8: 64 at a time hold `unit` indices, of which byte j has numbers j, 64 + j, ... from its low bits up."""
    rows = indices.reshape(-1, 8 // params.wire_bits, 64).to(torch.int32)
    shifts = torch.arange(0, 8, params.wire_bits, dtype=torch.int32)[None, :, None]
    return (rows << shifts).sum(1).to(torch.uint8).reshape(-1)


def unpack(params: Params, packed: Tensor) -> Tensor:
    """Indices, int64, in coordinate order: the inverse of `pack`."""
    shifts = torch.arange(0, 8, params.wire_bits)[None, :, None]
    return (packed.to(torch.int64).reshape(-1, 1, 64) >> shifts & (1 << params.wire_bits) - 1).reshape(-1)


def rotate(y: Tensor) -> Tensor:
    """Each row of `y`, f32 (blocks, size), times the Hadamard matrix of its size; not normalised."""
    rows, size = y.shape
    h = 1
    while h < size:
        pair = y.reshape(rows, size // (2 * h), 2, h)
        low, high = pair[:, :, 0], pair[:, :, 1]
        y = torch.stack([low + high, low - high], dim=2).reshape(rows, size)
        h *= 2
    return y


# ---- the steps of docs/thc.md ----


def _f32(value: float | np.floating) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def _input(grad: Tensor, residual: Tensor | None, loss_scale: float) -> Tensor:
    return grad if residual is None else grad + residual * _f32(loss_scale)


def _blocks(params: Params, x: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(first coordinate, blocks of one size as rows): all the whole blocks, then the short one, padded with +0."""
    whole = x.numel() // BLOCK * BLOCK
    if whole:
        yield 0, x[:whole].reshape(-1, BLOCK)
    if rest := x.numel() - whole:
        size = params.coordinates(rest)
        yield whole, torch.nn.functional.pad(x[whole:], (0, size - rest)).reshape(1, size)


def _sum_of_squares(rows: Tensor) -> Tensor:
    """(rows,) of (rows, a multiple of 64), in the order that docs/thc.md prescribes."""
    partial = torch.zeros(len(rows), _PARTIAL_SUMS)
    for column in range(0, rows.shape[1], _PARTIAL_SUMS):
        x = rows[:, column : column + _PARTIAL_SUMS]
        partial = partial + x * x
    width = _PARTIAL_SUMS // 2
    while width:
        partial = partial[:, :width] + partial[:, width : 2 * width]
        width //= 2
    return partial[:, 0]


def _sqrt(x: Tensor) -> Tensor:
    """Correctly rounded, by numpy: torch's own (2.13, CPU, MKL) is off in the last bit of every fifth value."""
    return torch.from_numpy(np.sqrt(x.numpy()))


def _largest(rows: Tensor) -> Tensor:
    """(rows,): the largest |x|, compared as u32: NaN > Inf > finite."""
    bits = rows.contiguous().view(torch.int32) & 0x7FFFFFFF
    return bits.amax(1).view(torch.float32)


def _power(exponent: int) -> Tensor:
    """2^exponent for any exponent within float32's, as a factor."""
    return _f32(2.0**exponent)


def _careful_norm(row: Tensor, largest: Tensor) -> Tensor:
    """The l2 norm of one row whose squares overflow or vanish: of row * 2^-e, where its largest is in [1/2, 1)."""
    if largest == 0 or not torch.isfinite(largest):
        return largest
    e = int(torch.frexp(largest).exponent)
    first = max(-126, min(127, -e))
    scaled = row * _power(first) * _power(-e - first)
    norm = _sqrt(_sum_of_squares(scaled[None, :]))[0]
    first = min(127, e)
    return norm * _power(first) * _power(e - first)


def _norms(params: Params, rows: Tensor) -> Tensor:
    largest = _largest(rows)
    if params.norm == "max":
        result = largest
    else:
        squares = _sum_of_squares(rows)
        result = _sqrt(squares)
        for i in torch.nonzero((squares < _SMALL) | ~torch.isfinite(squares)).flatten().tolist():
            result[i] = _careful_norm(rows[i], largest[i])
    return torch.where(result < MIN_NORM, torch.zeros_like(result), result)


def _flip(params: Params, sequence: int, chunk: int, first: int, y: Tensor) -> Tensor:
    """`y` (blocks, size) negated where its coordinate's sign bit is 1; coordinates count from `first`."""
    if params.fresh_rotation:
        bits = philox.signs(params.seed, sequence, chunk, first, y.numel()).reshape(y.shape)
    else:
        bits = philox.signs(params.seed, 0, 0, 0, y.shape[1])[None, :]
    return torch.where(torch.from_numpy(bits), -y, y)


def _draws(params: Params, rank: int, sequence: int, chunk: int, first: int, count: int) -> Tensor:
    """What a fraction is compared with (u of step 4), f32 (count,), in (0, 1)."""
    stream = philox.PRIVATE + (0 if params.rounding == "shared" else rank)
    private = philox.halves(params.seed, sequence, chunk, stream, first, count)
    if params.rounding != "stratified":
        return (torch.from_numpy(private).to(torch.float32) + 0.5) * _f32(1 / 65536)
    shared = philox.halves(params.seed, sequence, chunk, philox.STRATA, first, count)
    v = 65536 * ((rank + (shared * params.n >> 16)) % params.n) + private
    return (torch.from_numpy(v).to(torch.float32) + 0.5) * _f32(1 / (65536 * params.n))


def _encode(
    params: Params,
    rank: int,
    sequence: int,
    chunk: int,
    first: int,
    x: Tensor,
    scale: Tensor,
    tensor_coordinates: int,
) -> tuple[Tensor, Tensor]:
    """Indices, int64, and the own decoded values, f32, both like `x` (blocks, size); 0 where the scale says nothing."""
    sound = torch.isfinite(scale) & (scale != 0)
    gain = _f32(params.kappa(tensor_coordinates, x.shape[1])) / scale
    y = torch.where(sound, x * gain, torch.zeros_like(x))
    if params.rotate:
        y = rotate(_flip(params, sequence, chunk, first, y))
    pos = torch.clamp((y + _f32(params.t)) * _f32(params.s_pos), 0.0, float(params.g))
    cells = torch.tensor(params.cells)
    k = cells[torch.clamp(pos.to(torch.int64), max=params.g - 1)]
    table = torch.tensor(params.table, dtype=torch.float32)
    u = _draws(params, rank, sequence, chunk, first, x.numel()).reshape(x.shape)
    index = torch.where(u * (table[k + 1] - table[k]) < pos - table[k], k + 1, k)
    index = torch.where(sound, index, torch.zeros_like(index))
    w = 2 * table[index] - float(params.g)
    own = _from_steps(params, sequence, chunk, first, w, scale, tensor_coordinates)
    return index, torch.where(sound, own, torch.zeros_like(own))


def _from_steps(
    params: Params, sequence: int, chunk: int, first: int, w: Tensor, scale: Tensor, tensor_coordinates: int
) -> Tensor:
    """Values of `w`, half steps from the middle of the range, f32 (blocks, size): the way back of step 2."""
    reach, debias = scale * _f32(params.half_inc), _f32(params.debias)
    if not params.rotate:
        return w * (reach * debias)
    size = w.shape[1]
    divisor = _f32(params.kappa(tensor_coordinates, size)) * _f32(float(size))
    return _flip(params, sequence, chunk, first, rotate(w) * (reach / divisor * debias))
