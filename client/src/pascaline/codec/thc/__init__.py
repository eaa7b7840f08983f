"""The codec thc: Tensor Homomorphic Compression (arXiv 2302.08545), to the bit as docs/thc.md says.

Every scheme that sends one small index per coordinate and adds table values is a `Params` of this one machine. This
package's front imports no torch; `reference` and `triton` do.
"""

from pascaline.codec.thc.params import BLOCK, MIN_NORM, Params
from pascaline.codec.thc.settings import NAMES, setting

__all__ = ["BLOCK", "MIN_NORM", "NAMES", "Params", "setting"]
