"""A rack per test; its memory must be given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .rack import Rack
from .wire import FAMILIES, Family


@pytest.fixture(params=FAMILIES, ids=str)
def family(request: pytest.FixtureRequest) -> Family:
    """Every test with a rack runs on IPv4 and on IPv6."""
    return request.param


@pytest.fixture
def make_rack(family: Family) -> Iterator[Callable[..., Rack]]:
    """Rack(...), closed after the test."""
    racks: list[Rack] = []

    def make(**options: Any) -> Rack:
        racks.append(Rack(family=family, **options))
        return racks[-1]

    yield make
    for rack in racks:
        rack.close()


@pytest.fixture
def rack(make_rack: Callable[..., Rack]) -> Rack:
    """Two workers, W = 2, slots of four packets."""
    return make_rack()
