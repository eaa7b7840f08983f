"""The C kernels of the codec sparse: what reference.py computes, bit for bit, for numpy arrays and at memory's speed.

Arrays are read and written where they lie. The GIL is released while a kernel runs. Which variant runs is the same
choice as thc's (codec/thc/kernels.py, through which the extension is reached).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.sparse.reference import Words, words_of
from pascaline.codec.thc import kernels as door
from pascaline.errors import UnsupportedTensor


def available() -> bool:
    """Whether this installation has the extension."""
    return door.available()


def remedy() -> str:
    """What to say where the extension is not there."""
    return door.remedy()


def mark(x: NDArray[Any], least: int, bitmap: Words) -> int:
    """As reference.mark."""
    _, library = door.extension()
    marked: int = library.psc_sparse_mark(
        array_of("x", x, np.float32, x.size),
        x.size,
        least,
        array_of("bitmap", bitmap, np.uint32, words_of(x.size)),
    )
    return marked


def count(bitmap: Words) -> int:
    """As reference.count."""
    _, library = door.extension()
    counted: int = library.psc_sparse_count(array_of("bitmap", bitmap, np.uint32, bitmap.size), bitmap.size)
    return counted


def pack(x: NDArray[Any], chosen: Words, packed: Words) -> None:
    """As reference.pack."""
    words = x.view(np.uint32)
    _, library = door.extension()
    library.psc_sparse_pack(
        array_of("x", words, np.uint32, x.size),
        array_of("chosen", chosen, np.uint32, words_of(x.size)),
        x.size,
        packed.size,
        array_of("packed", packed, np.uint32, packed.size),
    )


def unpack(packed: Words, chosen: Words, values: NDArray[Any]) -> None:
    """As reference.unpack."""
    words = values.view(np.uint32)
    _, library = door.extension()
    library.psc_sparse_unpack(
        array_of("packed", packed, np.uint32, packed.size),
        packed.size,
        array_of("chosen", chosen, np.uint32, words_of(values.size)),
        values.size,
        array_of("values", words, np.uint32, values.size),
    )


_C_TYPES = {np.float32: "float[]", np.uint32: "uint32_t[]"}


def array_of(name: str, array: NDArray[Any], dtype: type[Any], elems: int) -> Any:
    """For C, where it lies. Raises UnsupportedTensor if it is not of `elems` of `dtype`, one after the other."""
    ffi, _ = door.extension()
    flags = array.flags
    if array.dtype != dtype or array.size != elems or not (flags.c_contiguous and flags.aligned):
        raise UnsupportedTensor(
            f"{name} is {array.dtype} with {array.size} elements, {'' if flags.c_contiguous else 'not '}contiguous and "
            f"{'' if flags.aligned else 'not '}aligned: sparse's kernels need {np.dtype(dtype)} with {elems}, "
            "contiguous and aligned"
        )
    return ffi.from_buffer(_C_TYPES[dtype], array)
