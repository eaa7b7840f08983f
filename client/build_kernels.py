"""Compiles pascaline._kernels, the C kernels of the codecs for CPU tensors, when the wheel is built.

Optional: where there is no compiler the package installs without them, and the codecs compute the same bits slowly.
With PASCALINE_REQUIRE_KERNELS=1 kernels that do not compile fail the installation, as `make build` wants it.
No -m flag and no -march: one binary for every CPU; the variants name their instruction sets in their own files.
"""

import os
from pathlib import Path

from cffi import FFI

KERNELS = Path("kernels")  # relative to this distribution, as setuptools wants its sources
SOURCES = ("job.c", "chunk.c", "scalar.c", "avx2.c", "avx512.c", "select.c")
SOURCES += ("pack.c", "pack_scalar.c", "pack_avx2.c", "pack_avx512.c", "stream.c")
SOURCES += ("sketch.c", "sketch_scalar.c", "sketch_avx2.c", "sketch_avx512.c")

ffi = FFI()
ffi.cdef((Path(__file__).parent / KERNELS / "psc_kernels.def.h").read_text())
ffi.set_source(
    "pascaline._kernels",
    '#include "psc_kernels.h"',
    sources=[str(KERNELS / name) for name in SOURCES],
    depends=[str(path) for path in sorted(KERNELS.glob("*.h"))],
    include_dirs=[str(KERNELS)],
    extra_compile_args=["-O3", "-ffp-contract=off"],
    optional=os.environ.get("PASCALINE_REQUIRE_KERNELS") != "1",
)
