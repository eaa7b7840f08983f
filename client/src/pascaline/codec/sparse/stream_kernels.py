"""The C kernels of streams: what stream.py computes and refuses, for numpy arrays and at memory's speed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.base import Bytes
from pascaline.codec.sparse import stream as reference
from pascaline.codec.sparse.kernels import array_of
from pascaline.codec.sparse.reference import Words, words_of
from pascaline.codec.thc import kernels as door

_REFUSED = (
    None,  # psc_sparse_fault, in its order
    reference.another_length,
    reference.broken_off,
    reference.too_many,
    reference.beyond,
    reference.another_count,
)


def length_bytes(elems: int, bitmap: Words) -> int:
    """As stream.length_bytes."""
    _, library = door.extension()
    words: int = library.psc_sparse_stream_words(_bitmap(bitmap, elems), elems)
    return 4 * words


def write(x: NDArray[Any] | None, packed: Words | None, bitmap: Words, elems: int, stream: Bytes) -> None:
    """As stream.write."""
    ffi, library = door.extension()
    library.psc_sparse_stream_write(
        ffi.NULL if x is None else array_of("x", x.view(np.uint32), np.uint32, elems),
        ffi.NULL if packed is None else array_of("packed", packed, np.uint32, packed.size),
        _bitmap(bitmap, elems),
        elems,
        _words(stream),
        stream.size // 4,
    )


def check(elems: int, stream: Bytes) -> int:
    """As stream.check."""
    ffi, library = door.extension()
    verdict = ffi.new("struct psc_sparse_verdict *")
    library.psc_sparse_stream_check(_words(stream), stream.size // 4, elems, verdict)
    refused = _REFUSED[verdict.fault]
    if refused:
        raise refused(verdict.expected, verdict.got)
    values: int = verdict.values
    return values


def values_of(elems: int, stream: Bytes, packed: Words) -> None:
    """As stream.values_of."""
    _, library = door.extension()
    library.psc_sparse_stream_values(
        _words(stream), elems, array_of("packed", packed, np.uint32, packed.size)
    )


def unpack(elems: int, stream: Bytes, packed: Words | None, values: NDArray[Any]) -> None:
    """As stream.unpack."""
    ffi, library = door.extension()
    library.psc_sparse_stream_unpack(
        _words(stream),
        stream.size // 4,
        ffi.NULL if packed is None else array_of("packed", packed, np.uint32, packed.size),
        0 if packed is None else packed.size,
        elems,
        array_of("values", values.view(np.uint32), np.uint32, elems),
    )


def _bitmap(bitmap: Words, elems: int) -> Any:
    return array_of("bitmap", bitmap, np.uint32, words_of(elems))


def _words(stream: Bytes) -> Any:
    return array_of("stream", stream.view(np.uint32), np.uint32, stream.size // 4)
