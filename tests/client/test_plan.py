"""plan: chunks cover an array exactly; remote addresses take apart as the contract says."""

import typing

import cffi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pascaline import plan
from pascaline.contract import control, wire


@given(st.integers(0, 10_000), st.integers(1, 700))
def test_chunks_cover_every_element_once_and_in_order(elems: int, chunk_elems: int) -> None:
    chunks = list(plan.chunks(elems, chunk_elems))
    assert [i for c in chunks for i in range(c.begin, c.end)] == list(range(elems))
    assert [c.number for c in chunks] == list(range(len(chunks)))
    assert all(c.end - c.begin == chunk_elems for c in chunks[:-1])


@pytest.mark.parametrize("elems, lengths", [(0, []), (1, [1]), (4, [4]), (5, [4, 1]), (8, [4, 4])])
def test_only_the_last_chunk_is_short(elems: int, lengths: list[int]) -> None:
    assert [c.end - c.begin for c in plan.chunks(elems, 4)] == lengths


@given(st.integers(0, 2**62 - 1), st.integers(0, 15), st.integers(0, 2**32 - 1))
def test_a_remote_address_is_what_the_appliance_takes_apart(base: int, window: int, round_: int) -> None:
    address = plan.remote_address(base, window, round_)
    assert address < 1 << 64
    offset = address - base
    assert (offset >> 56, offset >> 24 & 0xFFFFFFFF, offset & 0xFFFFFF) == (window, round_, 0)


def test_rounds_wrap_at_32_bits() -> None:
    assert plan.remote_address(7, 2, 2**32 + 5) == plan.remote_address(7, 2, 5)


def test_the_layout_is_the_header_s() -> None:
    ffi = cffi.FFI()
    ffi.cdef(wire.HEADER.read_text())
    lib = ffi.dlopen(None)
    assert (
        (lib.PSC_VA_WINDOW_SHIFT, lib.PSC_VA_ROUND_SHIFT)
        == (wire.VA_WINDOW_SHIFT, wire.VA_ROUND_SHIFT)
        == (56, 24)
    )
    assert wire.OPS["max_f32"] == lib.PSC_OP_MAX_F32
    ops = set(typing.get_args(control.Op))
    assert set(wire.OPS) == {"probe", *ops}
    assert set(wire.UNIT_BYTES) == set(wire.EXPANSIONS) == ops
    assert (wire.UNIT_BYTES["sum_f16"], wire.UNIT_BYTES["lut4_u8"]) == (4, 64)
    assert (wire.EXPANSIONS["sum_bf16"], wire.EXPANSIONS["lut2_u16"]) == (2, 8)
    assert (wire.TABLE_ENTRIES["lut8_u16"], wire.SUM_MAX["lut4_u8"]) == (256, 255)


def test_an_immediate_is_known() -> None:
    # What gzip(1) writes behind the bytes 01 00 00 00 02 00 00 00 03 00 00 00 04 00 00 00 05 00 00 00.
    assert wire.immediate(1, 2, 3, 4, 5) == 0x2918A990
    assert wire.immediate(2**32 + 1, 2, 3, 4, 2**32 + 5) == wire.immediate(1, 2, 3, 4, 5)


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF))
def test_immediates_tell_by_how_many_elements_tensors_differ(elems: int, other: int, codec: int) -> None:
    immediates = [wire.immediate(1, 2, 3, 4, each, codec) for each in (elems, other)]
    assert wire.elems_apart(*immediates) == elems ^ other


@given(st.integers(0, 1 << 20), st.integers(0, 100), st.integers(1, 16))
def test_every_chunk_goes_over_one_lane_in_order(sequence: int, chunks: int, lanes: int) -> None:
    shares = [plan.lane_chunks(sequence, chunks, lane, lanes) for lane in range(lanes)]
    assert sorted(chunk for share in shares for chunk in share) == list(range(chunks))
    for lane, share in enumerate(shares):
        assert all((sequence + chunk) % lanes == lane for chunk in share)
        assert list(share) == sorted(share)


def test_collectives_of_one_chunk_spread_over_the_lanes() -> None:
    assert [[len(plan.lane_chunks(s, 1, lane, 2)) for lane in (0, 1)] for s in range(2)] == [[1, 0], [0, 1]]
