"""Session: this worker's membership of one training job at one appliance. The door that users come through.

Joins, hands tensors to the progress thread, listens for the appliance's verdicts, leaves. May touch reduce
and link.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from types import TracebackType
from typing import Any, Literal, Self, overload

from pascaline import codec as codecs
from pascaline.contract import control as contract
from pascaline.errors import (
    ApplianceUnreachable,
    ConfigurationError,
    EpochEnded,
    PascalineError,
    SessionClosed,
    Timeout,
    again,
)
from pascaline.link import Link
from pascaline.reduce import Line, op_windows
from pascaline.session import fork
from pascaline.session.arrays import flat_view
from pascaline.session.control import EMULATED_HANDSHAKE_S, HANDSHAKE_S, Control, Message
from pascaline.session.epochs import Epochs
from pascaline.session.handshake import specs_of
from pascaline.session.identity import resolve
from pascaline.session.join import OPS, Joining, Wishes, refusal
from pascaline.session.progress import Progress
from pascaline.session.work import Work, refuse_in_progress_thread

JOIN_TIMEOUT_S = 300.0
_FLUSH_S = 5.0
_LEFT_S = 10.0


class Session:
    """Membership of one job; the constructor joins and returns when every rank is ready.

    Arguments that are not given come from the environment: `appliance` ("host:port") from
    PASCALINE_APPLIANCE, `device` ("rxe0" or "rxe0:1") from PASCALINE_DEVICE, else the first RoCE port that is
    up; `rank`, `world_size`, `job` and `restart_count` from what torchrun sets. `codec` is for float32: "f32"
    (IEEE sums) or "fixed32" (the same bits in every run). `plan` is any text that must be alike on all ranks.
    `chunk_bytes` and `window` are wishes. `timeout_s` ends a wait for a rank that lives and does not come; by
    default the appliance's straggler time-out.

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
        codec: str = "f32",
        plan: str = "",
        chunk_bytes: int | None = None,
        window: int | None = None,
        join_timeout_s: float = JOIN_TIMEOUT_S,
        timeout_s: float | None = None,
    ) -> None:
        codecs.check_name(codec)
        self._identity = resolve(
            rank=rank,
            world_size=world_size,
            appliance=appliance,
            device=device,
            job=job,
            restart_count=restart_count,
        )
        self.rank, self.world_size, self.job = (
            self._identity.rank,
            self._identity.world_size,
            self._identity.job,
        )
        wishes = Wishes(plan, chunk_bytes, window, join_timeout_s)
        wishes.check()
        self._refuse_a_second()
        self.codec = codec
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sequence = 0
        self._closed = False
        self._left = False
        self._parted = threading.Event()
        self._codecs: dict[tuple[str, str], codecs.Codec] = {}
        self._join(wishes, timeout_s)

    def _refuse_a_second(self) -> None:
        """One process is one worker: joining again would end the first session as if the worker had restarted."""
        for other in fork.sessions():
            if not isinstance(other, Session) or other._progress.error:
                continue
            if (other.job, other.rank) == (self.job, self.rank):
                raise ConfigurationError(
                    f"this process has joined job {self.job!r} as rank {self.rank} already: share that session "
                    "(register(model, session=...), PascalineState(session=...)), leave it first, or give another job="
                )

    def _join(self, wishes: Wishes, timeout_s: float | None) -> None:
        from pascaline.link import verbs  # here, so that a machine without pyverbs can import this package

        with contextlib.ExitStack() as undo:
            port = verbs.open_port(self._identity.device)
            undo.callback(port.context.close)
            handshake_s = EMULATED_HANDSHAKE_S if port.software else HANDSHAKE_S
            self._control = Control(self._identity.host, self._identity.port, handshake_s)
            undo.callback(self._control.close)
            joining = Joining(self._control, self._identity, wishes)
            offer = joining.offer(port)
            self._control.limit_silence(offer.deadline_s)
            link = verbs.VerbsLink(port, specs_of(offer))
            undo.callback(link.close)
            joining.connect(link, offer)
            self._port = port
            self._descriptors = port.descriptors | {self._control.fileno()}
            self._start(link, offer, timeout_s)
            undo.pop_all()  # from here on `close` undoes
        try:
            fork.track(self)
            self._control.deliver(self._on_message, self._on_end)
        except BaseException:
            self.close()
            raise

    def _start(self, link: Link, offer: contract.Offer, timeout_s: float | None) -> None:
        """The progress thread takes the link over."""
        windows = op_windows(list(OPS))
        self._lines = [Line(pool, windows) for pool in link.pools]
        by_class = {pool.pool_class: line for pool, line in zip(offer.pools, self._lines, strict=True)}
        limit_s = offer.straggler_timeout_s if timeout_s is None else timeout_s
        self._epochs = Epochs(offer, self._identity.appliance, link, self._lines, self._control.send)
        self._completion_fd = link.completion_fd
        self._progress = Progress(
            link, self._lines, by_class["data"], by_class["small"], limit_s, self._epochs, self._control.close
        )
        self._progress.start()

    @overload
    def all_reduce(self, tensor: Any, async_op: Literal[False] = False, codec: str | None = None) -> None: ...
    @overload
    def all_reduce(self, tensor: Any, async_op: Literal[True], codec: str | None = None) -> Work: ...

    def all_reduce(self, tensor: Any, async_op: bool = False, codec: str | None = None) -> Work | None:
        """Sum `tensor` over all ranks, in place, as torch.distributed.all_reduce does; every rank calls in
        the same order.

        tensor: contiguous float32 or int32 on the CPU, of any shape, a torch.Tensor or a numpy.ndarray. int32
        is summed modulo 2^32, float32 by `codec` (the session's by default). With async_op the sum goes on in
        the background: the tensor belongs to the session until the returned Work is complete. Raises
        UnsupportedTensor, or the error that ended the session (EpochEnded, Timeout, SessionClosed).
        """
        self._check_usable()
        if not async_op:
            refuse_in_progress_thread()
        values = flat_view(tensor)
        chosen = self._codec_for(values, codec or self.codec)
        with self._lock:
            work = Work(tensor, self._sequence)
            if values.size:
                self._progress.submit(values, chosen, work)
            else:
                work.complete()
            self._sequence += 1
        if async_op:
            return work
        work.wait()
        return None

    def _codec_for(self, values: codecs.Array, name: str) -> codecs.Codec:
        key = (name, values.dtype.str)
        if key not in self._codecs:
            self._codecs[key] = codecs.for_array(values.dtype, name, self.world_size)
        return self._codecs[key]

    def stats(self) -> dict[str, Any]:
        """What has happened since the join: payload bytes and rounds of all pools, and what was negotiated."""
        return {
            "bytes_sent": sum(line.bytes_sent for line in self._lines),
            "bytes_received": sum(line.bytes_received for line in self._lines),
            "rounds": sum(line.rounds_drained for line in self._lines),
            "collectives": self._sequence,
            "epoch": self._epochs.offer.epoch,
            "mtu_bytes": self._epochs.offer.mtu,
            "device": self._port.device,
            "address": self._port.towards(self._epochs.offer.address)[1],
            "pools": [
                {"class": pool.pool_class, "chunk_bytes": pool.chunk_bytes, "window": pool.window}
                for pool in self._epochs.offer.pools
            ],
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
            self._parted.wait(2 * self._epochs.offer.deadline_s + _LEFT_S)
            if not self._left:
                self._progress.wait_ended(_FLUSH_S if self._parted.is_set() else 0)
                self._check_usable()
                raise Timeout(
                    f"the appliance at {self._identity.appliance} has not confirmed the leave of rank {self.rank}"
                )
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
            self._control.close()
            if ended:  # else the thread may still be inside the device's library
                self._port.context.close()
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

    # Called by the control thread.

    def _on_message(self, message: Message) -> None:
        if isinstance(message, contract.Left):
            self._left = True
            self._parted.set()
        elif isinstance(message, contract.Ended) and not message.resumable:
            self._parted.set()
            self._progress.end(EpochEnded(message.message, message.fault, message.rank))
        elif isinstance(message, contract.Refused):
            self._parted.set()
            self._progress.end(refusal(message))
        elif not isinstance(message, contract.Event):
            self._epochs.hear(message)
        elif message.kind == "waiting":
            self._progress.now_waiting_for(message.ranks, message.message)

    def _on_end(self, error: Exception) -> None:
        """The connection is gone. After Left that is as it should be."""
        self._parted.set()
        if self._left:
            return
        gone = ApplianceUnreachable(
            f"the control connection to the appliance at {self._identity.appliance} is lost ({error}): see whether it "
            "runs and can be reached"
        )
        self._progress.end(error if isinstance(error, PascalineError) else gone)


def _at_exit() -> None:
    """A script that ends without leaving: leave if all is well, so that other ranks see no fault; else close."""
    for session in fork.sessions():
        if isinstance(session, Session):
            with contextlib.suppress(PascalineError):
                if session.idle():
                    session.leave()
            session.close()


atexit.register(_at_exit)
