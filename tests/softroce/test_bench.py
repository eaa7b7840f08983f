"""The bench itself: RDMA between two of its ports, before anything of ours is on the wire."""

import pytest

from tests.softroce import rc_pair


@pytest.mark.parametrize("source, target", [("rxe0", "rxe1"), ("rxe3", "rxe2")])
@pytest.mark.parametrize("size_bytes", [1, rc_pair.PATH_MTU, 40 * rc_pair.PATH_MTU + 5])
def test_write_with_immediate_between_two_workers(source: str, target: str, size_bytes: int) -> None:
    arrived = rc_pair.transfer(source, target, size_bytes, imm=0x01020304)
    assert (arrived.imm, arrived.bytes) == (0x01020304, size_bytes)
