"""The demonstration itself, where `make demo` does not run it: digits in full with 4 bits for each gradient."""

from __future__ import annotations

import pytest

from tests.softroce.bench import REPOSITORY

from .__main__ import main


@pytest.mark.long
def test_digits_in_full_with_thc() -> None:
    assert main(["--codec", "thc", "--out", str(REPOSITORY / "build" / "demo-thc")]) == 0
