"""The Triton kernels of lhc, as far as a machine without a GPU can show: bits by the interpreter, and cubins."""

from __future__ import annotations

import json

import pytest

from .test_thc_triton import run


def test_the_interpreter_gives_the_bits_of_the_reference():
    assert run("lhc_triton", TRITON_INTERPRET="1") == "8 chunks agree\n"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_kernels_compile(architecture, tmp_path):
    """A cubin each; no product is fused into a sum, and sums of buckets are atomic."""
    found = json.loads(run("lhc_triton_aot", architecture, TRITON_CACHE_DIR=str(tmp_path)))
    assert set(found) == {"sketch", "count", "find", "take", "finish", "scale"}
    for kernel, result in found.items():
        assert result["elf"] == "7f454c46", kernel
        assert result["fused"] == 0, kernel
        assert (result["atomics"] > 0) == (kernel in ("sketch", "count", "take", "finish")), kernel
    assert found["finish"]["barriers"] >= 2
