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
    buffer: torch.Tensor = bucket.buffer()
    state.check(buffer)
    loss_scale = state.choice.loss_scale()
    parts = state.parts(bucket)
    works = []
    for part in parts:
        if part.feedback:
            part.feedback.loss_scale = loss_scale
        flat = part.gather(buffer)
        works.append(state.session.all_reduce(flat, True, part.codec, part.feedback, part.name))

    def mean(summed: torch.futures.Future[list[torch.futures.Future[torch.Tensor]]]) -> torch.Tensor:
        # Read inside `then`: an exception set on the raw future reaches the user mangled.
        bucket_mean = buffer
        for part, future in zip(parts, summed.value(), strict=True):
            bucket_mean = part.scatter(future.value().div_(state.session.world_size), buffer)
        return bucket_mean

    divided: torch.futures.Future[torch.Tensor] = torch.futures.collect_all(
        [work.get_future() for work in works]
    ).then(mean)
    state.launched(works, divided, bucket.is_last())
    return divided
