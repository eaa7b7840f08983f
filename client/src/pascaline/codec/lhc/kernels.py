"""The C kernels of the codec lhc: what reference.py computes, bit for bit, at memory's speed.

Arrays are read and written where they lie. The GIL is released while a kernel runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.lhc.params import MAX_ELEMS, MAX_ROWS, blocks, buckets
from pascaline.codec.lhc.reference import Hash
from pascaline.codec.thc import kernels as door
from pascaline.errors import ConfigurationError, UnsupportedTensor

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
Integers = NDArray[np.int32]
Factors = tuple[float, float]
"""Two powers of two whose product is the scale."""


def available() -> bool:
    """Whether this installation has the extension."""
    return door.available()


def remedy() -> str:
    """What to say where the extension is not there."""
    return door.remedy()


def sketch(hash_: Hash, values: Floats, factors: Factors, left_out: Words | None, table: Integers) -> None:
    """Write the sketch of round(values * factors), int32 (buckets,), to `table`; values: f32 (elems,)."""
    elems = values.size
    door.extension()[1].psc_lhc_sketch(
        _hash(hash_, elems),
        _array("values", values, np.float32, elems),
        *factors,
        elems,
        door.extension()[0].NULL
        if left_out is None
        else _array("left_out", left_out, np.uint32, blocks(elems)),
        _array("table", table, np.int32, buckets(hash_.rows)),
    )


def scratch_words(elems: int, rows: int) -> int:
    """Size, at least, of what `check` and `peel` work in, uint32."""
    size: int = door.extension()[1].psc_lhc_scratch_bytes(elems, rows) // 4
    return size


def check(hash_: Hash, union: Words, elems: int, unpeeled: Words, scratch: Words) -> int:
    """How many elements of the union do not peel; `unpeeled`, uint32 (blocks,), becomes their bitmap."""
    left: int = door.extension()[1].psc_lhc_check(
        _hash(hash_, elems),
        _array("union", union, np.uint32, blocks(elems)),
        elems,
        _array("unpeeled", unpeeled, np.uint32, blocks(elems)),
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
    scratch: Words,
) -> int:
    """As `check`; and `values`, f32 (elems,), become what peeled times the factors, 0 elsewhere. Uses up the table."""
    elems = values.size
    left: int = door.extension()[1].psc_lhc_peel(
        _hash(hash_, elems),
        _array("union", union, np.uint32, blocks(elems)),
        elems,
        _array("table", table, np.int32, buckets(hash_.rows)),
        *factors,
        _array("values", values, np.float32, elems),
        _array("unpeeled", unpeeled, np.uint32, blocks(elems)),
        _scratch(hash_, scratch, elems),
    )
    return left


def _hash(hash_: Hash, elems: int) -> Any:
    if not 1 <= hash_.rows <= MAX_ROWS or elems > MAX_ELEMS:
        raise ConfigurationError(
            f"lhc's kernels take 1 to {MAX_ROWS} rows and at most {MAX_ELEMS} elements, not {hash_.rows} and {elems}"
        )
    return door.extension()[0].new("struct psc_lhc_hash *", tuple(hash_))


def _scratch(hash_: Hash, scratch: Words, elems: int) -> Any:
    needed = scratch_words(elems, hash_.rows)
    return _array("scratch", scratch[:needed], np.uint32, needed)


_C_TYPES = {np.float32: "float[]", np.uint32: "uint32_t[]", np.int32: "int32_t[]", np.uint8: "uint8_t[]"}


def _array(name: str, array: NDArray[Any], dtype: type[Any], elems: int) -> Any:
    flags = array.flags
    if array.dtype != dtype or array.size != elems or not (flags.c_contiguous and flags.aligned):
        raise UnsupportedTensor(
            f"{name} is {array.dtype} with {array.size} elements, {'' if flags.c_contiguous else 'not '}contiguous and "
            f"{'' if flags.aligned else 'not '}aligned: lhc's kernels need {np.dtype(dtype)} with {elems}, contiguous "
            "and aligned"
        )
    return door.extension()[0].from_buffer(_C_TYPES[dtype], array)
