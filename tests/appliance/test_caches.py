"""What sysfs says about a CPU's L2, in the forms that machines have."""

from __future__ import annotations

from pathlib import Path

import pytest

from pascaline_appliance.caches import l2_bytes


@pytest.mark.parametrize(
    ("caches", "expected"),
    [
        ([("1", "32K"), ("1", "32K"), ("2", "1024K"), ("3", "32768K")], 1 << 20),
        ([("1", "48K"), ("2", "2048K")], 2 << 20),
        ([("1", "64K")], None),
        ([("2", "")], None),
        ([], None),
    ],
    ids=["three levels", "no L3", "no L2", "no size", "nothing"],
)
def test_the_l2_of_a_core(tmp_path: Path, caches: list[tuple[str, str]], expected: int | None) -> None:
    for number, (level, size) in enumerate(caches):
        index = tmp_path / f"cpu3/cache/index{number}"
        index.mkdir(parents=True)
        (index / "level").write_text(level + "\n")
        (index / "size").write_text(size + "\n")
    assert l2_bytes(3, tmp_path) == expected
    assert l2_bytes(4, tmp_path) is None
