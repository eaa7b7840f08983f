"""The DDP communication hook: bucket in, mean out. First and last step of "tensor in -> tensor out" for
PyTorch users.
"""

# No `from __future__ import annotations`: DDP compares the annotations of a hook with the types themselves.

import torch
import torch.distributed as dist

from pascaline.torch.state import PascalineState


def pascaline_hook(
    state: PascalineState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch.distributed re-exports it from C
) -> torch.futures.Future[torch.Tensor]:
    """Sum the bucket through the appliance and divide by the world size.

    The session sums, the hook divides, as DDP's own all-reduce means. DDP takes a result of any length and
    dtype without a word, so the result is the bucket's own buffer, checked before anything is sent.
    """
    buffer = bucket.buffer()
    state.check(buffer)
    work = state.session.all_reduce(buffer, async_op=True)

    def mean(summed: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        # Read inside `then`: an exception set on the raw future reaches the user mangled.
        return summed.value().div_(state.session.world_size)

    future: torch.futures.Future[torch.Tensor] = work.get_future()
    divided = future.then(mean)
    state.launched(work, bucket.is_last())
    return divided
