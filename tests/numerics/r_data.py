"""Reads a data frame out of an installed package of R, without R: a lazy-load database, whose index and entries are in
R's serialization format, version 2 or 3, big-endian ("R Internals", sections 1.8 and 8).

What data frames are made of, and nothing else: any other type is an error.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_PAIRLIST, _SYMBOL, _CHARACTERS, _REFERENCE, _NULL = 2, 1, 9, 255, 254
_INTEGERS, _REALS, _STRINGS, _LIST = (10, 13), 14, 16, 19
_HAS_ATTRIBUTES, _HAS_TAG = 0x200, 0x400


class Vector(NamedTuple):
    """One of R's: an array of numbers, or a list of strings or of vectors."""

    values: Any
    attributes: dict[str, Any]


class Reader:
    """Of one serialized object."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._symbols: list[str] = []

    def read(self) -> Any:
        """The object. Raises ValueError for what is no such data."""
        if self._bytes(2) != b"X\n":
            raise ValueError("no serialization of R in its binary format")
        version = self._int()
        self._bytes(8)  # of R: the writer's, and the oldest that reads it
        if version == 3:
            self._bytes(self._int())  # native encoding
        elif version != 2:
            raise ValueError(f"serialization format {version} of R, not 2 or 3")
        return self._item()

    def _bytes(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise ValueError(f"{count} bytes at {self._at} of {len(self._data)}")
        self._at += count
        return self._data[self._at - count : self._at]

    def _int(self) -> int:
        return int(struct.unpack(">i", self._bytes(4))[0])

    def _item(self) -> Any:
        flags = self._int()
        kind = flags & 0xFF
        if kind == _NULL:
            return None
        if kind == _REFERENCE:
            return self._symbols[(flags >> 8 or self._int()) - 1]
        if kind == _SYMBOL:
            self._symbols.append(self._item())
            return self._symbols[-1]
        if kind == _PAIRLIST:
            return self._pairs(flags)
        if kind == _CHARACTERS:
            count = self._int()
            return None if count == -1 else self._bytes(count).decode("utf-8", "replace")  # -1: not available
        return self._vector(kind, bool(flags & _HAS_ATTRIBUTES))

    def _pairs(self, flags: int) -> dict[str, Any]:
        if flags & _HAS_ATTRIBUTES:
            self._item()
        tag = self._item() if flags & _HAS_TAG else ""
        value = self._item()
        return {tag: value, **(self._item() or {})}

    def _vector(self, kind: int, has_attributes: bool) -> Vector:
        count = self._int()
        values: Any
        if kind in _INTEGERS:
            values = np.frombuffer(self._bytes(4 * count), ">i4").astype(np.int64)
        elif kind == _REALS:
            values = np.frombuffer(self._bytes(8 * count), ">f8").astype(np.float64)
        elif kind in (_STRINGS, _LIST):
            values = [self._item() for _ in range(count)]
        else:
            raise ValueError(f"type {kind} of R in a data frame")
        return Vector(values, self._item() if has_attributes else {})


def named(vector: Vector) -> dict[str, Any]:
    """A list with names, as a data frame is: name -> column."""
    return dict(zip(vector.attributes["names"].values, vector.values, strict=True))


def data_frame(database: Path, name: str) -> dict[str, Vector]:
    """One frame's columns of a package's data, `database` without its suffixes. Raises OSError and ValueError."""
    index = named(Reader(gzip.decompress(database.with_suffix(".rdx").read_bytes())).read())
    offset, count = named(index["variables"])[name].values
    entry = database.with_suffix(".rdb").read_bytes()[offset : offset + count]
    return named(Reader(zlib.decompress(entry[4:])).read())  # in front its length
