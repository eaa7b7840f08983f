"""Ranks whose calls differ, over the emulated link: all of them hear of it, none waits, none takes a wrong sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import pascaline
from pascaline import codec as codecs

from .processes import run_ranks, said


def different_tensors(rank: int, _world_size: int) -> list[tuple[str, str]]:
    found = []
    for sizes, types in (([5, 6], "ff"), ([5, 5], "fi")):
        session = pascaline.Session(link="emulated")
        dtype = torch.float32 if types[rank] == "f" else torch.int32
        found.append(said(lambda: session.all_reduce(torch.ones(sizes[rank], dtype=dtype))))  # noqa: B023
        session.close()
    return found


def test_ranks_that_reduce_different_tensors_hear_of_both(tmp_path: Path) -> None:
    for length, op in run_ranks(tmp_path / "store", 2, different_tensors):
        assert length[0] == op[0] == "EpochEnded"
        assert "rank 0 contributes 20 bytes and rank 1 24 bytes" in length[1]
        assert "rank 0 contributes sum_f32 and rank 1 sum_i32" in op[1]


HIDE_LENGTHS: dict[str, Any] = {
    "sparse": "sparse",
    "sparse of fixed32": codecs.Sparse("fixed32"),
    "lhc": "lhc",
    "topk": "topk",
    "thc": "thc",
}
"""Codecs that write as many bytes first for 2000 elements as for 2010."""


def lengths_that_no_message_shows(rank: int, _world_size: int) -> dict[str, tuple[str, str]]:
    found = {}
    for key, codec in HIDE_LENGTHS.items():
        session = pascaline.Session(link="emulated", codec=codec, timeout_s=60)
        session.all_reduce(torch.ones(2000))
        tensor = torch.zeros([2000, 2010][rank])
        tensor[::7] = 1
        found[key] = said(lambda: session.all_reduce(tensor))  # noqa: B023
        session.close()
    return found


def test_tensors_whose_messages_are_equally_long_are_told_apart(tmp_path: Path) -> None:
    """A bitmap's last word, a block's padding: what would be added up is not the same tensor."""
    for rank, found in enumerate(run_ranks(tmp_path / "store", 2, lengths_that_no_message_shows)):
        own, other = [(2000, 2010), (2010, 2000)][rank]
        for key, (kind, sentence) in found.items():
            assert kind == "EpochEnded", key
            assert f"here a tensor of {own} elements is reduced, and elsewhere one of {other}:" in sentence, (
                key
            )


OTHERS: dict[str, tuple[Any, Any, Any]] = {
    "scales or none": ("f32", codecs.Sparse(), codecs.Sparse("fixed32")),
    "scales of both": ("f32", "fixed32", "lhc"),
    "the same messages": ("f32", codecs.Sparse(), "topk"),
    "phases": ("f32", "lhc", codecs.Lhc(phases=1)),
    "unknown": ("f32", codecs.TopK(share=0.3), codecs.TopK(share=0.2)),
    "own": ("f32", None, "fixed32"),
    "own with scales": ("thc", None, "f32"),
    "own with scales, and its messages": ("thc", None, codecs.Thc(rotate=False)),
    "own with scales, other without": ("fixed32", "sparse", "topk"),
    "own with scales, others, too": ("fixed32", None, "lhc"),
}
"""The session's codec, and those of one call: rank 0's and rank 1's."""


def different_codecs(rank: int, _world_size: int) -> dict[str, tuple[str, str]]:
    found = {}
    for key, (own, *each) in OTHERS.items():
        session = pascaline.Session(link="emulated", codec=own, timeout_s=60, lanes=2)
        for step in range(3):
            session.all_reduce(torch.ones(5000), codec=each[0])
            session.all_reduce(torch.ones(5000 + step, dtype=torch.int32))
        found[key] = said(lambda: session.all_reduce(torch.ones(5000), codec=each[rank]))  # noqa: B023
        session.close()
    session = pascaline.Session(link="emulated", codec="fixed32", timeout_s=60)
    named = pascaline.Session(link="emulated", codec=codecs.Lhc(phases=1), timeout_s=60)
    named.all_reduce(torch.ones(5000) * (torch.arange(5000) % 50 == 0), name="a")
    found["names"] = said(lambda: named.all_reduce(torch.ones(5000), name="ab"[rank]))
    named.close()
    kinds = [torch.float32, torch.int32]
    found["dtypes"] = said(lambda: session.all_reduce(torch.ones(5000, dtype=kinds[rank])))
    session.close()
    return found


def test_ranks_that_call_with_different_codecs_hear_of_both(tmp_path: Path) -> None:
    """Whatever each waits for first, and though they send the same messages: never a wait, never a wrong sum."""
    ranks = run_ranks(tmp_path / "store", 2, different_codecs)
    for rank, found in enumerate(ranks):
        for key, (own, *each) in OTHERS.items():
            kind, sentence = found[key]
            words = [codecs.describe(codecs.resolve(one or own), 0) for one in each]
            assert kind == "EpochEnded", (key, sentence)
            assert f"here all_reduce 6 goes by codec {words[rank]!r}" in sentence, (key, sentence)
            assert "a call's codec must be the same on every rank, too" in sentence
            if None not in each and key != "unknown":
                assert f"and elsewhere by {words[1 - rank]!r}:" in sentence, (key, sentence)
    assert ranks[0]["names"][0] == ranks[1]["names"][0] == "EpochEnded"
    assert "by codec 'fixed32'" in ranks[0]["dtypes"][1]
    assert "by codec 'none: int32 is summed as it is'" in ranks[1]["dtypes"][1]


def behind_others(rank: int, _world_size: int) -> tuple[str, str]:
    session = pascaline.Session(link="emulated", codec="fixed32", timeout_s=60)
    for _ in range(3):
        session.all_reduce(torch.ones(50_000), codec="lhc", async_op=True)
    found = said(lambda: session.all_reduce(torch.ones(5000), codec=[None, "sparse"][rank]))
    session.close()
    return found


def test_calls_that_are_pending_and_alike_are_not_blamed(tmp_path: Path) -> None:
    for (kind, sentence), own in zip(
        run_ranks(tmp_path / "store", 2, behind_others), ("fixed32", "sparse"), strict=True
    ):
        assert kind == "EpochEnded", sentence
        assert f"here all_reduce 3 goes by codec {codecs.describe(codecs.resolve(own), 0)!r}" in sentence


def name_that_is_a_list(_rank: int, _world_size: int) -> tuple[str, str]:
    session = pascaline.Session(link="emulated", timeout_s=60)
    found = said(lambda: session.all_reduce(torch.ones(3), name=["w"]))  # type: ignore[arg-type]
    session.all_reduce(torch.ones(3), name="w")  # lives on
    session.close()
    return found


def test_a_name_that_is_not_a_str_is_refused(tmp_path: Path) -> None:
    for found in run_ranks(tmp_path / "store", 2, name_that_is_a_list):
        assert found == ("ConfigurationError", "name is ['w'], a list: pass a str")


EMPTY_BESIDE = [
    ("f32", None),
    ("f32", "fixed32"),
    ("sparse", None),
    ("thc", None),
    ("fixed32", "f32"),
    ("f32", torch.int32),
]
"""The session's codec, and of a call whose tensor is empty on rank 0 alone: its codec, or its dtype."""


def one_empty_tensor(rank: int, _world_size: int) -> list[tuple[str, str]]:
    found = []
    for own, of_call in EMPTY_BESIDE:
        session = pascaline.Session(link="emulated", codec=own, timeout_s=60, lanes=2)
        is_int = isinstance(of_call, torch.dtype)
        codec, dtype = (None, of_call) if is_int else (of_call, torch.float32)
        for _ in range(3):  # on all ranks, whatever else they differ in
            session.all_reduce(torch.ones(0, dtype=[torch.float32, torch.int32][rank]))
            session.all_reduce(torch.ones(7))
        session.all_reduce(torch.ones(0))
        tensor = torch.ones(7 * rank, dtype=dtype)
        found.append(said(lambda: session.all_reduce(tensor, codec=codec)))  # noqa: B023
        session.close()
    session = pascaline.Session(link="emulated")
    works = [session.all_reduce(torch.ones(n), async_op=True) for n in (0, 5000, 0)]
    session.leave()
    assert [work.exception() for work in works] == [None] * 3
    return found


def test_a_tensor_that_is_empty_on_one_rank_alone_is_told_to_both(tmp_path: Path) -> None:
    """Rather than waited for: an empty one says so; and where all are empty, nothing is wrong."""
    for rank, found in enumerate(run_ranks(tmp_path / "store", 2, one_empty_tensor)):
        for case, (kind, sentence) in zip(EMPTY_BESIDE, found, strict=True):
            assert kind == "EpochEnded", (case, sentence)
            assert "every rank must reduce the same tensors" in sentence, (case, sentence)
            assert ("here all_reduce 7 goes by codec 'none: the tensor is empty'" in sentence) == (rank == 0)
