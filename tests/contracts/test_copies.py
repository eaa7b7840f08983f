"""Each contract is one file. The distributions link to it, and what they install is the file, not a link."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIES = {
    "client/src/pascaline/contract/psc_wire.def.h": "dpdk_c/contract/psc_wire.def.h",
    "client/src/pascaline/contract/control.py": "appliance/src/pascaline_appliance/contract/control.py",
    "monitoring/src/pascaline_exporter/contract/psc_stats.def.h": "dpdk_c/contract/psc_stats.def.h",
}


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_is_a_link_to_the_one_file(copy: str) -> None:
    assert (ROOT / copy).is_symlink()
    assert (ROOT / copy).resolve() == (ROOT / COPIES[copy]).resolve()


def test_nothing_else_is_in_a_contract_folder_twice() -> None:
    names = {Path(original).name for original in COPIES.values()}
    found = {
        str(path.relative_to(ROOT))
        for folder in ("appliance", "client", "dpdk_c", "monitoring")
        for path in (ROOT / folder).rglob("contract/*")
        if path.name in names and "build" not in path.parts
    }
    assert found == {*COPIES, *COPIES.values()}


@pytest.mark.parametrize("distribution", ["client", "monitoring"])
def test_a_wheel_holds_the_contract_itself(distribution: str, tmp_path: Path) -> None:
    for folder in (distribution, "dpdk_c/contract", "appliance/src"):  # the build leaves its traces in a copy
        shutil.copytree(
            ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("build")
        )
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", tmp_path, tmp_path / distribution], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for copy, original in COPIES.items():
            if copy.startswith(distribution):
                inside = copy.removeprefix(f"{distribution}/src/")
                assert archive.read(inside) == (ROOT / original).read_bytes(), inside
