"""Who has rated what, and how: real ratings, out of Debian's packages of R packages, and drawn ones.

`make numerics` unpacks the packages into build/ratings (.ci/packages-ratings-apt.txt); nothing of them is in this
repository. Both are pinned by a digest of what is read.

MovieLens "latest small" (F. M. Harper, J. A. Konstan, ACM TiiS 5(4), 2015, doi 10.1145/2827872), as r-cran-dslabs has
it: 100,004 ratings of films. GroupLens lets it be used for research with this citation, not for profit.
InstEval, of r-cran-lme4 (GPL 2 or later): 73,421 ratings of lectures at ETH Zurich by students, anonymised.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import r_data

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / "build" / "ratings"
DRAWN_USERS, DRAWN_ITEMS, TASTES = 40_000, 20_000, 8


class Missing(Exception):
    """A data set is not there; the message says how it comes."""


class Source(NamedTuple):
    """Where a data set is, and which it is."""

    package: str
    frame: str
    columns: tuple[str, str, str]
    """User, item, rating."""
    digest: str
    """SHA-256 of user and item numbers and ratings."""


MOVIELENS = Source(
    "dslabs",
    "movielens",
    ("userId", "movieId", "rating"),
    "4be2ad66819cb4f9a8bc01dd5986ae6ab37ad5fa7a514631d3f16bcefeb2ecf8",
)
INSTEVAL = Source(
    "lme4", "InstEval", ("s", "d", "y"), "89db2cb71feaae38129f8334ac9df3b39e06ee40afe84ce92f48be31fb77a352"
)


class Ratings(NamedTuple):
    """Numbers from 0 without a gap, and whether the user has liked the item; each (ratings,)."""

    users: np.ndarray
    items: np.ndarray
    liked: np.ndarray

    def batch(self, seed: list[int], count: int) -> Ratings:
        """Some of them, drawn."""
        chosen = np.random.default_rng(seed).integers(0, self.users.size, count)
        return Ratings(*(column[chosen] for column in self))


def real(source: Source, unpacked: Path = UNPACKED) -> Ratings:
    """Liked: 4 and above, of 5. Raises Missing, and ValueError for another release of the data."""
    database = unpacked / "usr/lib/R/site-library" / source.package / "data/Rdata"
    try:
        frame = r_data.data_frame(database, source.frame)
    except FileNotFoundError:
        raise Missing(
            f"{database}.rdb is not there: make ratings unpacks it, from Debian's package"
        ) from None
    users, items = (np.unique(frame[name].values, return_inverse=True)[1] for name in source.columns[:2])
    stars = frame[source.columns[2]].values.astype(np.float64)
    digest = hashlib.sha256(b"".join(c.tobytes() for c in (users, items, stars))).hexdigest()
    if digest != source.digest:
        raise ValueError(f"{source.package}'s {source.frame} has the digest {digest}, not {source.digest}")
    return Ratings(users, items, (stars >= 4).astype(np.float32))


def drawn() -> Ratings:
    """For tables as large as no public set of ratings has them: users and items have popularities by Zipf's law
    (exponents 0.8 and 1.1), each has a vector of 8 standard normal numbers, and liked is where the product of a pair's
    vectors is above 0.
    """
    rng = np.random.default_rng(17)
    tastes = [rng.standard_normal((count, TASTES)).astype(np.float32) for count in (DRAWN_USERS, DRAWN_ITEMS)]
    pairs = [
        np.searchsorted(_zipf(count, exponent), rng.random(1 << 17)).clip(max=count - 1)
        for count, exponent in ((DRAWN_USERS, 0.8), (DRAWN_ITEMS, 1.1))
    ]
    liked = (tastes[0][pairs[0]] * tastes[1][pairs[1]]).sum(1) > 0
    return Ratings(pairs[0], pairs[1], liked.astype(np.float32))


def _zipf(count: int, exponent: float) -> np.ndarray:
    weights = 1 / np.arange(1, count + 1) ** exponent
    return np.cumsum(weights / weights.sum())
