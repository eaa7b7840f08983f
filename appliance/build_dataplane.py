"""Compiles pascaline_appliance._dataplane against libpascaline, which pkg-config finds.

The contracts are read verbatim from the data plane's folder; in API mode the C compiler compares every prototype, enum
and struct with the library's own headers, so drift does not build. Not yet installed: point PKG_CONFIG_PATH to
build/dpdk_c/meson-uninstalled.
"""

import subprocess
from pathlib import Path

from cffi import FFI

CONTRACTS = ("contract/psc_wire.def.h", "contract/psc_stats.def.h", "ctl/psc_ctl.def.h")


def pkg_config(*options: str) -> list[str]:
    """What pkg-config says about libpascaline, word by word."""
    answer = subprocess.run(["pkg-config", *options, "pascaline"], check=True, capture_output=True, text=True)
    return answer.stdout.split()


headers = Path(pkg_config("--variable=headerdir")[0])
library_dirs = [option.removeprefix("-L") for option in pkg_config("--libs-only-L")]
library_dirs += pkg_config("--variable=libdir")

ffi = FFI()
for contract in CONTRACTS:
    ffi.cdef((headers / contract).read_text())
ffi.set_source(
    "pascaline_appliance._dataplane",
    '#include "psc_ctl.h"',
    include_dirs=[str(headers / "ctl"), str(headers / "contract")],
    libraries=["pascaline"],
    library_dirs=library_dirs,
    runtime_library_dirs=library_dirs,
)
