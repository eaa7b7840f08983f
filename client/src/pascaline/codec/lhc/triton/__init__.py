"""The codec lhc in Triton, for CUDA tensors: the same functions as `reference`, and the same bits.

Not verified on a GPU: run by Triton's interpreter and compiled for sm_80 and sm_90, no more, in tests/client. `launch`
is the host's side. Sums of integers are order-free, so atomics in any order give one result; and what peels is one
set, whatever the order.
"""

from pascaline.codec.lhc.triton.launch import check, peel, sketch

__all__ = ["check", "peel", "sketch"]
