"""The Triton kernels of thc and sparse, as far as a machine without a GPU can show: the same bits by the interpreter,
and cubins.

Each runs in a process of its own: TRITON_INTERPRET is read when kernels are defined.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(module: str, *arguments: str, **environment: str) -> str:
    """Standard output of a module of this folder; its failure is the test's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, "-m", f"tests.client.{module}", *arguments],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_interpreter_gives_the_bits_of_the_reference():
    assert run("thc_triton", TRITON_INTERPRET="1") == "127 chunks agree\n"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_kernels_compile_with_every_operation_rounded_alone(architecture, tmp_path):
    """A cubin each; in PTX no fma, and .rn on every float operation, which ptxas does not fuse or approximate."""
    found = json.loads(run("thc_triton_aot", architecture, TRITON_CACHE_DIR=str(tmp_path)))
    assert set(found) == {"norms", "encode", "decode"}
    for kernel, result in found.items():
        assert result["elf"] == "7f454c46", kernel
        assert result["rounded"] > 50, kernel
        assert result["not_rounded"] == [], kernel


def test_the_interpreter_gives_the_bits_of_sparse_s_reference():
    assert run("sparse_triton", TRITON_INTERPRET="1") == "36 cases agree\n"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_sparse_s_kernels_compile(architecture, tmp_path):
    found = json.loads(run("sparse_triton_aot", architecture, TRITON_CACHE_DIR=str(tmp_path)))
    assert found == dict.fromkeys(("mark", "count", "pack", "unpack"), "7f454c46")
