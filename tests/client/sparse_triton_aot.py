"""Compiles the Triton kernels of sparse ahead of time to cubins, as a machine without a GPU can.

`python -m tests.client.sparse_triton_aot sm_90` prints one JSON object: kernel to the first bytes of the result.
"""

from __future__ import annotations

import inspect
import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pascaline.codec.sparse.triton import kernels, launch

TYPES = {"starts": "*i64", "least": "i32", "elems": "i64"}
CONSTANTS = {"BLOCK": launch.BLOCK}
NAMES = ("mark", "count", "pack", "unpack")


def compiled(name: str, architecture: int) -> bytes:
    """One kernel's cubin."""
    kernel, signature, constants = getattr(kernels, name), {}, {}
    for parameter in inspect.signature(kernel.fn).parameters:
        if parameter in CONSTANTS:
            signature[parameter], constants[parameter] = "constexpr", CONSTANTS[parameter]
        else:
            signature[parameter] = TYPES.get(parameter, "*i32")
    source = ASTSource(kernel, signature, constexprs=constants)
    target = GPUTarget("cuda", architecture, 32)
    return triton.compile(source, target=target, options=dict(launch.LAUNCH)).asm["cubin"]


def main() -> None:
    """All kernels for one architecture."""
    architecture = int(sys.argv[1].removeprefix("sm_"))
    print(json.dumps({name: compiled(name, architecture)[:4].hex() for name in NAMES}))


if __name__ == "__main__":
    main()
