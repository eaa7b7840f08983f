"""State of the hook: the session it sums through, and what it refuses before anything is sent."""

from __future__ import annotations

import hashlib
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from pascaline.errors import ConfigurationError, UnsupportedTensor
from pascaline.session import Session
from pascaline.session.identity import job_name
from pascaline.session.work import Work


class PascalineState:
    """Joins the job that `process_group` is (None: the default group, else what torchrun's environment says).

    `session` is one that is already joined: several states may share it, and it stays its owner's to leave.
    Otherwise `session_options` are Session's arguments and the state's session leaves with the state: use it as
    a context manager, call `leave`, or let the interpreter's exit do it.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        session: Session | None = None,
        **session_options: Any,
    ) -> None:
        if session is not None and session_options:
            raise ConfigurationError(
                f"a session is given: it cannot be joined again with {sorted(session_options)}"
            )
        ranks = _ranks(process_group)
        self._owns_session = session is None
        if session is None:
            if suffix := _suffix(process_group):
                session_options["job"] = job_name(session_options.get("job"), suffix=suffix)
            session = Session(**{**ranks, **session_options})
        elif ranks and session.world_size != ranks["world_size"]:
            raise ConfigurationError(
                f"the session has {session.world_size} ranks and the process group {ranks['world_size']}: "
                "join with the group's rank and world size"
            )
        self.session = session
        self._pending: list[Work] = []

    def check(self, buffer: torch.Tensor) -> None:
        """Refuse what the appliance cannot sum; mixed dtypes give one bucket each."""
        if buffer.dtype != torch.float32:
            name = str(buffer.dtype).removeprefix("torch.")
            raise UnsupportedTensor(
                f"a gradient bucket is {name} and this version reduces float32 only: keep parameters in float32 "
                "(autocast may still compute in 16 bits)"
            )

    def launched(self, work: Work, is_last: bool) -> None:
        """Remember a bucket's work; with the backward pass's last one, wait for all of them here, in Python.

        DDP waits for its futures in C++, where Ctrl-C is not heard: a missing rank would make the process deaf. Nothing
        is lost by waiting now, since DDP does nothing but wait after its last bucket.
        """
        self._pending.append(work)
        if is_last:
            pending, self._pending = self._pending, []
            for launched in pending:
                launched.wait()

    def leave(self) -> None:
        """Leave the job, unless the session was given: every rank keeps its results."""
        if self._owns_session:
            self.session.leave()

    def close(self) -> None:
        """Abort, unless the session was given: the other ranks' rounds fail."""
        if self._owns_session:
            self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.leave()
        else:
            self.close()


def _ranks(process_group: dist.ProcessGroup | None) -> dict[str, int]:
    if process_group is None and not (dist.is_available() and dist.is_initialized()):
        return {}
    return {"rank": dist.get_rank(process_group), "world_size": dist.get_world_size(process_group)}


def _suffix(process_group: dist.ProcessGroup | None) -> str:
    """Of the job's name: groups that are not the whole world, and not each other, are jobs of their own."""
    if process_group is None:
        return ""
    ranks = dist.get_process_group_ranks(process_group)
    if len(ranks) == dist.get_world_size():
        return ""
    return "@ranks-" + hashlib.sha256(repr(list(ranks)).encode()).hexdigest()[:12]
