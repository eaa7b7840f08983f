"""What this machine lacks is said in one sentence, quickly. Run in processes of their own."""

from __future__ import annotations

import os
import shutil
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


# ---- The C kernels ----

HIDDEN = "import sys, numpy; sys.modules['pascaline._kernels'] = None\nfrom pascaline import codec\n"
THC = "thc = codec.for_array(numpy.dtype('f4'), 'thc', 0, 2)\n"


def test_without_kernels_thc_says_so_and_computes_in_pytorch() -> None:
    reduces = (
        "x, scales = numpy.ones(1024, numpy.float32), numpy.full(1, 32, numpy.float32)\n"
        "sent = numpy.zeros(512, numpy.uint8)\n"
        "thc.encode(codec.Place(0, 0, 1024), x, codec.NOTHING, scales, sent)\n"
        "sys.exit(f'sent {sent.any()}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + THC + reduces], capture_output=True, text=True, timeout=120
    )
    assert done.stderr.strip().splitlines()[-1] == "sent True"
    assert "UserWarning: thc computes in PyTorch, many times slower" in done.stderr
    assert "install gcc and python3-dev and then pascaline again" in done.stderr


def test_without_kernels_and_pytorch_thc_is_refused() -> None:
    line = last_line(HIDDEN + "sys.modules['torch'] = None\n" + THC)
    assert line.startswith("pascaline.errors.ConfigurationError: thc computes in its C kernels or in PyTorch")
    assert "pip install 'pascaline[torch]'" in line


@pytest.mark.parametrize("required", [False, True])
def test_kernels_that_do_not_compile_fail_the_installation_only_where_they_are_required(
    required: bool, tmp_path: Path
) -> None:
    client = Path(__file__).parents[2] / "client"
    for name in ("setup.py", "build_kernels.py"):
        shutil.copy(client / name, tmp_path)
    shutil.copytree(client / "kernels", tmp_path / "kernels")
    # In what the first compilation reads first, so that nothing is compiled before it.
    (tmp_path / "kernels/psc_kernels.h").write_text('#error "planted"\n')
    environment = {**os.environ, "PASCALINE_REQUIRE_KERNELS": str(int(required))}
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "planted" in done.stderr
    assert (done.returncode != 0) == required
