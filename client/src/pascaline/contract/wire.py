"""The wire contract as Python sees it: psc_wire.def.h, read verbatim by cffi (ABI mode), never retyped.

May touch nothing but that file. A number that changes there changes here; the version is compared at join.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import cffi

HEADER = Path(__file__).with_name("psc_wire.def.h")
SPOKEN_VERSION = 5
"""The version of the header that this code was written for."""

_ffi = cffi.FFI()
_ffi.cdef(HEADER.read_text(encoding="utf-8"))
_constants: Any = _ffi.dlopen(None)


def _enum(name: str, prefix: str) -> dict[str, int]:
    """Members of a C enum by their name without prefix, in lower case; the closing *_COUNT is left out."""
    members: dict[str, int] = _ffi.typeof(f"enum {name}").relements
    names = {key.removeprefix(prefix).lower(): value for key, value in members.items()}
    return {key: value for key, value in names.items() if not key.endswith("count")}


VERSION: int = _constants.PSC_WIRE_VERSION
OPS = _enum("psc_op", "PSC_OP_")
UNIT_BYTES = _enum("psc_op_unit", "PSC_UNIT_")
"""By op: what a contribution's length is a multiple of."""
EXPANSIONS = _enum("psc_op_expansion", "PSC_EXPANSION_")
"""By op: bytes of the result per byte of a contribution."""
TABLE_ENTRIES = _enum("psc_op_table", "PSC_TABLE_")
"""Of the ops that look up."""
SUM_MAX = _enum("psc_op_sum_max", "PSC_SUM_MAX_")
"""What their sums hold: the table's last entry times the world size is at most this."""
SUB_BLOCK_ELEMS = _enum("psc_op_sub_block", "PSC_SUB_BLOCK_")
"""Of the ops whose contributions and results are streams of sub-blocks (docs/expand-sum.md)."""
SUB_BLOCK_SPARE_BYTES: int = _constants.PSC_SUB_BLOCK_SPARE_BYTES
FAULTS = _enum("psc_fault", "PSC_FAULT_")
VA_WINDOW_SHIFT: int = _constants.PSC_VA_WINDOW_SHIFT
VA_ROUND_SHIFT: int = _constants.PSC_VA_ROUND_SHIFT
MAX_CHUNK_BYTES: int = _constants.PSC_MAX_CHUNK_BYTES
MAX_RANKS: int = _constants.PSC_MAX_RANKS
IMM_PROBE: int = _constants.PSC_IMM_PROBE
PROBE_WINDOW = 0

if VERSION != SPOKEN_VERSION:
    raise ImportError(
        f"{HEADER} is version {VERSION} of the wire contract, this client speaks {SPOKEN_VERSION}: "
        "reinstall pascaline, its files come from different releases"
    )

_imm_fields = struct.Struct("<5I")
_CRC_32 = 0xEDB88320
"""Its polynomial, reflected."""


def immediate(sequence: int, chunk: int, op: int, length_bytes: int, elems: int, codec: int = 0) -> int:
    """What a message says about itself; all ranks' immediates of a round must agree before its result is complete.

    `length_bytes` of an op with sub-blocks: 4 times the number of elements, since lengths differ by rank. `elems`: of
    the whole tensor; 0 of a note. `codec`: 0, or the CRC of the words of one that is not the session's own.
    """
    fields = sequence & 0xFFFFFFFF, chunk, op, length_bytes, elems & 0xFFFFFFFF
    return zlib.crc32(_imm_fields.pack(*fields), codec)


def elems_apart(immediate: int, other: int) -> int:
    """The XOR of two tensors' numbers of elements, by immediates that are alike in all else.

    What a CRC makes of its last four bytes is linear in them and can be undone, whatever came before.
    """
    apart = immediate ^ other
    for _ in range(32):
        apart = (apart ^ _CRC_32) << 1 | 1 if apart >> 31 else apart << 1
        apart &= 0xFFFFFFFF
    return apart


def sub_block_elems_max(chunk_bytes: int) -> int:
    """The most elements that a slot takes of an op with sub-blocks: 4 * (n + ceil(n / 32)) bytes and the spare ones."""
    return (chunk_bytes - SUB_BLOCK_SPARE_BYTES) // 4 * 32 // 33
