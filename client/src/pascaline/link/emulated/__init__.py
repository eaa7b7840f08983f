"""The link for trying a codec before there is an appliance: the same encodings and op arithmetic over a process group.

It sums what an appliance would, bit for bit, and is no measure of speed. `link` is beside pascaline.torch the only
module that knows torch.distributed; `ops` is numpy alone.
"""
