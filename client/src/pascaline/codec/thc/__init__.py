"""The codec thc: Tensor Homomorphic Compression (arXiv 2302.08545), to the bit as docs/thc.md says.

Every scheme that sends one small index per coordinate and adds table values is a `Params` of this one machine.
"""

from pascaline.codec.thc.params import BLOCK, MIN_NORM, Params

__all__ = ["BLOCK", "MIN_NORM", "Params"]
