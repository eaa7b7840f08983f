"""The three operations of sparse in Triton, for CUDA tensors: the same as `reference`, and the same bits.

Not verified on a GPU: run by Triton's interpreter and compiled for sm_80 and sm_90, no more, in tests/client. `launch`
is the host's side, `kernels` one program for each block of elements.
"""

from pascaline.codec.sparse.triton.launch import mark, pack, unpack

__all__ = ["mark", "pack", "unpack"]
