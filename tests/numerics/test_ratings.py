"""R's data frames are read as they were written, and ratings of another release are refused."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from . import r_data, ratings

HEAD = b"X\n" + struct.pack(">3i", 3, 0x40202, 0x30500) + struct.pack(">i", 5) + b"UTF-8"
NULL = struct.pack(">i", 254)
HAS_ATTRIBUTES, HAS_TAG = 0x200, 0x400


def characters(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">2i", 9, -1)
    return struct.pack(">2i", 9 | 0x40000, len(text)) + text.encode()


def strings(*texts: str | None) -> bytes:
    return struct.pack(">2i", 16, len(texts)) + b"".join(map(characters, texts))


def integers(*values: int, attributes: bytes = b"") -> bytes:
    flags = 13 | (HAS_ATTRIBUTES if attributes else 0)
    return struct.pack(f">{2 + len(values)}i", flags, len(values), *values) + attributes


def reals(*values: float) -> bytes:
    return struct.pack(">2i", 14, len(values)) + struct.pack(f">{len(values)}d", *values)


def tagged(symbol: bytes, value: bytes) -> bytes:
    return struct.pack(">i", 2 | HAS_TAG) + symbol + value


def symbol(name: str) -> bytes:
    return struct.pack(">i", 1) + characters(name)


def named(names: bytes, *items: bytes, first: bool = True) -> bytes:
    """`names` as a symbol where it is the first of its object, else as a reference to it."""
    known = symbol("names") if first else struct.pack(">i", 1 << 8 | 255)
    attributes = tagged(known, names) + NULL
    return struct.pack(">2i", 19 | HAS_ATTRIBUTES, len(items)) + b"".join(items) + attributes


def written(folder: Path, frame: bytes, name: str) -> Path:
    """A database of two entries, of which the second is the frame."""
    other = b"what is in front"
    entry = struct.pack(">i", len(HEAD + frame)) + zlib.compress(HEAD + frame)
    (folder / "Rdata.rdb").write_bytes(other + entry)
    variables = named(strings("other", name), integers(0, len(other)), integers(len(other), len(entry)))
    index = named(strings("variables", "compressed"), variables, integers(1), first=False)
    (folder / "Rdata.rdx").write_bytes(gzip.compress(HEAD + index))
    return folder / "Rdata"


USERS = (7, 7, 3, 9)
DIGEST = "2e8f8f3b10acddb625d9f2cac687ed42d537365441318ff74e438c60a7724d7a"


def frame() -> bytes:
    """Users, items as a factor whose levels are strings, stars; the second list's names are a reference."""
    levels = tagged(symbol("levels"), strings("b", None, "d")) + tagged(symbol("class"), strings("factor"))
    items = integers(1, 3, 1, 2, attributes=levels + NULL)
    return named(strings("s", "d", "y"), integers(*USERS), items, reals(4, 3.5, 5, 1))


def test_columns_of_every_kind_are_read(tmp_path: Path) -> None:
    found = r_data.data_frame(written(tmp_path, frame(), "InstEval"), "InstEval")
    assert list(found) == ["s", "d", "y"]
    assert found["s"].values.tolist() == list(USERS)
    assert found["d"].values.tolist() == [1, 3, 1, 2]
    assert found["d"].attributes["levels"].values == ["b", None, "d"]
    assert found["y"].values.tolist() == [4, 3.5, 5, 1]
    for wrong, says in ((b"A\n", "no serialization"), (HEAD + struct.pack(">2i", 3, 0), "type 3 of R")):
        with pytest.raises(ValueError, match=says):
            r_data.Reader(wrong).read()
    with pytest.raises(ValueError, match="40 bytes at"):
        r_data.Reader(HEAD + struct.pack(">2i", 13, 10)).read()


def test_ratings_are_pinned(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/R/site-library/lme4/data"
    with pytest.raises(ratings.Missing, match=r"Rdata.rdb is not there: make ratings unpacks it"):
        ratings.real(ratings.INSTEVAL, tmp_path)
    folder.mkdir(parents=True)
    written(folder, frame(), "InstEval")
    with pytest.raises(ValueError, match=f"lme4's InstEval has the digest {DIGEST}, not 89db"):
        ratings.real(ratings.INSTEVAL, tmp_path)
    found = ratings.real(ratings.INSTEVAL._replace(digest=DIGEST), tmp_path)
    assert [column.tolist() for column in found] == [[1, 1, 0, 2], [0, 2, 0, 1], [1, 0, 1, 0]]


def test_drawn_ratings_are_of_large_tables_and_mostly_of_few() -> None:
    found = ratings.drawn()
    assert found.users.max() < ratings.DRAWN_USERS and found.items.max() < ratings.DRAWN_ITEMS
    assert 0.45 < found.liked.mean() < 0.55
    assert np.bincount(found.items).max() > 0.05 * found.items.size
