"""The codec thc in Triton, for CUDA tensors: the same three functions as `reference`, and the same bits.

Not verified on a GPU: run by Triton's interpreter and compiled for sm_80 and sm_90, no more, in tests/client. `launch`
is the host's side, `kernels` one program for each block, `device` what they are made of. Tensors are contiguous and lie
on the current device.
"""

from pascaline.codec.thc.triton.launch import decode, encode, norms

__all__ = ["decode", "encode", "norms"]
