"""PyTorch's door: one line, `state = pascaline.torch.register(ddp_model)`, or PyTorch's own idiom,
`ddp_model.register_comm_hook(PascalineState(process_group=None), pascaline_hook)`.

The only room that knows DistributedDataParallel. May touch session and reduce.
"""

from pascaline.torch.hook import pascaline_hook
from pascaline.torch.register import register
from pascaline.torch.state import PascalineState

__all__ = ["PascalineState", "pascaline_hook", "register"]
