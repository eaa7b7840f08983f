"""Compiles the Triton kernels of thc ahead of time to cubins, as a machine without a GPU can.

`python -m tests.client.thc_triton_aot sm_90` prints one JSON object: kernel to what was found in the result.
"""

from __future__ import annotations

import inspect
import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pascaline.codec.thc.params import BLOCK, MIN_NORM
from pascaline.codec.thc.triton import kernels, launch

POINTERS = {
    "grad": "*fp32", "residual": "*fp32", "residual_out": "*fp32", "out": "*fp32", "scales": "*fp32", "values": "*fp32",
    "packed": "*u8", "cells": "*i32", "levels": "*fp32", "sums": "*u8",
}  # fmt: skip
INTEGERS = {"first": "i64", "elems": "i64", "key_low": "i64", "key_high": "i64", "sequence": "i64"}
COUNTS = ("rank", "n", "chunk", "contributors")
CONSTANTS = {
    "SQUARES": True, "FEEDBACK": True, "KEEP": True, "STRATIFIED": True, "SHARED": False, "ROTATE": True, "FRESH": True,
    "MIN_NORM": MIN_NORM, "ROWS": launch.NORM_ROWS, "BLOCK": BLOCK, "G": 19, "WIRE_BITS": 4,
    "SIZE": 1024, "SUM_MASK": 255,
}  # fmt: skip


def compiled(kernel, architecture: int):
    """One kernel with everything on, as its launches ask for it."""
    signature, constants = {}, {}
    for name in inspect.signature(kernel.fn).parameters:
        if name in CONSTANTS:
            signature[name], constants[name] = "constexpr", CONSTANTS[name]
        else:
            signature[name] = (
                POINTERS.get(name) or INTEGERS.get(name) or ("i32" if name in COUNTS else "fp32")
            )
    source = ASTSource(kernel, signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=dict(launch.LAUNCH))


def described(kernel, architecture: int) -> dict[str, object]:
    """What a test wants to know of a compiled kernel."""
    result = compiled(kernel, architecture)
    operations = re.findall(
        r"^\s*((?:add|sub|mul|div|sqrt|fma|mad)\.\S*f32)\b", result.asm["ptx"], re.MULTILINE
    )
    rounded = [
        operation for operation in operations if re.fullmatch(r"(?:add|sub|mul|div|sqrt)\.rn\.f32", operation)
    ]
    return {
        "cubin_bytes": len(result.asm["cubin"]),
        "elf": result.asm["cubin"][:4].hex(),
        "rounded": len(rounded),
        "not_rounded": sorted(set(operations) - set(rounded)),
        "shared_bytes": result.metadata.shared,
    }


def main() -> None:
    """All kernels for one architecture."""
    architecture = int(sys.argv[1].removeprefix("sm_"))
    found = {name: described(getattr(kernels, name), architecture) for name in ("norms", "encode", "decode")}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
