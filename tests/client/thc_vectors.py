"""Golden vectors of the codec thc: made by the reference, kept in tests/vectors/thc.json.

`python -m tests.client.thc_vectors` writes them anew, which is right only when docs/thc.md changes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import torch

from pascaline.codec.thc import NAMES, Params, setting

from .thc_rack import Round, exchange, normal

PATH = Path(__file__).parents[1] / "vectors" / "thc.json"
RANKS, LENGTHS, SEQUENCE, CHUNK, LOSS_SCALE = 2, (1, 200, 1153), 0x01020304, 5, 8.0


def cases() -> dict[str, Params]:
    """The settings whose bits are kept."""
    seed = 0xFEDCBA9876543210
    named = {name: setting(name, RANKS, seed) for name in NAMES}
    named |= {f"thc-{bits}-bits": setting("thc", RANKS, seed, bits) for bits in (2, 3, 8)}
    named["fixed-rotation-debiased"] = dataclasses.replace(named["thc"], fresh_rotation=False, debias=1.03125)
    return named


def text(tensor: torch.Tensor) -> str:
    """Little-endian bytes in hexadecimal."""
    return tensor.contiguous().view(torch.uint8).numpy().tobytes().hex()


def short(tensor: torch.Tensor) -> str:
    """`text`, or its SHA-256 where that is a kilobyte or more."""
    whole = bytes.fromhex(text(tensor))
    return whole.hex() if len(whole) < 1024 else "sha256 " + hashlib.sha256(whole).hexdigest()


def array(hexadecimal: str, dtype: torch.dtype) -> torch.Tensor:
    """The inverse of `text`."""
    return torch.frombuffer(bytearray.fromhex(hexadecimal), dtype=dtype)


def inputs(elems: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients (loss scale included) and residuals of all ranks, spread over magnitudes by position."""
    magnitudes = torch.logspace(-2, 2, elems)
    grads = [x * magnitudes * LOSS_SCALE for x in normal(elems, 31, RANKS, 0.5)]
    return grads, [e * magnitudes * 0.25 for e in normal(elems, 32, RANKS)]


def outputs(params: Params, grads, residuals) -> Round:
    """One chunk by the reference."""
    return exchange(params, grads, residuals, LOSS_SCALE, SEQUENCE, CHUNK)


def described(one: Round) -> dict[str, object]:
    """A round as JSON."""
    return {
        "scales": text(one.scales),
        "packed": [short(packed) for packed in one.packed],
        "sums": short(one.sums),
        "values": short(one.values),
        "residuals": [short(left) for left in one.residuals],
    }


def main() -> None:
    """Write the file."""
    made = {
        "sequence": SEQUENCE,
        "chunk": CHUNK,
        "loss_scale": LOSS_SCALE,
        "inputs": [
            {
                "elems": n,
                "grads": [text(x) for x in inputs(n)[0]],
                "residuals": [text(e) for e in inputs(n)[1]],
            }
            for n in LENGTHS
        ],
        "cases": [
            {
                "name": name,
                "params": dataclasses.asdict(params),
                "outputs": [described(outputs(params, *inputs(n))) for n in LENGTHS],
            }
            for name, params in cases().items()
        ],
    }
    PATH.write_text(json.dumps(made, indent=0) + "\n")


if __name__ == "__main__":
    main()
