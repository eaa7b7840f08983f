"""The C kernels of the codec lhc: what reference.py computes, bit for bit, at memory's speed.

Arrays are read and written where they lie. The GIL is released while a kernel runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.lhc.params import MAX_ELEMS, MAX_ROWS, blocks, buckets
from pascaline.codec.lhc.reference import Hash
from pascaline.codec.thc.kernels import array_in, array_out, door
from pascaline.errors import ConfigurationError

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
Integers = NDArray[np.int32]
Factors = tuple[float, float]
"""Two powers of two whose product is the scale."""


def sketch(
    hash_: Hash, values: Floats, factors: Factors, left_out: Words | None, table: Integers
) -> None:
    """Write the sketch of round(values * factors), int32 (buckets,), to `table`; values: f32 (elems,)."""
    ffi, library = door()
    elems = values.size
    library.psc_lhc_sketch(
        _hash(hash_, elems),
        array_in("values", values, np.float32, elems),
        *factors,
        elems,
        ffi.NULL if left_out is None else array_in("left_out", left_out, np.uint32, blocks(elems)),
        array_out("table", table, np.int32, buckets(hash_.rows)),
    )


def scratch_bytes(elems: int, rows: int) -> int:
    """What `check` and `peel` need."""
    size: int = door()[1].psc_lhc_scratch_bytes(elems, rows)
    return size


def check(hash_: Hash, union: Words, elems: int, unpeeled: Words, scratch: NDArray[np.uint8]) -> int:
    """How many elements of the union do not peel; `unpeeled`, uint32 (blocks,), becomes their bitmap."""
    left: int = door()[1].psc_lhc_check(
        _hash(hash_, elems),
        array_in("union", union, np.uint32, blocks(elems)),
        elems,
        array_out("unpeeled", unpeeled, np.uint32, blocks(elems)),
        _scratch(hash_, scratch, elems),
    )
    return left


def peel(
    hash_: Hash,
    union: Words,
    table: Integers,
    factors: Factors,
    values: Floats,
    unpeeled: Words,
    scratch: NDArray[np.uint8],
) -> int:
    """As `check`; and `values`, f32 (elems,), become what peeled times the factors, 0 elsewhere. Uses up the table."""
    elems = values.size
    left: int = door()[1].psc_lhc_peel(
        _hash(hash_, elems),
        array_in("union", union, np.uint32, blocks(elems)),
        elems,
        array_out("table", table, np.int32, buckets(hash_.rows)),
        *factors,
        array_out("values", values, np.float32, elems),
        array_out("unpeeled", unpeeled, np.uint32, blocks(elems)),
        _scratch(hash_, scratch, elems),
    )
    return left


def _hash(hash_: Hash, elems: int) -> Any:
    if not 1 <= hash_.rows <= MAX_ROWS or elems > MAX_ELEMS:
        raise ConfigurationError(
            f"lhc's kernels take 1 to {MAX_ROWS} rows and at most {MAX_ELEMS} elements, not {hash_.rows} and {elems}"
        )
    return door()[0].new("struct psc_lhc_hash *", tuple(hash_))


def _scratch(hash_: Hash, scratch: NDArray[np.uint8], elems: int) -> Any:
    needed = scratch_bytes(elems, hash_.rows)
    return array_out("scratch", scratch[:needed], np.uint8, needed)
