"""Ranks of a job as processes over Gloo, for tests of the emulated link and of DDP.

They are forked by a server that has imported PyTorch and nothing else: cheap, and free of the test process's threads.
A body is a function of a module, `body(rank, world_size, *arguments)`; what it returns must pickle.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pascaline.errors import PascalineError

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["pascaline.torch", "pascaline.link.emulated.link", "torch.nn.parallel"])
DEADLINE_S = 120.0
"""Reached in failure alone."""


def said(call: Callable[[], Any]) -> tuple[str, str]:
    """In a body: the error of a call that is refused or fails, by type and sentence; of any other, nothing."""
    try:
        call()
    except PascalineError as error:
        return type(error).__name__, str(error)
    return "", ""


class RankFailed(AssertionError):
    """Some rank's body raised, or did not end; the message has their tracebacks."""


def run_ranks(store: Path, world_size: int, body: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`body` in `world_size` processes with torch.distributed initialised; their results in rank order."""
    pipes: dict[Connection, int] = {}
    processes = []
    for rank in range(world_size):
        ours, theirs = _SERVER.Pipe(duplex=False)
        process = _SERVER.Process(
            target=_main, args=(rank, world_size, str(store), body, arguments, theirs), daemon=True
        )
        process.start()
        theirs.close()
        pipes[ours] = rank
        processes.append(process)
    try:
        return _results(pipes, world_size)
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _results(pipes: dict[Connection, int], world_size: int) -> list[Any]:
    results: dict[int, Any] = {}
    errors: dict[int, str] = {}
    while pipes:
        ready = wait(list(pipes), DEADLINE_S)
        if not ready:
            errors |= {rank: f"no result within {DEADLINE_S:g} s" for rank in pipes.values()}
            break
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = pipes.pop(pipe)
            try:
                results[rank], error = pickle.loads(pipe.recv_bytes())
            except EOFError:
                error = "died without a word"
            if error:
                errors[rank] = error
    if errors:
        raise RankFailed("\n".join(f"rank {rank}: {error}" for rank, error in sorted(errors.items())))
    return [results[rank] for rank in range(world_size)]


def _main(
    rank: int,
    world_size: int,
    store: str,
    body: Callable[..., Any],
    arguments: tuple[Any, ...],
    pipe: Connection,
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    try:
        answer = (body(rank, world_size, *arguments), "")
    except BaseException:
        answer = (None, traceback.format_exc())
    pipe.send_bytes(
        pickle.dumps(answer)
    )  # not send: PyTorch would share a tensor's memory, which ends with the process
    pipe.close()
    os._exit(0)  # not through destructors: another rank may be in the middle of an exchange that failed
