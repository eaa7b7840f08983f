"""State of the hook: the session it sums through, what of a bucket is compressed, and the residuals of that."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from pascaline.codec import CodecStats, resolve
from pascaline.errors import ConfigurationError, UnsupportedTensor
from pascaline.session import Session
from pascaline.session.identity import job_name
from pascaline.session.work import Work
from pascaline.torch.buckets import TAKEN, Part, joined
from pascaline.torch.choice import Choice
from pascaline.torch.residuals import ITERATION, WORLD_SIZE, Residuals


class PascalineState:
    """Joins the job that `process_group` is (None: the default group, else what torchrun's environment says).

    `session` is one that is already joined: several states may share it, and it stays its owner's to leave.
    Otherwise `session_options` are Session's arguments (`codec`, `random_seed`, `link`, ...) and the state's session
    leaves with the state: use it as a context manager, call `leave`, or let the interpreter's exit do it.

    `choice` is what is compressed and when; its fields may be given here by name. `named_parameters` (as of
    `model.named_parameters()`) name what residuals belong to and what `exclude` is about; without them parameters are
    numbered in the order in which DDP first presents them.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        session: Session | None = None,
        *,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        scaler: Any = None,
        use_error_feedback: bool | None = None,
        start_compress_iter: int = 0,
        min_compress_elems: int = 0,
        exclude: Sequence[str] = (),
        uncompressed_codec: str = "f32",
        **session_options: Any,
    ) -> None:
        if session is not None and session_options:
            raise ConfigurationError(
                f"a session is given: it cannot be joined again with {sorted(session_options)}"
            )
        if exclude and named_parameters is None:
            raise ConfigurationError(
                "exclude is about names: pass named_parameters=model.named_parameters(), or let register do it"
            )
        self.choice = Choice(
            scaler, use_error_feedback, start_compress_iter, min_compress_elems, exclude, uncompressed_codec
        )
        codec = session.codec if session else resolve(session_options.get("codec", "f32"))
        self._feeds_back = self.choice.feeds_back(codec)
        self._owns_session = session is None
        self.session = _joined(process_group, session_options) if session is None else session
        ranks = _ranks(process_group)
        if session is not None and ranks and session.world_size != ranks["world_size"]:
            raise ConfigurationError(
                f"the session has {session.world_size} ranks and the process group {ranks['world_size']}: "
                "join with the group's rank and world size"
            )
        self._names = {id(parameter): name for name, parameter in named_parameters or ()}
        self._residuals = Residuals(self.session.rank, self.session.world_size)
        self._parts: dict[tuple[int, ...], list[Part]] = {}
        self._before: dict[tuple[int, ...], list[Part]] = {}
        """Of this backward pass and of the last one: when DDP groups parameters anew, the old groups are forgotten."""
        self._pending: list[tuple[list[Work], torch.futures.Future[torch.Tensor]]] = []
        self.iteration = 0
        """Backward passes that have been reduced."""

    def check(self, buffer: torch.Tensor) -> None:
        """Refuse what the appliance cannot sum; mixed dtypes give one bucket each."""
        if buffer.dtype not in TAKEN:
            name = str(buffer.dtype).removeprefix("torch.")
            raise UnsupportedTensor(
                f"a gradient bucket is {name} and this version reduces float32, bfloat16 and float16: keep parameters "
                "in one of these (autocast may still compute in 16 bits)"
            )

    def parts(self, bucket: dist.GradBucket) -> list[Part]:  # type: ignore[name-defined]  # re-exported from C
        """How each of the bucket's parameters travels in this pass. Kept while DDP presents the same buckets."""
        parameters = bucket.parameters()
        compressing = self.iteration >= self.choice.start_compress_iter
        key = (int(compressing), *map(id, parameters))
        parts = self._before.get(key) or self._split(parameters, bucket.buffer(), compressing)
        self._parts[key] = parts
        return parts

    def _split(self, parameters: list[torch.Tensor], buffer: torch.Tensor, compressing: bool) -> list[Part]:
        sizes = [parameter.numel() for parameter in parameters]
        names = [self._names.setdefault(id(p), f"parameter {len(self._names)}") for p in parameters]
        compressed = [
            compressing and self.choice.compresses(name, size)
            for name, size in zip(names, sizes, strict=True)
        ]
        parts = []
        for codec, chosen in (
            (self.session.codec, compressed),
            (self.choice.plain, [not c for c in compressed]),
        ):
            slices = joined(sizes, chosen)
            if not slices:
                continue
            own = [(n, s) for n, s, wanted in zip(names, sizes, chosen, strict=True) if wanted]
            is_flat = buffer.dtype == torch.float32 and not buffer.is_sparse
            whole = is_flat and slices == [(0, buffer.numel())]
            staging = None if whole else torch.empty(sum(s for _, s in own), dtype=torch.float32)
            feedback = None
            if chosen is compressed and self._feeds_back:
                feedback = self._residuals.of([n for n, _ in own], [s for _, s in own])
            parts.append(Part(codec, slices, staging, feedback, " ".join(n for n, _ in own)))
        return parts

    def launched(self, works: list[Work], divided: torch.futures.Future[torch.Tensor], is_last: bool) -> None:
        """Remember a bucket's works; with the backward pass's last one, wait for all of them here, in Python.

        DDP waits for its futures in C++, where Ctrl-C is not heard: a missing rank would make the process deaf. Nothing
        is lost by waiting now, since DDP does nothing but wait after its last bucket. Then residuals are committed, all
        or, in a step that the GradScaler will skip, none.
        """
        self._pending.append((works, divided))
        if not is_last:
            return
        pending, self._pending = self._pending, []
        try:
            for works, _ in pending:
                for work in works:
                    work.wait()
            means = [future.wait() for _, future in pending]
        except BaseException:
            self._residuals.discard()
            raise
        if self.choice.scaler is not None and not all(map(_finite, means)):
            self._residuals.discard()
        self._residuals.commit()
        self._before, self._parts = self._parts, {}
        self.iteration += 1

    def compression_stats(self) -> dict[str, CodecStats]:
        """By codec what this state's session has reduced: elements, bits per element up and down, and the measured
        normalised mean square error of this rank's own encodings.
        """
        stats: dict[str, CodecStats] = self.session.stats()["codecs"]
        return stats

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Residuals as a plain dict of tensors, by parameter name and rank, and the iteration.

        Each rank saves its own; the keys of different ranks differ, so one checkpoint can hold them all.
        """
        return {ITERATION: torch.tensor(self.iteration), **self._residuals.state_dict()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from `state_dict`'s residuals.

        With another world size every rank takes the mean of all old ranks' residuals, which keeps the correction of
        the mean gradient as it was, if `state` holds them all; else residuals start at zero, with a warning.
        """
        if missing := {ITERATION, WORLD_SIZE} - state.keys():
            raise ConfigurationError(
                f"this is no state_dict of a PascalineState: it lacks {', '.join(sorted(missing))} and has "
                f"{len(state)} other keys; save state.state_dict() beside the model's"
            )
        self._residuals.load_state_dict({key: value for key, value in state.items() if key != ITERATION})
        self.iteration = int(state[ITERATION])

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


def _finite(mean: torch.Tensor) -> bool:
    """Whether a GradScaler would take it: one pass, nothing allocated."""
    if mean.is_sparse:
        mean = mean.values()
    return not mean.numel() or all(bool(end.isfinite()) for end in torch.aminmax(mean))


def _joined(process_group: dist.ProcessGroup | None, session_options: dict[str, Any]) -> Session:
    """The session of this process's rank in the group."""
    if session_options.get("link") == "emulated":
        return Session(process_group=process_group, **session_options)
    if suffix := _suffix(process_group):
        session_options["job"] = job_name(session_options.get("job"), suffix=suffix)
    return Session(**{**_ranks(process_group), **session_options})


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
