"""The core behind a door of Python: libpsc_core_test.so through cffi's ABI mode, with the headers' own declarations.

The library's path is in PSC_CORE_TEST_LIB, by default where meson builds it. The contract's two files are read
verbatim; psc_roce.h and psc_lane.h pass through the C preprocessor, so that nothing here repeats a declaration.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI

ROOT = Path(__file__).parents[2]
DPDK_C = ROOT / "dpdk_c"
LIBRARY = Path(os.environ.get("PSC_CORE_TEST_LIB", ROOT / "build/dpdk_c/libpsc_core_test.so"))
VERBATIM = [DPDK_C / "contract/psc_wire.def.h", DPDK_C / "contract/psc_stats.def.h"]


def _preprocessed() -> str:
    """psc_lane.h and psc_roce.h as plain declarations: system headers empty, the contract's macros known."""
    with tempfile.TemporaryDirectory() as empty:
        for name in ("stdbool.h", "stddef.h", "stdint.h"):
            (Path(empty) / name).touch()
        command = ["gcc", "-E", "-P", "-nostdinc", f"-I{empty}", "-DPSC_WIRE_H", "-DPSC_STATS_H"]
        for room in ("contract", "roce", "core"):
            command.append(f"-I{DPDK_C / room}")
        for path in VERBATIM:
            command += ["-imacros", str(path)]
        return subprocess.run(
            [*command, str(DPDK_C / "core/psc_lane.h")], check=True, capture_output=True, text=True
        ).stdout


def _load() -> tuple[FFI, Any]:
    ffi = FFI()
    for path in VERBATIM:
        ffi.cdef(path.read_text())
    ffi.cdef(_preprocessed())
    ffi.cdef("void *aligned_alloc(size_t alignment, size_t bytes); void free(void *memory);")
    if not LIBRARY.exists():
        raise FileNotFoundError(f"{LIBRARY} is not built: run `make build`, or set PSC_CORE_TEST_LIB")
    return ffi, ffi.dlopen(str(LIBRARY))


ffi, lib = _load()
libc = ffi.dlopen(None)


def names_of(enum: str) -> dict[int, str]:
    """Enumerators of a C enum by value, in lower case and without their two words of prefix."""
    return {
        value: name.split("_", 2)[2].lower() for value, name in ffi.typeof(f"enum {enum}").elements.items()
    }


DROPS = names_of("psc_drop")
FAULTS = names_of("psc_fault")
EVENTS = names_of("psc_event_kind")
