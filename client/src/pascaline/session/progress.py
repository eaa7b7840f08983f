"""The progress thread: sleeps until a result, a call or a verdict comes, and then moves every line on.

It alone touches link and lines after the join. It sleeps in poll(2) on the completion channel and a wake-up
descriptor, which releases the GIL: other Python threads run while a round waits for a rank.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pascaline.codec import Codec, ErrorFeedback, Measure
from pascaline.errors import PascalineError, SessionClosed, Timeout, again
from pascaline.link import Link, LinkFault
from pascaline.reduce import Collective, Line, Other
from pascaline.session.disagreement import explained
from pascaline.session.epochs import Halted
from pascaline.session.membership import Life
from pascaline.session.work import ProgressThread, Work

_WATCH_S = 0.5


class Progress:
    """Owner of a joined link. Lines: one per pool; `data`, one per lane, and `small` by class.

    `hang_up` closes the control connection: so the appliance hears of every end, even of one that was decided here.
    """

    def __init__(
        self,
        link: Link,
        lines: Sequence[Line],
        data: Sequence[Line],
        small: Line,
        timeout_s: float,
        life: Life,
        hang_up: Callable[[], None],
    ) -> None:
        self._link, self._lines, self._data, self._small = link, lines, data, small
        self._life, self._hang_up = life, hang_up
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._inbox: deque[tuple[Collective, Work]] = deque()
        self._works: deque[Work] = deque()
        self._idle = threading.Event()
        self._idle.set()
        self._last_progress = time.monotonic()
        self._waiting: tuple[tuple[int, ...], str] = ((), "")
        self._leave_wanted = self._leave_said = False
        self.error: PascalineError | None = None
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = ProgressThread(target=self._run, name="pascaline-progress", daemon=True)

    # Called from other threads.

    def start(self) -> None:
        """Begin."""
        self._life.wake = self._wake
        try:
            self._thread.start()
        except BaseException:
            os.close(self.wake_fd)
            raise

    def submit(
        self,
        values: Any,
        codec: Codec,
        work: Work,
        feedback: ErrorFeedback | None = None,
        measure: Measure | None = None,
        name: str = "",
        other: Other | None = None,
    ) -> None:
        """Take the last place in the order of calls. Raises the error that ended the session."""
        with self._lock:
            if self.error:
                raise again(self.error) from self.error
            if self._leave_wanted:
                raise SessionClosed("this session is leaving: call all_reduce before leave")
            self._idle.clear()
            done = partial(self._complete, work)
            collective = Collective(values, codec, work.sequence, done, feedback, measure, name, other)
            self._inbox.append((collective, work))
            os.eventfd_write(self.wake_fd, 1)

    def end(self, error: PascalineError) -> None:
        """The link is flushed, what has landed is drained, the rest fails with `error`. The first verdict stands."""
        self._life.end(error)

    def leave(self) -> None:
        """Say Leave as soon as nothing is pending; in the thread, so that it never meets a resume half-way.

        From now on nothing is taken any more.
        """
        with self._lock:
            self._leave_wanted = True
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if not self.error:  # else the descriptor is closed
                os.eventfd_write(self.wake_fd, 1)

    def now_waiting_for(self, ranks: Sequence[int], message: str) -> None:
        """The appliance says who is missing."""
        self._waiting = (tuple(ranks), message)

    def wait_idle(self, timeout_s: float) -> bool:
        """Until nothing is pending."""
        return self._idle.wait(timeout_s)

    def wait_ended(self, timeout_s: float) -> bool:
        """Until the thread has ended, after `end` or a failure; False if it has not, or is the caller."""
        if self._thread is threading.current_thread():
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # The thread.

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._link.completion_fd, select.POLLIN)
        poller.register(self.wake_fd, select.POLLIN)
        with np.errstate(all="ignore"):  # an overflow to Inf is a result, not an accident
            error = explained(self._turns(poller), list(self._works))
            self._finish(error)

    def _turns(self, poller: select.poll) -> PascalineError:
        """Turn after turn, through epochs, until something ends the session; that is returned."""
        try:
            error = self._until_verdict(poller)
            with contextlib.suppress(PascalineError, LinkFault):
                self._life.drain()  # complete rounds are so on every rank, whatever ends the others
            return error
        except Exception as defect:  # a defect of ours must end waits, not hang them
            return _chained(PascalineError(f"internal error of the progress thread: {defect!r}"), defect)

    def _until_verdict(self, poller: select.poll) -> PascalineError:
        try:
            while True:
                try:
                    poller.poll(_WATCH_S * 1000 if self._works or self._inbox else None)
                    self._turn()
                    self._watch_clock()
                    self._life.check()
                    self._leave_when_idle()
                    continue
                except Halted as halted:
                    self._life.resume(halted.ended)
                except LinkFault as fault:
                    self._life.report(fault)
                self._last_progress = time.monotonic()
                self._waiting = ((), "")
        except PascalineError as error:
            return error

    def _leave_when_idle(self) -> None:
        with self._lock:  # whatever was submitted before `leave` stands in the inbox
            now = self._leave_wanted and not (self._leave_said or self._works or self._inbox)
        if now:
            self._leave_said = True
            self._life.leave()

    def _turn(self) -> None:
        """Calls enter their lines, results are decoded, windows move, the next chunks are written."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        while self._inbox:
            collective, work = self._inbox.popleft()
            if not self._works:
                self._last_progress = time.monotonic()
            self._works.append(work)
            for line, stream in collective.streams(self._data, self._small):
                line.enter(stream)
        for result in self._link.completions():
            self._lines[result.pool].arrived(result)
            self._last_progress = time.monotonic()
            self._waiting = ((), "")
        while any(
            [self._small.advance(), *(line.advance() for line in self._data)]
        ):  # in turn: norms are computed between encodings
            pass

    def _complete(self, work: Work, error: PascalineError | None = None) -> None:
        self._works.remove(work)
        with self._lock:
            if not self._works and not self._inbox:
                self._idle.set()
        work.complete(error)

    def _watch_clock(self) -> None:
        waited_s = time.monotonic() - self._last_progress
        if self._works and waited_s > self._timeout_s:
            ranks, message = self._waiting
            raise Timeout(
                f"all_reduce {self._works[0].sequence} has waited {waited_s:.1f} s (limit {self._timeout_s:g} s) for "
                + (message or self._life.silent),
                ranks,
            )

    def _finish(self, error: PascalineError) -> None:
        """No buffer is touched after the flush: only then do the waits end."""
        try:
            self._link.close()
        finally:
            with self._lock:
                self.error = error
                works = [*self._works, *(work for _, work in self._inbox)]
                self._works.clear()
                self._inbox.clear()
            try:
                for work in works:
                    work.complete(error)
            finally:
                self._idle.set()
                os.close(self.wake_fd)
                self._hang_up()


def _chained(error: PascalineError, cause: Exception) -> PascalineError:
    error.__cause__ = cause
    return error
