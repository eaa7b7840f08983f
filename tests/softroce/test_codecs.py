"""Codecs whose results are longer than their contributions, through the real appliance: bit for bit what the emulated
arithmetic makes of the same gradients, scales, draws, residuals and all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pascaline
from pascaline import codec as codecs
from pascaline.reduce import Collective
from tests.client.rack import Rack
from tests.softroce.appliance import Appliance
from tests.softroce.ranks import Ranks

Array = NDArray[Any]
SLOT, WINDOW, SEED = 16384, 4, 5
STEPS = 2
LENGTHS = [1, 1023, 5 * SLOT + 1700]
"""The last is more than a window of u8 sums, and ends in a short block."""


def gradient(rank: int, step: int, elems: int) -> Array:
    """float32 of scales over two decades."""
    rng = np.random.default_rng((rank, step, elems))
    return (rng.normal(size=elems) * np.logspace(-1, 1, elems)).astype(np.float32)


def calls() -> list[tuple[int, int, str | None]]:
    """(step, length, codec) of all collectives, in order; None is the session's codec, with error feedback."""
    return [
        (step, length, codec)
        for step in range(STEPS)
        for length in LENGTHS
        for codec in (None, "f16", "bf16")
    ]


def by_arithmetic(options: codecs.Thc, world_size: int) -> list[list[bytes]]:
    """Sums and residuals of all ranks, by the reduce room over a rack in memory."""
    first = options.build(0, world_size, SEED)
    rack = Rack(world_size, (WINDOW, SLOT), (2, 4096), tables={first.op: first.table or ()})
    lines = [rack.lines(rank) for rank in range(world_size)]
    feedbacks = [{n: codecs.ErrorFeedback(n) for n in LENGTHS} for _ in lines]
    results: list[list[bytes]] = [[] for _ in lines]
    for sequence, (step, length, name) in enumerate(calls()):
        tensors = [gradient(rank, step, length) for rank in range(world_size)]
        for rank, (data, small) in enumerate(lines):
            codec = codecs.for_array(tensors[rank].dtype, name or options, rank, world_size, SEED)
            feedback = None if name else feedbacks[rank][length]
            done = Collective(tensors[rank], codec, sequence, lambda: None, feedback)
            for line, stream in done.streams(data, small):
                line.enter(stream)
        while any(line.busy() for pair in lines for line in pair):
            for rank, pair in enumerate(lines):
                for result in rack.links[rank].completions():
                    pair[result.pool].arrived(result)
                while any([line.advance() for line in pair]):
                    pass
        for rank, tensor in enumerate(tensors):
            results[rank].append(tensor.tobytes())
    for rank, of_length in enumerate(feedbacks):
        results[rank] += [feedback.residual.tobytes() for feedback in of_length.values()]
    return results


@pytest.mark.parametrize(
    "world_size, options",
    [(2, codecs.Thc(g=20, p=0.01)), (4, codecs.Thc(g=200, p=0.01)), (2, codecs.Thc(name="thc-paper"))],
    ids=["u8", "u16", "one-scale"],
)
def test_sums_and_residuals_are_the_arithmetic_s(
    appliance: Appliance, job: str, world_size: int, options: codecs.Thc
) -> None:
    def body(rank: int) -> list[bytes]:
        feedbacks = {length: codecs.ErrorFeedback(length) for length in LENGTHS}
        results = []
        with pascaline.Session(
            job=job, codec=options, random_seed=SEED, chunk_bytes=SLOT, window=WINDOW
        ) as session:
            for step, length, codec in calls():
                tensor = gradient(rank, step, length)
                feedback = None if codec else feedbacks[length]
                session.all_reduce(tensor, codec=codec, error_feedback=feedback)
                results.append(tensor.tobytes())
        return results + [feedback.residual.tobytes() for feedback in feedbacks.values()]

    expected = by_arithmetic(options, world_size)
    with Ranks(world_size, body, appliance.address) as ranks:
        for rank, results in enumerate(ranks.results(timeout_s=200)):
            names = [*calls(), *(f"residual of {length}" for length in LENGTHS)]
            wrong = [name for name, a, b in zip(names, results, expected[rank], strict=True) if a != b]
            if world_size > 2:  # f16 and bf16 are added in arrival order there
                wrong = [name for name in wrong if not (isinstance(name, tuple) and name[2])]
            assert not wrong, f"rank {rank}: {wrong}"


def test_ranks_with_other_codecs_are_refused_by_both(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> str:
        try:
            pascaline.Session(job=job, codec=codecs.Thc(g=20, p=[0.01, 0.02][rank]))
        except pascaline.JoinRefused as error:
            return str(error)
        return ""

    with Ranks(2, body, appliance.address) as ranks:
        for said in ranks.results(timeout_s=120):
            assert "thc g 20 p 0.01 #" in said or "table" in said, said
