"""sparse: only what is not zero on some rank travels; docs/sparse.md is the specification."""

from __future__ import annotations

from pascaline.codec.sparse.codec import SparseCodec
from pascaline.codec.sparse.select import Share, Sparsifier, Threshold

__all__ = ["Share", "SparseCodec", "Sparsifier", "Threshold"]
