"""Compiles the Triton kernels of lhc ahead of time to cubins, as a machine without a GPU can.

`python -m tests.client.lhc_triton_aot sm_90` prints one JSON object: kernel to what was found in the result.
"""

from __future__ import annotations

import inspect
import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pascaline.codec.lhc.reference import STREAM_PLACES, STREAM_SIGNS
from pascaline.codec.lhc.triton import kernels, launch

NAMES = ("sketch", "count", "find", "take", "finish", "scale")
POINTERS = dict.fromkeys(("left_out", "table", "union", "left", "turn", "integers", "counts"), "*i32")
POINTERS["values"] = "*fp32"
CONSTANTS = {
    "OMIT": True, "VALUES": True, "PLACES": STREAM_PLACES, "SIGNS": STREAM_SIGNS, "ROWS": launch.ROWS, "SIZE": 256,
}  # fmt: skip


def compiled(kernel, architecture: int):
    """One kernel with everything on, as its launches ask for it."""
    signature, constants = {}, {}
    for name in inspect.signature(kernel.fn).parameters:
        if name in CONSTANTS:
            signature[name], constants[name] = "constexpr", CONSTANTS[name]
        else:
            signature[name] = POINTERS.get(name) or ("fp32" if name in ("first", "rest") else "i64")
    source = ASTSource(kernel, signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=dict(launch.LAUNCH))


def described(kernel, architecture: int) -> dict[str, object]:
    """What a test wants to know of a compiled kernel."""
    result = compiled(kernel, architecture)
    ptx = result.asm["ptx"]
    return {
        "elf": result.asm["cubin"][:4].hex(),
        "fused": len(re.findall(r"^\s*(?:@\S+\s+)?(?:fma|mad)\.\S*f32\b", ptx, re.MULTILINE)),
        "atomics": len(re.findall(r"\b(?:atom|red)\.\S*add", ptx)),
        "barriers": len(re.findall(r"\bbar\.sync|\bbarrier", ptx)),
    }


def main() -> None:
    """All kernels for one architecture."""
    architecture = int(sys.argv[1].removeprefix("sm_"))
    print(json.dumps({name: described(getattr(kernels, name), architecture) for name in NAMES}))


if __name__ == "__main__":
    main()
