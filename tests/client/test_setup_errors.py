"""What this machine lacks is said in one sentence, quickly. Run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SESSION = "import pascaline; pascaline.Session(rank=0, world_size=1, appliance='127.0.0.1:1')"


def last_line(code: str, **env: str) -> str:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, **env}
    )
    assert done.returncode == 1
    assert time.monotonic() - began < 20
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason="this machine has RDMA devices")
def test_no_rdma_device() -> None:
    line = last_line(SESSION)
    assert line.startswith("pascaline.errors.LocalSetupError: this machine has no RDMA device")
    assert "rdma link add" in line


def test_no_pyverbs() -> None:
    # The package itself needs pyverbs to be imported: hide it by an empty folder in place of the distribution's.
    hide = (
        "import sys, importlib.util, pathlib\n"
        "spec = importlib.util.find_spec('pascaline')\n"
        "source = pathlib.Path(spec.submodule_search_locations[0], 'link/verbs/library.py').read_text()\n"
        "space = {'__name__': 'library'}\n"
        "exec(compile(source, 'library.py', 'exec'), space)\n"
        "space['DISTRIBUTION_PACKAGES'] = pathlib.Path('/nonexistent')\n"
        "sys.path = [p for p in sys.path if 'dist-packages' not in p]\n"
        "space['require']()\n"
    )
    assert "apt install python3-pyverbs" in last_line(hide, PYTHONPATH=":".join(sys.path))


def test_importing_the_package_needs_neither_torch_nor_pyverbs() -> None:
    code = (
        "import sys, pascaline; sys.exit(any(m.split('.')[0] in ('torch', 'pyverbs') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
