"""The Triton kernels of thc run by Triton's interpreter and compared with the reference bit by bit.

A process of its own, for TRITON_INTERPRET is read when the kernels are defined: `TRITON_INTERPRET=1 python -m
tests.client.thc_triton`. Prints how many chunks agreed; ends with the first that does not.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from pascaline.codec.thc import NAMES, Params, reference, setting
from pascaline.codec.thc import triton as kernels

from .thc_rack import normal, scales_of

SEED = 0xDEADBEEF12345678
LENGTHS = (1, 64, 100, 200, 400, 700, 1024, 1025, 3000)


def cases() -> list[tuple[str, Params]]:
    """Every setting, width, switch and accumulator."""
    named = [(name, setting(name, 3, SEED)) for name in NAMES]
    named += [(f"{bits} bits", setting("thc", 3, SEED, bits)) for bits in (2, 3, 8)]
    thc = setting("thc", 3, SEED)
    named += [
        ("u16", setting("thc", 300, SEED)),
        ("one rank", setting("thc", 1, SEED)),
        ("fixed rotation", dataclasses.replace(thc, fresh_rotation=False)),
        ("debiased", dataclasses.replace(thc, debias=1.03125)),
        ("one scale", dataclasses.replace(thc, scale_per="tensor")),
        ("normed, not rotated", dataclasses.replace(thc, rotate=False)),
        ("largest, rotated", dataclasses.replace(thc, norm="max", t=9.0)),
    ]
    return named


def odd(grads: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Gradients whose first block is one that norms and scales must get right."""
    found = []
    for value in (0.0, 1e-40, 1e-33, 1e-25, 1e25, 3e38, math.inf, math.nan):
        changed = [x.clone() for x in grads]
        for x in changed:
            x[:1024] = x[:1024].sign() * value
        found.append(changed)
    return found


def same(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Bits, not values: NaN equals NaN, +0 is not -0."""
    bits = [x.contiguous().view(torch.uint8) for x in (got, expected)]
    if not torch.equal(*bits):
        differ = (got != expected).nonzero().flatten()[:5].tolist()
        raise SystemExit(f"{name}: {got[differ].tolist()} instead of {expected[differ].tolist()} at {differ}")


def compare(name: str, params: Params, grads: list[torch.Tensor], residuals, loss_scale: float) -> None:
    """One chunk through both."""
    elems, sequence, chunk = grads[0].numel(), 0x80000001, 3
    olds = residuals or [None] * len(grads)
    for x, old in zip(grads, olds, strict=True):
        expected = reference.norms(params, x, old, loss_scale)
        same(f"{name}, norms", kernels.norms(params, x, old, loss_scale), expected)
    scales = scales_of(params, grads, residuals, loss_scale).contiguous()
    coordinates = params.coordinates(elems)
    for rank, (x, old) in enumerate(zip(grads, olds, strict=True)):
        made = []
        for implementation in (kernels, reference):
            packed, left = torch.empty(params.packed_bytes(elems), dtype=torch.uint8), torch.empty(elems)
            implementation.encode(
                params, rank, sequence, chunk, x, old, left, loss_scale, scales, coordinates, packed
            )
            made.append((packed, left))
        same(f"{name}, packed", made[0][0], made[1][0])
        same(f"{name}, residual", made[0][1], made[1][1])
    sums = reference.table_sum(params, [made[1][0]] * params.n)
    values = torch.empty(elems), torch.empty(elems)
    for implementation, out in zip((kernels, reference), values, strict=True):
        implementation.decode(params, sequence, chunk, params.n, sums, scales, coordinates, out)
    same(f"{name}, values", *values)


def main() -> None:
    """All cases."""
    compared = 0
    for at, (name, params) in enumerate(cases()):
        for elems in (LENGTHS[at % len(LENGTHS)], 1300):
            grads = normal(elems, at, ranks=2 if params.n > 1 else 1, correlation=0.5)
            compare(f"{name}, {elems}", params, grads, None, 1.0)
            compare(f"{name}, {elems}, feedback", params, grads, [x * 0.3 for x in grads], 256.0)
            compared += 2
    for name in ("thc", "thc-uniform-max", "thc-paper"):
        for grads in odd(normal(1100, 77, ranks=1)):
            compare(
                f"{name}, {float(grads[0][0])}", setting(name, 1, SEED), grads, [grads[0] * 0.0 + 0.5], 1.0
            )
            compared += 1
    params = setting("thc", 1, SEED, bits=8)
    for elems in LENGTHS:
        compare(f"8 bits, {elems}", params, normal(elems, elems), None, 1.0)
        compared += 1
    print(f"{compared} chunks agree")


if __name__ == "__main__":
    main()
