"""The kernels' benchmark measures all that there is; how fast it is, no test says."""

from __future__ import annotations

import pytest

from tests.bench import kernels

OPS = {
    "sum_i32", "sum_f32", "max_f32", "or_u32", "sum_f16", "sum_bf16",
    "lut4_u8", "lut4_u16", "lut2_u8", "lut2_u16", "lut8_u16",
}  # fmt: skip


def test_every_op_is_measured_at_every_level() -> None:
    runs = [run for variant in kernels.VARIANTS if (run := kernels.measured(variant, 1)) is not None]
    if not runs:
        pytest.skip("this CPU runs none of the pairs of variants")
    for run in runs:
        made = kernels.rows((run["arith"], run["crc"]), kernels.joined([run, run]))
        seen = {(row["work"], row["op"], row["values"], row["level"]) for row in made}
        assert len(seen) == len(made) == len(run["rows"])
        for level in kernels.LEVELS:
            assert {op for work, op, _, at in seen if (work, at) == ("combine", level)} == OPS
            assert ("icrc", "", 1, level) in seen
        assert all(row["ns_of_4_kib"]["median"] > 0 and row["over_memcpy"]["median"] > 0 for row in made)


def test_a_variant_that_is_not_there_is_left_out() -> None:
    assert kernels.measured(("sse", "slicing"), 1) is None
    assert kernels.measured(("scalar", "sse"), 1) is None
