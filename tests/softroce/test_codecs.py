"""Codecs whose results are longer than their contributions, and those of several rounds, through the real appliance:
bit for bit what the emulated arithmetic makes of the same gradients, scales, draws, residuals and all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pascaline
from pascaline import codec as codecs
from pascaline.reduce import Collective
from tests.client.rack import Rack
from tests.learning.sample import sampled
from tests.softroce.appliance import Appliance
from tests.softroce.ranks import Ranks

Array = NDArray[Any]
SLOT, WINDOW, SEED = 16384, 4, 5
STEPS = 2
LENGTHS = [1, 1023, 5 * SLOT + 1700]
"""The last is more than a window of u8 sums, and ends in a short block."""


@dataclass(frozen=True)
class Case:
    """A job's codec and gradients."""

    world_size: int
    options: codecs.Options
    gradients: Callable[[int, int], dict[str, Array]]
    """(rank, step) -> float32 by name."""
    others: tuple[str, ...] = ()
    """Codecs that are used besides the session's own."""

    def calls(self) -> list[tuple[int, str, str | None]]:
        """(step, name, codec) of all collectives, in order; None is the session's codec, with error feedback."""
        return [
            (step, name, codec)
            for step in range(STEPS)
            for name in self.gradients(0, step)
            for codec in (None, *self.others)
        ]

    def feedbacks(self) -> dict[str, codecs.ErrorFeedback]:
        """New ones of one rank."""
        if not self.options.error_feedback:
            return {}
        return {name: codecs.ErrorFeedback(x.size) for name, x in self.gradients(0, 0).items()}


def drawn(rank: int, step: int) -> dict[str, Array]:
    """Of scales over two decades."""
    found = {}
    for elems in LENGTHS:
        rng = np.random.default_rng((rank, step, elems))
        found[str(elems)] = (rng.normal(size=elems) * np.logspace(-1, 1, elems)).astype(np.float32)
    return found


def captured(rank: int, step: int) -> dict[str, Array]:
    """Of the workers of a CNN and a GPT in the middle of their trainings, again in every step."""
    return {model: rows[rank].copy() for model, rows in sampled()}


def scattered(rank: int, step: int) -> dict[str, Array]:
    """Single values in the first half, rows in the second, and a chunk in which there is nothing."""
    found = {}
    for name, x in drawn(rank, step).items():
        rng = np.random.default_rng((rank, step, 99))
        half = x.size // 2
        x[:half][rng.random(half) > 0.03] = 0
        x[half:][np.repeat(rng.random(-(-(x.size - half) // 64)) > 0.1, 64)[: x.size - half]] = 0
        x[3 * SLOT // 4 : 5 * SLOT // 4] = 0
        found[name] = x
    return found


CASES = {
    "u8": Case(2, codecs.Thc(g=20, p=0.01), drawn, ("f16", "bf16")),
    "u16": Case(4, codecs.Thc(g=200, p=0.01), drawn, ("f16", "bf16")),
    "one-scale": Case(2, codecs.Thc(name="thc-paper"), drawn, ("f16", "bf16")),
    "captured": Case(4, codecs.Thc(), captured),
    "sparse": Case(2, codecs.Sparse(), scattered, ("f32",)),
    "sparse-fixed32": Case(4, codecs.Sparse("fixed32"), scattered, ("fixed32",)),
    "topk": Case(2, codecs.TopK(share=1 / 50), drawn, ("sparse",)),
    "sparse-one-phase": Case(2, codecs.Sparse(phases=1), scattered, ("f32",)),
    "topk-one-phase": Case(2, codecs.TopK(share=1 / 50, values="fixed32", phases=1), drawn),
    "lhc": Case(2, codecs.Lhc(), scattered, ("fixed32",)),
    "lhc-one-phase": Case(2, codecs.Lhc(phases=1), scattered, ("fixed32",)),
}


def by_arithmetic(case: Case) -> list[list[bytes]]:
    """Sums and residuals of all ranks, by the reduce room over a rack in memory."""
    options, world_size = case.options, case.world_size
    first = options.build(0, world_size, SEED)
    tables = dict.fromkeys(first.ops, first.table) if first.table else {}
    rack = Rack(world_size, (WINDOW, SLOT), (2, 4096), tables=tables)
    lines = [rack.lines(rank) for rank in range(world_size)]
    feedbacks = [case.feedbacks() for _ in lines]
    built: list[dict[str | None, codecs.Codec]] = [{} for _ in lines]
    results: list[list[bytes]] = [[] for _ in lines]
    for sequence, (step, name, other) in enumerate(case.calls()):
        tensors = [case.gradients(rank, step)[name] for rank in range(world_size)]
        for rank, (data, small) in enumerate(lines):
            if other not in built[rank]:  # one each for the whole job, as a session keeps them
                built[rank][other] = codecs.for_array(
                    tensors[rank].dtype, other or options, rank, world_size, SEED
                )
            codec = built[rank][other]
            feedback = None if other else feedbacks[rank].get(name)
            done = Collective(tensors[rank], codec, sequence, lambda: None, feedback)
            for line, stream in done.streams([data], small):
                line.enter(stream)
        while any(line.busy() for pair in lines for line in pair):
            for rank, pair in enumerate(lines):
                for result in rack.links[rank].completions():
                    pair[result.pool].arrived(result)
                while any([line.advance() for line in pair]):
                    pass
        for rank, tensor in enumerate(tensors):
            results[rank].append(tensor.tobytes())
    for rank, own in enumerate(feedbacks):
        results[rank] += [feedback.residual.tobytes() for feedback in own.values()]
    return results


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sums_and_residuals_are_the_arithmetic_s(appliance: Appliance, job: str, case: Case) -> None:
    def body(rank: int) -> list[bytes]:
        feedbacks = case.feedbacks()
        results = []
        with pascaline.Session(
            job=job, codec=case.options, random_seed=SEED, chunk_bytes=SLOT, window=WINDOW
        ) as session:
            for step, name, other in case.calls():
                tensor = case.gradients(rank, step)[name]
                feedback = None if other else feedbacks.get(name)
                session.all_reduce(tensor, codec=other, error_feedback=feedback)
                results.append(tensor.tobytes())
        return results + [feedback.residual.tobytes() for feedback in feedbacks.values()]

    expected = by_arithmetic(case)
    with Ranks(case.world_size, body, appliance.address) as ranks:
        for rank, results in enumerate(ranks.results(timeout_s=200)):
            names = [*case.calls(), *(f"residual of {name}" for name in case.feedbacks())]
            wrong = [name for name, a, b in zip(names, results, expected[rank], strict=True) if a != b]
            if case.world_size > 2:  # f16 and bf16 are added in arrival order there
                wrong = [
                    name for name in wrong if not (isinstance(name, tuple) and name[2] in ("f16", "bf16"))
                ]
            assert not wrong, f"rank {rank}: {wrong}"


def test_ranks_with_other_codecs_are_refused_by_both(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> list[str]:
        heard = []
        for i, options in enumerate(
            [codecs.Thc(g=20, p=[0.01, 0.02][rank]), codecs.Thc(rounding=[None, "independent"][rank])]
        ):
            try:
                pascaline.Session(job=f"{job}-{i}", codec=options)
            except pascaline.JoinRefused as error:
                heard.append(str(error))
        return heard

    with Ranks(2, body, appliance.address) as ranks:
        for by_table, by_switch in ranks.results(timeout_s=120):
            assert "'thc g 20 p 0.01'" in by_table or "table" in by_table, by_table
            assert "'thc'" in by_switch and "'thc rounding independent'" in by_switch, by_switch


def test_ranks_that_call_with_other_codecs_hear_of_both(appliance: Appliance, job: str) -> None:
    """One waits for scales on the small pool, the other for an index on a data pool."""
    chosen = [codecs.Sparse(), codecs.Sparse("fixed32")]

    def body(rank: int) -> str:
        with pytest.raises(pascaline.EpochEnded) as raised, pascaline.Session(job=job) as session:
            session.all_reduce(np.ones(5000, np.float32), codec=chosen[0])
            session.all_reduce(np.ones(5000, np.float32), codec=chosen[rank])
        return str(raised.value)

    with Ranks(2, body, appliance.address) as ranks:
        here, there = ranks.results(timeout_s=120)
    assert (
        "here all_reduce 1 goes by codec 'sparse', and elsewhere by 'sparse values fixed32': a call" in here
    )
    assert (
        "here all_reduce 1 goes by codec 'sparse values fixed32', and elsewhere by 'sparse': a call" in there
    )
