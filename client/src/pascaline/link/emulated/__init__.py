"""The link for trying a codec before there is an appliance: the same encodings and op arithmetic over a process group.

It sums what an appliance would, bit for bit, and is no measure of speed. Beside pascaline.torch the only room that
knows torch.distributed.
"""

from pascaline.link.emulated.link import EmulatedLink, PoolSize, ranks_of

__all__ = ["EmulatedLink", "PoolSize", "ranks_of"]
