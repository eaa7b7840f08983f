"""What is measured: a scheme takes all ranks' gradients of one tensor and gives the sum that they would decode."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from pascaline.codec.thc import Params, reference, setting

SEED = 20250731


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A name, what one coordinate costs up and down in bits (scales and bitmaps included), and the sum."""

    name: str
    up: float
    down: float
    total: Callable[[list[Tensor], int], Tensor]


def thc_total(params: Params, grads: list[Tensor], sequence: int) -> Tensor:
    """Norms, their maximum, encode, table sum, decode: one chunk that is a whole tensor."""
    elems, coordinates = grads[0].numel(), params.coordinates(grads[0].numel())
    own = [reference.norms(params, x) for x in grads]
    if params.scale_per == "tensor":
        own = [reference.tensor_norm(params, one).expand(one.numel()) for one in own]
    scales = torch.stack(own).amax(0)
    packed = [torch.empty(params.packed_bytes(elems), dtype=torch.uint8) for _ in grads]
    for rank, (x, out) in enumerate(zip(grads, packed, strict=True)):
        reference.encode(params, rank, sequence, 0, x, None, None, 1.0, scales, coordinates, out)
    values = torch.empty(elems)
    reference.decode(
        params, sequence, 0, len(grads), reference.table_sum(params, packed), scales, coordinates, values
    )
    return values


def thc(name: str, params: Params) -> Scheme:
    """A setting of the machine as a scheme."""
    scale = 32 / 1024 if params.scale_per == "block" else 0.0
    return Scheme(
        name,
        params.wire_bits + scale,
        params.sum_bits + scale,
        lambda grads, sequence: thc_total(params, grads, sequence),
    )


def _narrow(dtype: torch.dtype) -> Callable[[list[Tensor], int], Tensor]:
    """Rounded on the way up, added in float32, and returned as that."""
    return lambda grads, _: torch.stack([x.to(dtype).to(torch.float32) for x in grads]).sum(0)


def _top_eighth(grads: list[Tensor], _: int) -> Tensor:
    """Each rank's largest eighth, added; without error feedback: one round."""
    total = torch.zeros_like(grads[0])
    for x in grads:
        kept = x.abs().topk(x.numel() // 8).indices
        total[kept] += x[kept]
    return total


def baselines() -> list[Scheme]:
    """Those that are no setting of thc. Down of top-k: a bitmap and the union's values, at most all of them."""
    return [
        Scheme("f16", 16, 32, _narrow(torch.float16)),
        Scheme("bf16", 16, 32, _narrow(torch.bfloat16)),
        Scheme("top-k 1/8", 1 + 32 / 8, 33, _top_eighth),
    ]


def settings(n: int) -> list[Scheme]:
    """The settings of thc by name."""
    names = ("thc", "thc-paper", "thc-release", "thc-uniform", "thc-uniform-max", "terngrad")
    return [thc(name, setting(name, n, SEED)) for name in names]


def switches(n: int) -> list[Scheme]:
    """thc with one part at a time as the paper has it, then all of them."""
    ours, paper = setting("thc", n, SEED), setting("thc-paper", n, SEED)
    off = {
        "everything on": {},
        "one scale per tensor": {"scale_per": "tensor"},
        "independent rounding": {"rounding": "independent"},
        "one rotation for the job": {"fresh_rotation": False},
        "the paper's table (g, p)": {"table": paper.table, "t": paper.t},
    }
    rows = [thc(name, dataclasses.replace(ours, **change)) for name, change in off.items()]
    return [*rows, thc("all four", dataclasses.replace(paper, fresh_rotation=False))]


def widths(n: int) -> list[Scheme]:
    """thc with other widths of an index, and with (g, p) chosen for a correlation that is known."""
    rows = [thc(f"thc, {bits} bits", setting("thc", n, SEED, bits)) for bits in (2, 3, 8)]
    return rows + [
        thc(f"thc, chosen for c = {c:g}", setting("thc", n, SEED, correlation=c)) for c in (0.0, 1.0)
    ]
