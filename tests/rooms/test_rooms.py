"""Dependencies point one way: every source file against the table, and planted violations that the check finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from .check import c_violations, python_violations
from .table import C_ROOMS, DPDK_ROOM, SOURCES

ROOT = Path(__file__).parents[2]
C_FILES = sorted(path for path in (ROOT / "dpdk_c").glob("*/*.[ch]"))
HOME = {path.name: path.parent.name for path in C_FILES if path.suffix == ".h"}


def python_modules() -> dict[str, Path]:
    modules = {}
    for source in SOURCES.values():
        for path in (ROOT / source).rglob("*.py"):
            parts = path.relative_to(ROOT / source).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


MODULES = python_modules()


def test_every_folder_of_dpdk_c_is_a_room() -> None:
    assert {path.parent.name for path in C_FILES} <= set(C_ROOMS)
    nested = [path for path in (ROOT / "dpdk_c").rglob("*.[ch]") if path not in C_FILES]
    assert not nested, "a file below a room's folder would escape the check"


def test_the_table_has_no_circle() -> None:
    order: list[str] = []
    waiting = dict(C_ROOMS)
    while waiting:
        free = [room for room, knows in waiting.items() if not knows - set(order)]
        assert free, f"circle among {sorted(waiting)}"
        order += free
        for room in free:
            del waiting[room]
    assert order.index(DPDK_ROOM) > order.index("core")


@pytest.mark.parametrize("path", C_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_c_file_keeps_to_its_room(path: Path) -> None:
    assert list(c_violations(path.parent.name, path.name, path.read_text(), HOME)) == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_python_module_keeps_to_its_room(module: str) -> None:
    path = MODULES[module]
    assert list(python_violations(module, path.read_text(), path.name == "__init__.py")) == []


PLANTED_HOME = {
    "psc_roce.h": "roce",
    "psc_qp.h": "qp",
    "psc_agg.h": "agg",
    "psc_lane.h": "core",
    "psc_port.h": "io",
}


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("qp", '#include "psc_agg.h"'),
        ("agg", '#include "psc_qp.h"'),
        ("agg", "  #  include <psc_roce.h>"),
        ("roce", '#include "psc_lane.h"'),
        ("core", '#include "psc_port.h"'),
        ("core", "#include <rte_mbuf.h>"),
        ("ctl", "#include <rte_eal.h>"),
        ("fuzz", '#include "psc_port.h"'),
        ("fuzz", "#include <rte_mbuf.h>"),
        ("core", '#include "psc_nowhere.h"'),
    ],
)
def test_a_planted_include_is_found(room: str, line: str) -> None:
    text = f"#include <stdint.h>\n{line}\nint x;\n"
    assert len(list(c_violations(room, "planted.c", text, PLANTED_HOME))) == 1


@pytest.mark.parametrize(
    ("room", "line"),
    [("io", "#include <rte_mbuf.h>"), ("core", '#include "psc_agg.h"'), ("qp", '#include "psc_qp.h"')],
)
def test_an_allowed_include_is_not(room: str, line: str) -> None:
    assert list(c_violations(room, "sound.c", line, PLANTED_HOME)) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("pascaline.codec.f32", "from pascaline import plan"),
        ("pascaline.codec.f32", "from ..link import verbs"),
        ("pascaline.plan", "import pascaline.codec"),
        ("pascaline.link.verbs", "from pascaline.session import Session"),
        ("pascaline.link.base", "import pyverbs.device"),
        ("pascaline.session", "def f():\n    from pyverbs import mr"),
        ("pascaline.session", "from torch import distributed"),
        ("pascaline.link.emulated.ops", "import torch.distributed as dist"),
        ("pascaline.reduce", "from torch.nn.parallel import DistributedDataParallel"),
        ("pascaline.session", "import importlib\nimportlib.import_module('pascaline_appliance.config')"),
        ("pascaline.torch.hook", "from pascaline.link import verbs"),
        ("pascaline.newroom", "x = 1"),
        ("pascaline_exporter.segment", "import torch"),
        ("pascaline_exporter.segment", "from pascaline_exporter.collector import SegmentCollector"),
        ("pascaline_appliance.jobs", "from torch import Tensor"),
        ("pascaline_appliance.jobs", "from pascaline_appliance._dataplane import ffi"),
        ("pascaline_appliance.jobs", "from pascaline_appliance import _dataplane"),
        ("pascaline_appliance.jobs", "from . import _dataplane"),
        ("pascaline_appliance.jobs", "import pascaline"),
        ("pascaline.codec.f32", "from pascaline import Session"),
        ("pascaline.codec.thc.reference", "from pascaline import _kernels"),
    ],
)
def test_a_planted_import_is_found(module: str, line: str) -> None:
    assert len(list(python_violations(module, line))) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("pascaline.link.verbs", "import pyverbs.device"),
        ("pascaline.torch.hook", "from torch.distributed import GradBucket"),
        ("pascaline.link.emulated.link", "import torch.distributed as dist"),
        ("pascaline.torch.hook", "from ..session import Session"),
        ("pascaline.codec.f32", "import torch\nfrom . import base"),
        ("pascaline_appliance.dataplane", "from pascaline_appliance import _dataplane"),
        ("pascaline.codec.thc.kernels", "from pascaline import _kernels"),
    ],
)
def test_an_allowed_import_is_not(module: str, line: str) -> None:
    assert list(python_violations(module, line)) == []
