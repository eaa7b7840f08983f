"""What a Session promises beyond sums: it is patient, interruptible, safe to fork beside, and says what is wrong."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pascaline
from tests.client.interrupt import ctrl_c
from tests.softroce.appliance import DATA_ADDRESS, Appliance
from tests.softroce.bench import PLACE_VARIABLE
from tests.softroce.ranks import Outcome, Ranks

NOBODY = 65534
SECONDS_TO_A_SENTENCE = 90.0 if os.environ.get(PLACE_VARIABLE) == "rxe-vm" else 10.0


def outcomes(appliance: Appliance, body: Any, world_size: int = 2, **options: Any) -> list[Outcome]:
    with Ranks(world_size, body, appliance.address, **options) as ranks:
        return ranks.outcomes(240)


def values(appliance: Appliance, body: Any, world_size: int = 2) -> list[Any]:
    with Ranks(world_size, body, appliance.address) as ranks:
        return ranks.results(240)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


# ---- Waiting ----


def test_a_wait_for_a_missing_rank_lets_threads_run_and_hears_ctrl_c(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> Any:
        with pascaline.Session(job=job) as session:
            if rank == 1:  # lives, but does not come
                began = time.monotonic()
                while session.idle() and time.monotonic() - began < 180:
                    time.sleep(0.05)
                session.all_reduce(np.ones(1, np.float32))
                return None
            work = session.all_reduce(np.ones(1, np.float32), async_op=True)
            # Each needs the GIL again. Who waits with it gives it back when it has given up, when there is no wait.
            turns = 0
            while turns < 300 and not work.is_completed():
                time.sleep(0.002)
                turns += 1
            try:
                with ctrl_c():
                    work.wait()
            except KeyboardInterrupt:
                assert turns == 300
                assert not work.is_completed()  # not heard only because the wait had ended
                raise

    waiting, missing = outcomes(appliance, body)
    assert waiting.error == "KeyboardInterrupt", waiting
    assert missing.error == "EpochEnded", missing
    assert "rank 0" in missing.message


def test_a_rank_that_does_not_come_is_named_after_the_time_out(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> Any:
        with pascaline.Session(job=job, timeout_s=5) as session:
            if rank == 0:
                session.all_reduce(np.ones(1, np.float32))
            while session.idle():
                time.sleep(0.05)
            session.all_reduce(np.ones(1, np.float32))

    waiting, missing = outcomes(appliance, body)
    assert waiting.error == "Timeout", waiting
    assert "rank 1" in waiting.message
    assert missing.error == "EpochEnded", missing


def test_tensors_in_flight_of_every_kind_complete_in_order(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> Any:
        with pascaline.Session(job=job, chunk_bytes=8192, window=2) as session:
            tensors: list[Any] = []
            works = []
            for i in range(12):
                dtype = np.int32 if i % 3 == 2 else np.float32
                tensors.append(np.full(1 + 1500 * i, rank + i, dtype))
                codec = "fixed32" if i % 3 == 1 else "f32"
                works.append(session.all_reduce(tensors[-1], async_op=True, codec=codec))
            empty = session.all_reduce(np.empty(0, np.float32), async_op=True)
            for work in reversed([*works, empty]):
                work.wait()
            return [(t == 2 * i + 1).all() for i, t in enumerate(tensors)], session.stats()["rounds"]

    for sums, rounds in values(appliance, body):
        assert all(sums)
        assert rounds > 50


# ---- fixed32 ----


def test_fixed32_has_the_same_bits_everywhere_and_again(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> Any:
        runs = []
        for run in range(2):
            with pascaline.Session(job=f"{job}-{run}", codec="fixed32", chunk_bytes=8192) as session:
                x = np.random.default_rng(rank).standard_normal(9000).astype(np.float32)
                x[:2048] *= 1e-30
                x[2048:4096] *= 1e30
                x[8999] = [np.inf, np.nan, 0, 1][rank]
                session.all_reduce(x)
                runs.append(x)
        assert runs[0].tobytes() == runs[1].tobytes()
        return runs[0]

    found = values(appliance, body, world_size=4)
    assert len({x.tobytes() for x in found}) == 1
    exact = sum(
        np.random.default_rng(rank).standard_normal(9000).astype(np.float32).astype(np.float64)
        for rank in range(4)
    )
    for begin, end, scale in ((0, 2048, 1e-30), (2048, 4096, 1e30), (4096, 8192, 1.0)):
        np.testing.assert_allclose(found[0][begin:end] / scale, exact[begin:end], atol=4e-7)
    assert np.isnan(found[0][8192:]).all()  # its chunk holds a NaN


# ---- Forks ----


def test_a_forked_child_neither_uses_nor_holds_the_session(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> Any:
        before = _descriptors()
        session = pascaline.Session(job=job)
        session.all_reduce(np.ones(5, np.float32))
        own = {str(Path(f"/proc/self/fd/{number}").readlink()) for number in session.descriptors()} - before
        assert any("uverbs" in name for name in own)
        assert any("socket:" in name for name in own)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # what a DataLoader's worker is
            os.write(write, _seen_by_a_child(session, own).encode())
            time.sleep(60)  # outlives the session
            os._exit(0)
        seen = os.read(read, 10_000).decode()
        tensor = np.ones(5, np.float32)
        session.all_reduce(tensor)
        if rank == 0:
            session.close()
        else:
            with pytest.raises(pascaline.EpochEnded, match="rank 0"):
                session.all_reduce(tensor)
            session.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return seen, tensor.tolist()

    for seen, sums in values(appliance, body):
        assert seen.startswith("SessionClosed: this session belongs to process"), seen
        assert seen.endswith("holds []"), seen
        assert sums == [2.0] * 5


def _seen_by_a_child(session: pascaline.Session, shared: set[str]) -> str:
    try:
        session.all_reduce(np.ones(1, np.float32))
    except pascaline.PascalineError as error:
        return f"{type(error).__name__}: {error} holds {sorted(shared & _descriptors())}"
    return "could use the session"


def _descriptors() -> set[str]:
    """RDMA files and sockets that this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            if "infiniband" in target or target.startswith("socket:"):
                found.add(target)
    return found


@pytest.mark.timeout(1200)  # half of it is `import torch`
def test_ddp_over_the_hook_with_a_forking_dataloader(appliance: Appliance, job: str, tmp_path: Path) -> None:
    import torch  # here: 20 s and more under emulation, once, before the ranks are forked
    import torch._dynamo  # DDP's constructor would, in every rank
    import torch.distributed as dist
    import torch.utils.data as data
    from torch.nn.parallel import DistributedDataParallel

    import pascaline.torch

    samples = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))

    def model() -> Any:
        torch.manual_seed(2)
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def train(net: Any, batches: Any) -> Any:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (batch,) in batches:
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
        return [p.detach().numpy().copy() for p in net.parameters()]

    def body(rank: int) -> Any:
        torch.set_num_threads(1)
        multiprocessing.current_process()._config["daemon"] = (
            False  # a rank is one, and those may not have children
        )
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=rank, world_size=2)
        ddp = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
        with pascaline.torch.register(ddp, job=job):
            mine = data.TensorDataset(samples[rank::2])
            loader = data.DataLoader(mine, batch_size=4, num_workers=1, multiprocessing_context="fork")
            return train(ddp, loader)

    first, second = values(appliance, body)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    whole = [(torch.cat([samples[0::2][i : i + 4], samples[1::2][i : i + 4]]),) for i in (0, 4)]
    for got, want in zip(first, train(model(), whole), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# ---- Sentences ----


def timed(**options: Any) -> None:
    """Join; the error's message ends with the seconds it took."""
    began = time.monotonic()
    try:
        pascaline.Session(**options).close()
    finally:
        assert time.monotonic() - began < SECONDS_TO_A_SENTENCE


def test_a_device_that_is_not_there_is_named_with_those_that_are(appliance: Appliance, job: str) -> None:
    (outcome,) = outcomes(appliance, lambda rank: timed(job=job, device="mlx5_9"), world_size=1)
    assert outcome.error == "LocalSetupError"
    assert "'mlx5_9' does not exist here; there is rxe0, rxe1" in outcome.message


def test_a_port_that_is_not_there(appliance: Appliance, job: str) -> None:
    (outcome,) = outcomes(appliance, lambda rank: timed(job=job, device="rxe0:2"), world_size=1)
    assert (outcome.error, outcome.message) == ("LocalSetupError", "RDMA device 'rxe0' has no port 2")


@pytest.fixture
def device_without_address() -> Iterator[str]:
    """An rxe device on an interface that is up and has no address but its link-local one."""
    ip("link", "add", "bare0", "type", "veth", "peer", "name", "bare1")
    try:
        for interface in ("bare0", "bare1"):
            ip("link", "set", interface, "up")
        subprocess.run(["rdma", "link", "add", "rxebare", "type", "rxe", "netdev", "bare0"], check=True)
        yield "rxebare"
    finally:
        ip("link", "del", "bare0")  # takes rxebare along


def test_a_port_without_a_gid_that_can_be_routed(
    appliance: Appliance, job: str, device_without_address: str
) -> None:
    body = lambda rank: timed(job=job, device=device_without_address)  # noqa: E731
    (outcome,) = outcomes(appliance, body, world_size=1)
    assert outcome.error == "LocalSetupError", outcome
    assert (
        "port rxebare:1 has no RoCE v2 GID of an IPv4 or a routable IPv6 address: give its network interface an address"
        in outcome.message
    )


@pytest.fixture
def narrow_port() -> Iterator[None]:
    """The switch's port towards the appliance takes 1500 bytes, of which neither end knows. Not the one towards the
    worker: there veth says to rxe that the packet is lost, and rxe sends it again without end and without its timer.
    """
    ip("link", "set", "bapp", "mtu", "1500")
    yield
    ip("link", "set", "bapp", "mtu", "9000")


def test_a_switch_port_with_a_small_mtu(appliance: Appliance, job: str, narrow_port: None) -> None:
    """soft-RoCE accepts the path MTU of 4096 and then nothing arrives."""
    (outcome,) = outcomes(appliance, lambda rank: timed(job=job), world_size=1)
    assert outcome.error == "LocalSetupError", outcome
    assert f"a probe of one path MTU (4096 bytes) did not pass between this worker and {DATA_ADDRESS} (" in (
        outcome.message
    )
    assert outcome.message.endswith(
        "every interface and switch port on the way needs an MTU of at least 4176 bytes"
    )


def test_locked_memory_that_is_refused(appliance: Appliance, job: str) -> None:
    def body(rank: int) -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        os.setuid(NOBODY)  # root may lock what it likes
        timed(job=job)

    (outcome,) = outcomes(appliance, body, world_size=1)
    assert outcome.error == "LocalSetupError", outcome
    assert "`ulimit -l` (locked memory) is 64 KiB: raise it" in outcome.message


def test_an_appliance_that_is_not_there(appliance: Appliance, job: str) -> None:
    (outcome,) = outcomes(appliance, lambda rank: timed(job=job, appliance="127.0.0.1:1"), world_size=1)
    assert outcome.error == "ApplianceUnreachable"
    assert os.strerror(errno.ECONNREFUSED) in outcome.message


@pytest.mark.parametrize(
    "options, reason",
    [
        (lambda rank: {"world_size": 2 + rank}, "world size"),
        (lambda rank: {"plan": f"model {rank}"}, "'model 0'"),
    ],
    ids=["world_size", "plan"],
)
def test_ranks_that_disagree_are_refused_with_both_values(
    appliance: Appliance, job: str, options: Any, reason: str
) -> None:
    found = outcomes(appliance, lambda rank: timed(job=job, join_timeout_s=20, **options(rank)))
    refused = [outcome for outcome in found if outcome.error == "JoinRefused"]
    assert refused, found
    assert all(reason in outcome.message for outcome in refused)
    both = ("2", "3") if reason == "world size" else ("model 0", "model 1")
    assert all(value in outcome.message for outcome in refused for value in both)
