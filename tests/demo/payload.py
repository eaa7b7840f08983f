"""What a codec makes of DDP's buckets: bytes, whoever sends them."""

from __future__ import annotations

from pascaline import codec as codecs
from pascaline import plan

SLOT_BYTES = 64 << 10
"""Of every link of the demonstration; the appliance's own choice. thc draws chunk by chunk, so links must be alike."""


def bytes_expected(codec: codecs.Codec, bucket_bytes: list[int]) -> tuple[int, int]:
    """Of one backward pass on one rank, from DDP's own bucket sizes: contributions and results, scales included."""
    sent = received = 0
    for size in bucket_bytes:
        for chunk in plan.chunks(size // 4, codec.chunk_elems(SLOT_BYTES)):
            elems = chunk.end - chunk.begin
            sent += codec.contribution_bytes(elems)
            received += codec.result_bytes(elems)
        scales = (codec.scale_count(size // 4) if not codec.one_scale else 1) * plan.SCALE_BYTES
        sent, received = sent + scales, received + scales
    return sent, received
