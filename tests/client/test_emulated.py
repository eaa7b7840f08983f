"""Sessions over the emulated link: real processes over Gloo; every codec's sum is what its own definition says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import pascaline
from pascaline import codec as codecs
from pascaline.codec.thc import reference
from pascaline.contract import wire
from pascaline.errors import ConfigurationError, EpochEnded, PascalineError, Timeout
from pascaline.link import Result
from pascaline.link.emulated import streams
from pascaline.link.emulated.link import EmulatedLink, PoolSize
from pascaline.session import emulated

from .processes import run_ranks, said
from .thc_rack import nmse

ELEMS = 2 * 8192 + 700
"""Two whole slots of a thc sum in u8, and a block that is short."""
SLOT = 8192
SEED = 11


def gradient(rank: int, step: int = 0, elems: int = ELEMS) -> torch.Tensor:
    """Correlated over ranks, of scales over two decades."""
    common = torch.randn(elems, generator=torch.Generator().manual_seed(step))
    own = torch.randn(elems, generator=torch.Generator().manual_seed(1000 + 17 * step + rank))
    return (common + own) * torch.logspace(-1, 1, elems)


# ---- Sums ----


def every_codec(_rank: int, _world_size: int, names: list[Any]) -> dict[str, Any]:
    results = {}
    for name in names:
        with pascaline.Session(link="emulated", codec=name, chunk_bytes=SLOT, random_seed=SEED) as session:
            tensors = [gradient(session.rank, step) for step in range(2)]
            for work in [session.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()
            key = name if isinstance(name, str) else codecs.describe(name, SEED)
            results[key] = ([tensor.numpy() for tensor in tensors], session.stats())
    return results


def over_lanes(_rank: int, _world_size: int, names: list[str]) -> dict[str, list[Any]]:
    """By codec: sums over one lane and over three."""
    results: dict[str, list[Any]] = {name: [] for name in names}
    for name in names:
        for lanes in (1, 3):
            options: dict[str, Any] = {
                "codec": name,
                "chunk_bytes": SLOT,
                "random_seed": SEED,
                "lanes": lanes,
            }
            with pascaline.Session(link="emulated", **options) as session:
                assert [pool["class"] for pool in session.stats()["pools"]] == ["data"] * lanes + ["small"]
                tensors = [
                    gradient(session.rank, step, elems) for step, elems in enumerate((ELEMS, 3, ELEMS))
                ]
                for work in [session.all_reduce(tensor, async_op=True) for tensor in tensors]:
                    work.wait()
                results[name].append([tensor.numpy() for tensor in tensors])
    return results


def test_any_number_of_lanes_gives_the_same_bits(tmp_path: Path) -> None:
    names = ["f32", "fixed32", "thc", "thc-paper", "sparse", "topk", "lhc"]
    for results in run_ranks(tmp_path / "store", 2, over_lanes, names):
        for name in names:
            one, three = results[name]
            assert [a.tobytes() for a in one] == [b.tobytes() for b in three], name


BOUNDS = {
    "f32": 1e-12,
    "fixed32": 1e-12,
    "f16": 1e-6,
    "bf16": 1e-4,
    "thc": 0.02,
    "thc-paper": 0.2,
    "thc-release": 0.2,
    "thc-uniform": 0.02,
    "thc-uniform-max": 0.04,
    "terngrad": 1.5,
    "sparse": 1e-12,
    "topk": 0.5,
    "lhc": 1e-12,
}
BITS_UP = {"f32": 32, "f16": 16, "bf16": 16, "fixed32": 32, "terngrad": 2, "sparse": 32, "lhc": 33}


def test_every_codec_sums_alike_on_all_ranks_within_its_bound(tmp_path: Path) -> None:
    assert set(BOUNDS) == set(codecs.NAMES)
    ranks = run_ranks(tmp_path / "store", 3, every_codec, list(codecs.NAMES))
    for name, bound in BOUNDS.items():
        for step in range(2):
            values = ranks[0][name][0][step]
            assert all(one[name][0][step].tobytes() == values.tobytes() for one in ranks)
            error = nmse(torch.from_numpy(values), [gradient(rank, step) for rank in range(3)])
            assert error <= bound, f"{name}: {error}"
        stats = ranks[0][name][1]
        assert stats["link"] == "emulated"
        measured = stats["codecs"][name]
        assert measured["elements"] == 2 * ELEMS
        # scales and the short block's padding are a few per cent of so short a tensor
        if name != "topk":  # whose union is the gradients' business
            assert measured["bits_up"] == pytest.approx(BITS_UP.get(name, 4), rel=0.06)
        if measured["measured"]:  # one chunk: with one scale for all, one of small values is mostly error
            assert 0 < measured["nmse"] < (1 if name in ("thc-paper", "thc-release") else 2 * bound + 0.03)
    topk = ranks[0]["topk"][1]["codecs"]["topk"]
    assert topk["kept"] == 2 * (
        ELEMS // (SLOT // 4) * SLOT // 4 // 8 + ELEMS % (SLOT // 4)
    )  # the last chunk is small
    assert 32 / 8 < topk["bits_up"] < 3 * 32 / 8 + 1.1
    assert topk["encodings"] == {"bitmap": 16, "dense": 2}
    assert ranks[0]["sparse"][1]["codecs"]["sparse"]["encodings"] == {"dense": 18}
    assert ranks[0]["lhc"][1]["codecs"]["lhc"]["encodings"] == {"dense": 18}


def of_sparse_gradients(rank: int, world_size: int, names: list[Any]) -> dict[str, Any]:
    """One tensor in 20 chunks: a twentieth not 0, whole rows, nothing at all, and an Inf in the last chunk."""
    results = {}
    for name in names:
        with pascaline.Session(link="emulated", codec=name, chunk_bytes=SLOT, random_seed=SEED) as session:
            generator = torch.Generator().manual_seed(rank)
            tensor = torch.randn(20 * SLOT // 4 - 5, generator=generator)
            tensor *= torch.rand(tensor.shape, generator=generator) < 0.05
            tensor[: SLOT // 4].view(-1, 64)[rank::5] = 1 + rank
            tensor[SLOT // 4 : SLOT // 2] = 0
            tensor[-1] = float("inf") if rank == 1 else 1
            tensors = [tensor, tensor.clone()]
            for work in [session.all_reduce(one, async_op=True) for one in tensors]:
                work.wait()
            results[codecs.describe(codecs.resolve(name), SEED)] = (
                [one.numpy() for one in tensors],
                session.stats()["codecs"][codecs.resolve(name).name],
            )
    return results


def test_lhc_through_a_session_is_fixed32_bit_for_bit(tmp_path: Path) -> None:
    names = ["fixed32", "lhc", codecs.Lhc(phases=1), codecs.Lhc(permille=1000)]
    ranks = run_ranks(tmp_path / "store", 3, of_sparse_gradients, names)
    fixed, two, one, tight = (codecs.describe(codecs.resolve(name), SEED) for name in names)
    for result in ranks:
        for name in (two, one, tight):
            for got, wanted in zip(result[name][0], ranks[0][fixed][0], strict=True):
                assert got.tobytes() == wanted.tobytes(), name
    stats = {name: ranks[0][name][1] for name in (two, one, tight)}
    assert all(sum(each["encodings"].values()) == 40 for each in stats.values())
    assert all(
        each["encodings"]["nothing"] == 4 for each in stats.values()
    )  # zeros; and Inf, which the scale says
    assert stats[two]["encodings"]["sketch"] > 20
    assert stats[one]["encodings"]["sketch"] > 20
    assert (
        1.02 < stats[one]["bits_up"] / stats[two]["bits_up"] < 1.2
    )  # the second step's sketches have a margin
    assert stats[tight]["encodings"]["sketch and repair"] >= 20
    assert stats[two]["bits_up"] == stats[two]["bits_down"] < 0.3 * 32


def by_the_reference(params: Any, grads: list[torch.Tensor], sequence: int, slot_elems: int) -> torch.Tensor:
    """The sum, straight from docs/thc.md: what reduce's chunks, tails, sequence numbers and scales must come to."""
    parts = [slice(begin, min(begin + slot_elems, ELEMS)) for begin in range(0, ELEMS, slot_elems)]
    norms = [[reference.norms(params, x[part]) for part in parts] for x in grads]
    if params.scale_per == "tensor":
        whole = [reference.tensor_norm(params, torch.cat(rows)) for rows in norms]
        norms = [[one.expand(row.numel()) for row in rows] for one, rows in zip(whole, norms, strict=True)]
    out = torch.empty(ELEMS)
    for number, part in enumerate(parts):
        scales = torch.stack([rows[number] for rows in norms]).amax(0)
        size = part.stop - part.start
        packed = [torch.empty(params.packed_bytes(size), dtype=torch.uint8) for _ in grads]
        for rank, x in enumerate(grads):
            place = (rank, sequence, number)
            tail = (1.0, scales, params.coordinates(ELEMS), packed[rank])
            reference.encode(params, *place, x[part], None, None, *tail)
        sums = reference.table_sum(params, packed)
        values = torch.empty(size)
        reference.decode(
            params, sequence, number, len(grads), sums, scales, params.coordinates(ELEMS), values
        )
        out[part] = values
    return out


SETTINGS = [
    codecs.Thc(),
    codecs.Thc(name="thc-paper"),
    codecs.Thc(bits=8, g=255, p=0.01),
    codecs.Thc(bits=3, g=20, p=0.01),
]


def test_thc_through_a_session_is_the_reference_bit_for_bit(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path / "store", 2, every_codec, SETTINGS)
    for options in SETTINGS:
        params = options.params(2, SEED)
        for step in range(2):
            grads = [gradient(rank, step) for rank in range(2)]
            expected = by_the_reference(params, grads, step, SLOT * 8 // params.sum_bits)
            got = ranks[1][codecs.describe(options, SEED)][0][step]
            assert got.tobytes() == expected.numpy().tobytes(), options


def without_end(rank: int, _world_size: int) -> float:
    """Error feedback by hand: what is left out comes later, so the sums of sums agree better and better."""
    feedback = pascaline.ErrorFeedback(ELEMS)
    given, got = torch.zeros(ELEMS), torch.zeros(ELEMS)
    with pascaline.Session(link="emulated", codec="topk", chunk_bytes=SLOT) as session:
        for step in range(4):
            x = gradient(rank, step)
            given += x
            session.all_reduce(x, error_feedback=feedback)
            got += x
        left = torch.from_numpy(feedback.residual.copy())
        for total in (given, left):
            session.all_reduce(total, codec="f32")
        return float((got + left - given).abs().max() / given.abs().max())


def test_a_session_s_error_feedback_loses_nothing(tmp_path: Path) -> None:
    assert max(run_ranks(tmp_path / "store", 2, without_end)) < 1e-6


# ---- Refusals ----


def refusals(rank: int, world_size: int) -> dict[str, tuple[str, str]]:
    def session(**options: Any) -> Any:
        return pascaline.Session(link="emulated", **options)

    found = {
        "seed": said(lambda: session(codec="thc", random_seed=rank)),
        "p": said(lambda: session(codec=codecs.Thc(g=30, p=[0.01, 0.02][rank]))),
        "switch": said(lambda: session(codec=codecs.Thc(rounding=[None, "independent"][rank]))),
        "plan": said(lambda: session(plan=f"model {rank}")),
        "overflow": said(lambda: session(codec=codecs.Thc(table=tuple(range(0, 256, 17)), t=2.0))),
        "group": said(
            lambda: session(process_group=dist.new_group([1 - rank], use_local_synchronization=False))
        ),
    }
    found["slot"] = said(lambda: session(codec="thc", chunk_bytes=512))
    chosen, emulated.CHUNK_BYTES = emulated.CHUNK_BYTES, 512
    found["chosen slot"] = said(lambda: session(codec="thc"))
    with session() as small:
        found["fits"] = said(lambda: small.all_reduce(torch.ones(3), codec="f16"))
    emulated.CHUNK_BYTES = chosen
    with session(chunk_bytes=4) as tiny:
        found["tiny"] = said(lambda: tiny.all_reduce(torch.ones(3), codec="bf16"))
        found["one by one"] = said(lambda: tiny.all_reduce(torch.ones(3)))
    with session(codec="thc") as wide:
        found["other"] = said(lambda: wide.all_reduce(torch.ones(3), codec="terngrad"))
        found["table"] = said(lambda: wide.all_reduce(torch.ones(3), codec="thc-paper"))
        feedback = codecs.ErrorFeedback(4)
        found["elements"] = said(lambda: wide.all_reduce(torch.ones(3), error_feedback=feedback))
        found["lossless"] = said(lambda: wide.all_reduce(torch.ones(4), codec="f32", error_feedback=feedback))
    return found


def test_what_cannot_be_is_refused_by_both_values(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path / "store", 2, refusals)
    for found in ranks:
        for key in ("seed", "p", "plan"):
            assert found[key][0] == "JoinRefused"
            assert "rank 0 joins with plan" in found[key][1]
            assert "and rank 1 with" in found[key][1]
        assert "plan 'thc g 30 p 0.01' and rank 1 with 'thc g 30 p 0.02'" in found["p"][1]
        assert "plan 'thc' and rank 1 with 'thc seed 1'" in found["seed"][1]
        assert "plan 'thc' and rank 1 with 'thc rounding independent'" in found["switch"][1]
        assert (
            found["slot"]
            == found["chosen slot"]
            == (
                "ConfigurationError",
                "thc needs slots of 1024 bytes, a block's sums, and the job has 512: join with a larger chunk_bytes",
            )
        )
        assert found["fits"] == found["one by one"] == ("", "")
        assert "slots of 4 bytes hold no result of codec bf16" in found["tiny"][1]
        assert (
            "needs the op lut2_u8 with its own table, and this session joined with thc: join"
            in found["other"][1]
        )
        assert "needs the op lut4_u8 with its own table" in found["table"][1]
        assert "of 4 elements and this tensor has 3" in found["elements"][1]
        assert "codec f32 leaves nothing out" in found["lossless"][1]
    assert "the process group that the emulated link was given" in ranks[0]["group"][1]


def test_sums_that_could_overflow_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigurationError, match=r"g = 255 times 300 ranks is 76500, above the 65535"):
        codecs.Thc(table=tuple(range(0, 256, 17)), t=2.0).build(0, 300, 0)


def test_threshold_wants_its_number() -> None:
    with pytest.raises(ConfigurationError, match=r"needs a number.*pass pascaline.codec.Threshold\(x\)"):
        codecs.resolve("threshold")


@pytest.mark.parametrize("options", ["zip", 7, None])
def test_an_unknown_codec_is_refused_with_the_list(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no codec .*f32, f16, .*thc-paper, .*topk"):
        codecs.resolve(options)


def test_the_emulated_link_needs_a_process_group() -> None:
    if dist.is_initialized():
        pytest.skip("another test has initialised torch.distributed")
    with pytest.raises(ConfigurationError, match=r"call torch.distributed.init_process_group first"):
        pascaline.Session(link="emulated")
    with pytest.raises(ConfigurationError, match="link is 'tcp': choose"):
        pascaline.Session(link="tcp")  # type: ignore[arg-type]


# ---- Streams of sub-blocks: no codec sends any yet, so the link is asked itself. ----


def streams_through_the_link(rank: int, world_size: int) -> list[tuple[str, object]]:
    """Long and short, and then one that is none at rank 1. What each round has ended in."""
    chunk_bytes, found = 65536, []
    link = EmulatedLink(None, timeout_s=60)
    link.open(["expand_sum_i32"], {}, [PoolSize(2, chunk_bytes), PoolSize(1, 256)])
    pool = link.pools[0]
    for round_, elements in enumerate((40, 9000, 9000)):
        there = np.arange(elements) % (2 + 5 * rank) == 0
        stream = streams.encode(there, np.arange(elements, dtype=np.int32))
        if round_ == 2 and rank == 1:
            stream[4:8] = 255
        pool.contributions[round_ % 2][: stream.size] = stream.tobytes()
        pool.write(round_ % 2, stream.size, 1 << wire.VA_WINDOW_SHIFT | round_ << wire.VA_ROUND_SHIFT, 7)
        try:
            landed: list[Result] = []
            while not landed:
                assert link.wait(60)
                landed = link.completions()
            data = np.frombuffer(pool.results[round_ % 2], np.uint8)[: landed[0].length_bytes]
            mask, values = streams.decode(data, elements)
            found.append(("", (mask.tolist(), values.tolist())))
        except PascalineError as error:
            found.append((type(error).__name__, str(error)))
    link.close()
    return found


def test_streams_of_different_lengths_add_up_and_a_broken_one_is_named(tmp_path: Path) -> None:
    for found in run_ranks(tmp_path / "store", 2, streams_through_the_link):
        for (error, result), elements in zip(found[:2], (40, 9000), strict=True):
            assert error == ""
            i = np.arange(elements)
            masks = [i % 2 == 0, i % 7 == 0]
            assert result == ((masks[0] | masks[1]).tolist(), (i * masks[0] + i * masks[1]).tolist())
        assert found[2][0] == "EpochEnded"
        assert "rank 1 contributes a sub-block of 2048 elements of which 4294967295 are there" in found[2][1]


# ---- Ends ----


def one_leaves_early(rank: int, _world_size: int) -> tuple[str, str]:
    session = pascaline.Session(link="emulated")
    session.all_reduce(torch.ones(10))
    if rank == 1:
        return "", ""  # and the process ends, without a word
    return said(lambda: session.all_reduce(torch.ones(10)))


def test_a_rank_that_dies_is_an_error_and_no_hang(tmp_path: Path) -> None:
    survivor, _ = run_ranks(tmp_path / "store", 2, one_leaves_early)
    assert survivor[0] == EpochEnded.__name__
    assert "all_gather failed" in survivor[1]


def one_does_not_come(rank: int, _world_size: int) -> tuple[str, str]:
    """It lives, and goes when the other has given up."""
    given_up = dist.new_group()
    session = pascaline.Session(link="emulated", timeout_s=0.5)
    heard = said(lambda: session.all_reduce(torch.ones(10))) if rank == 0 else ("", "")
    dist.barrier(group=given_up)
    session.close()
    return heard


def test_a_rank_that_does_not_come_is_waited_for_and_no_longer(tmp_path: Path) -> None:
    waiting, _ = run_ranks(tmp_path / "store", 2, one_does_not_come)
    assert waiting[0] == Timeout.__name__
    assert "(limit 0.5 s) for the other ranks, of which one has not called all_reduce" in waiting[1]


def alone_in_a_group(rank: int, _world_size: int) -> float:
    """Two pairs of ranks, each a job of its own, one session after the other."""
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    for _ in range(2):
        with pascaline.Session(link="emulated", process_group=group) as session:
            x = torch.full((5,), float(rank))
            session.all_reduce(x)
    return float(x[0])


def test_groups_of_other_ranks_do_not_meet(tmp_path: Path) -> None:
    assert run_ranks(tmp_path / "store", 4, alone_in_a_group) == [1.0, 1.0, 5.0, 5.0]
