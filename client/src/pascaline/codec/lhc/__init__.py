"""The codec lhc: lossless homomorphic compression by a count sketch (arXiv 2402.07529), to the bit as docs/lhc.md says.

This package's front imports no torch; `triton` does.
"""

from pascaline.codec.lhc.params import LANES, PERMILLE, TABLES, Params, blocks, buckets
from pascaline.codec.lhc.reference import Hash

__all__ = ["LANES", "PERMILLE", "TABLES", "Hash", "Params", "blocks", "buckets"]
