"""Session: this worker's membership of one training job at one appliance. The door that users come through.

Joins, hands tensors to the progress thread, listens for the appliance's verdicts, leaves. May touch reduce
and link.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, overload

import numpy as np

from pascaline import codec as codecs
from pascaline.errors import ConfigurationError, PascalineError, SessionClosed, Timeout, again
from pascaline.reduce import Line, Other, op_windows
from pascaline.session import fork
from pascaline.session.appliance import ApplianceMembership
from pascaline.session.arrays import flat_view
from pascaline.session.disagreement import EMPTY, INT32, crc_of
from pascaline.session.emulated import EmulatedMembership
from pascaline.session.identity import resolve
from pascaline.session.membership import PLAN_MAX_CHARS, Membership, Wishes
from pascaline.session.progress import Progress
from pascaline.session.work import Work, refuse_in_progress_thread

JOIN_TIMEOUT_S = 300.0
OPS = ("sum_f32", "sum_i32", "max_f32", "sum_f16", "sum_bf16", "or_u32")
"""Op windows 1 to 6 of every session: each collective chooses its codec. The session's own codec may add one."""
_FLUSH_S = 5.0
_F32 = np.dtype(np.float32)


class Session:
    """Membership of one job; the constructor joins and returns when every rank is ready.

    Arguments that are not given come from the environment: `appliance` ("host:port") from
    PASCALINE_APPLIANCE, `device` ("rxe0" or "rxe0:1") from PASCALINE_DEVICE, else the first RoCE port that is
    up; `rank`, `world_size`, `job` and `restart_count` from what torchrun sets. `codec` is for float32: a name
    ("f32", "thc", ...: `pascaline.codec.NAMES`) or options such as `pascaline.codec.Thc(bits=4)`; `random_seed`, of 64
    bits, is for those that draw. `plan` is any text that must be alike on all ranks.
    `chunk_bytes`, `window` and `lanes` (how many of the appliance's; by default all) are wishes. `timeout_s` ends a
    wait for a rank that lives and does not come; by default the appliance's straggler time-out.

    `link="emulated"` needs no appliance: the ranks of `process_group` (None: torch.distributed's default group)
    exchange the same encodings and add them as an appliance would, bit for bit, at no speed that says anything. All
    of them construct their sessions together.

    Use it as a context manager: it leaves at the end, and only closes when an exception passes. Thread-safe.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        appliance: str | None = None,
        device: str | None = None,
        job: str | None = None,
        restart_count: int | None = None,
        link: Literal["verbs", "emulated"] = "verbs",
        process_group: Any = None,
        codec: str | codecs.Options = "f32",
        random_seed: int = 0,
        plan: str = "",
        chunk_bytes: int | None = None,
        window: int | None = None,
        lanes: int | None = None,
        join_timeout_s: float = JOIN_TIMEOUT_S,
        timeout_s: float | None = None,
    ) -> None:
        self.codec = codecs.resolve(codec)
        self._member: Membership
        if link == "emulated":
            self._member = EmulatedMembership(process_group, timeout_s)
        elif link == "verbs":
            self._member = ApplianceMembership(
                resolve(
                    rank=rank,
                    world_size=world_size,
                    appliance=appliance,
                    device=device,
                    job=job,
                    restart_count=restart_count,
                )
            )
            self._refuse_a_second()
        else:
            raise ConfigurationError(f"link is {link!r}: choose 'verbs' or 'emulated'")
        self.rank, self.world_size, self.job = self._member.rank, self._member.world_size, self._member.job
        self._seed = random_seed
        self._codecs: dict[tuple[codecs.Options, str], codecs.Codec] = {}
        self._words: dict[codecs.Options, str] = {}
        self._measures: dict[str, codecs.Measure] = {}
        self._advised: set[str] = set()
        self._join(plan, (chunk_bytes, window, lanes), join_timeout_s, timeout_s)

    def _refuse_a_second(self) -> None:
        """One process is one worker: joining again would end the first session as if the worker had restarted."""
        job, rank = self._member.job, self._member.rank
        for other in fork.sessions():
            if not isinstance(other, Session) or other._progress.error:
                continue
            if (other.job, other.rank) == (job, rank):
                raise ConfigurationError(
                    f"this process has joined job {job!r} as rank {rank} already: share that session "
                    "(register(model, session=...), PascalineState(session=...)), leave it first, or give another job="
                )

    def _join(
        self,
        plan: str,
        sizes: tuple[int | None, int | None, int | None],
        join_timeout_s: float,
        timeout_s: float | None,
    ) -> None:
        own = codecs.for_array(_F32, self.codec, self.rank, self.world_size, self._seed)
        self._own_has_scales = own.scale_count(1) > 0
        self._ops = (*OPS, *(op for op in own.ops if op not in OPS))
        self._tables = dict.fromkeys(own.ops, own.table) if own.table else {}
        if sizes[0]:
            _check_slots(own, sizes[0])
        self._plan = self._planned(plan)
        wishes = Wishes(self._plan, *sizes, join_timeout_s, self._ops, self._tables)
        wishes.check()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sequence = 0
        self._closed = self._left = False
        self._parted = threading.Event()
        self._member.join(wishes)
        self._descriptors = self._member.descriptors()
        self._start(own, timeout_s)
        try:
            fork.track(self)
            self._member.listen(_Listener(self))
        except BaseException:
            self.close()
            raise

    def _planned(self, plan: str) -> str:
        """What must be alike on all ranks: the caller's text, and the codec unless that is the plain one."""
        begin = f"{plan}; " if plan else ""
        described = codecs.describe(self.codec, self._seed, PLAN_MAX_CHARS - len(begin))
        return plan if described == "f32" else begin + described

    def _start(self, own: codecs.Codec, timeout_s: float | None) -> None:
        """The progress thread takes the link over."""
        link = self._member.link
        windows = op_windows(list(self._ops))
        self._lines = [Line(pool, windows) for pool in link.pools]
        classes = list(zip(self._member.classes, self._lines, strict=True))
        data = [line for pool_class, line in classes if pool_class == "data"]
        (small,) = (line for pool_class, line in classes if pool_class == "small")
        limit_s = self._member.straggler_timeout_s if timeout_s is None else timeout_s
        life = self._member.begin(self._lines)
        self._completion_fd = link.completion_fd
        self._data_slot_bytes = data[0].pool.chunk_bytes
        try:
            _check_slots(own, self._data_slot_bytes)
            self._progress = Progress(link, self._lines, data, small, limit_s, life, self._member.hang_up)
            self._progress.start()
        except BaseException:
            link.close()
            self._member.hang_up()
            self._member.release()
            raise

    @overload
    def all_reduce(
        self,
        tensor: Any,
        async_op: Literal[False] = False,
        codec: str | codecs.Options | None = None,
        error_feedback: codecs.ErrorFeedback | None = None,
        name: str = "",
    ) -> None: ...
    @overload
    def all_reduce(
        self,
        tensor: Any,
        async_op: Literal[True],
        codec: str | codecs.Options | None = None,
        error_feedback: codecs.ErrorFeedback | None = None,
        name: str = "",
    ) -> Work: ...

    def all_reduce(
        self,
        tensor: Any,
        async_op: bool = False,
        codec: str | codecs.Options | None = None,
        error_feedback: codecs.ErrorFeedback | None = None,
        name: str = "",
    ) -> Work | None:
        """Sum `tensor` over all ranks, in place, as torch.distributed.all_reduce does; every rank calls in
        the same order.

        tensor: contiguous float32 or int32 on the CPU, of any shape, a torch.Tensor or a numpy.ndarray. int32
        is summed modulo 2^32, float32 by `codec` (the session's by default, and the same on all ranks; one whose op was
        not joined with is refused). `error_feedback` is what a lossy codec carries from one reduction of this tensor to
        the next. `name`, alike on all ranks, tells the tensor from others of its size where a codec learns from earlier
        reductions of it. An empty tensor waits for the other ranks too, so that one whose own is not empty is told.
        With async_op the sum goes on in the background: the tensor belongs to the session until the returned Work is
        complete. Raises UnsupportedTensor, ConfigurationError, or the error that ended the session (EpochEnded,
        Timeout, SessionClosed).
        """
        self._check_usable()
        if not async_op:
            refuse_in_progress_thread()
        values = flat_view(tensor)
        options = self.codec if codec is None else codecs.resolve(codec)
        if not isinstance(name, str):
            raise ConfigurationError(f"name is {name!r}, a {type(name).__name__}: pass a str")
        chosen = self._codec_for(values, options)
        _check_feedback(error_feedback, chosen, values.size)
        if chosen.advice and chosen.name not in self._advised:  # here, where a warning meets its reader
            self._advised.add(chosen.name)
            warnings.warn(chosen.advice, stacklevel=2)
        measure = self._measures.setdefault(chosen.name, codecs.Measure())
        words, other = self._said(values, options)
        with self._lock:
            work = Work(tensor, self._sequence, words, values.size)
            self._progress.submit(values, chosen, work, error_feedback, measure, name, other)
            self._sequence += 1
        if async_op:
            return work
        work.wait()
        return None

    def _codec_for(self, values: codecs.Array, options: codecs.Options) -> codecs.Codec:
        key = (options, values.dtype.str)
        if key not in self._codecs:
            codec = codecs.for_array(values.dtype, options, self.rank, self.world_size, self._seed)
            for op in codec.ops:
                joined = self._tables.get(op)
                if op not in self._ops or (codec.table or joined) != joined:
                    needed = codecs.describe(options, self._seed)
                    raise ConfigurationError(
                        f"codec {needed} needs the op {op}{' with its own table' if codec.table else ''}, and this "
                        f"session joined with {codecs.describe(self.codec, self._seed)}: join a session of its own "
                        f"with codec {needed}"
                    )
            _check_slots(codec, self._data_slot_bytes)
            self._codecs[key] = codec
        return self._codecs[key]

    def _said(self, values: codecs.Array, options: codecs.Options) -> tuple[str, Other | None]:
        """A call's codec in words, and what tells it from the session's own, if it is another."""
        if not values.size:  # whose ranks wait for one another, too: one that is not empty elsewhere is told
            return EMPTY, Other(crc_of(EMPTY), self._own_has_scales)
        if (
            values.dtype != _F32
        ):  # whose op is its own: it meets other data at the first message, if that is data
            return INT32, Other(crc_of(INT32), True) if self._own_has_scales else None
        words, own = self._words_of(options), self._words_of(self.codec)
        return words, None if words == own else Other(crc_of(words), self._own_has_scales)

    def _words_of(self, options: codecs.Options) -> str:
        if options not in self._words:
            self._words[options] = codecs.describe(options, self._seed)
        return self._words[options]

    def stats(self) -> dict[str, Any]:
        """What has happened since the join: payload bytes and rounds of all pools, per codec what it sent and how well,
        and what was negotiated.
        """
        return {
            "bytes_sent": sum(line.bytes_sent for line in self._lines),
            "bytes_received": sum(line.bytes_received for line in self._lines),
            "rounds": sum(line.rounds_drained for line in self._lines),
            "collectives": self._sequence,
            "codecs": {name: measure.stats() for name, measure in list(self._measures.items())},
            "pools": [
                {"class": pool_class, "chunk_bytes": line.pool.chunk_bytes, "window": line.pool.window}
                for pool_class, line in zip(self._member.classes, self._lines, strict=True)
            ],
            **self._member.stats(),
        }

    def leave(self) -> None:
        """Finish what is pending, tell the appliance, wait until every rank has every result, close. Idempotent."""
        if self._closed:
            return
        refuse_in_progress_thread()
        try:
            self._check_usable()
            self._progress.leave()
            self._progress.wait_idle(threading.TIMEOUT_MAX)
            self._check_usable()
            self._parted.wait(self._member.leave_timeout_s)
            if not self._left:
                self._progress.wait_ended(_FLUSH_S if self._parted.is_set() else 0)
                self._check_usable()
                raise Timeout(f"{self._member.where} has not confirmed the leave of rank {self.rank}")
        finally:
            self.close()

    def close(self) -> None:
        """Abort: end everything at once, without a word to the other ranks, whose rounds then fail. Idempotent."""
        if self._closed or os.getpid() != self._pid:
            return
        try:  # every step may be interrupted by Ctrl-C, and then done again
            self._progress.end(
                SessionClosed(f"the session of rank {self.rank} in job {self.job!r} is closed")
            )
            ended = self._progress.wait_ended(_FLUSH_S)
            self._member.hang_up()
            if ended:  # else the thread may still be inside the device's library
                self._member.release()
            self._closed = True
        finally:
            fork.untrack(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.leave()
        else:
            self.close()

    def descriptors(self) -> set[int]:
        """Descriptors that a forked child must not hold."""
        if self._progress.error:  # the thread has closed its own
            return set(self._descriptors)
        return {*self._descriptors, self._completion_fd, self._progress.wake_fd}

    def idle(self) -> bool:
        """Whether nothing is pending and nothing has failed."""
        return not self._closed and self._progress.error is None and self._progress.wait_idle(0)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise SessionClosed(
                f"this session belongs to process {self._pid}, this is its fork {os.getpid()}: "
                "only the process that joined can reduce; a worker of a DataLoader must not"
            )
        if self._progress.error:
            raise again(self._progress.error) from self._progress.error


class _Listener:
    """What a session hears of its membership, in another thread."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def left(self) -> None:
        self._session._left = True
        self._session._parted.set()

    def parted(self, error: PascalineError) -> None:
        """After Left that is as it should be."""
        self._session._parted.set()
        if not self._session._left:
            self._session._progress.end(error)

    def waiting(self, ranks: Sequence[int], message: str) -> None:
        self._session._progress.now_waiting_for(ranks, message)


def _check_slots(codec: codecs.Codec, slot_bytes: int) -> None:
    """Refuse slots that hold no result of the codec."""
    if slot_bytes > 0 and not codec.chunk_elems(slot_bytes):
        raise ConfigurationError(
            f"slots of {slot_bytes} bytes hold no result of codec {codec.name}: join with a larger chunk_bytes"
        )


def _check_feedback(feedback: codecs.ErrorFeedback | None, codec: codecs.Codec, elems: int) -> None:
    if feedback is None:
        return
    if not codec.lossy:
        raise ConfigurationError(f"codec {codec.name} leaves nothing out: pass no error_feedback with it")
    if feedback.elems != elems:
        raise ConfigurationError(
            f"error_feedback is of {feedback.elems} elements and this tensor has {elems}: keep one for each tensor"
        )


def _at_exit() -> None:
    """A script that ends without leaving: leave if all is well, so that other ranks see no fault; else close."""
    for session in fork.sessions():
        if isinstance(session, Session):
            with contextlib.suppress(PascalineError):
                if session.idle():
                    session.leave()
            session.close()


atexit.register(_at_exit)
