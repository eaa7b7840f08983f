"""Work: what an asynchronous all_reduce hands back, after torch.distributed's. Touches threads and, on
demand, torch.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from pascaline.errors import PascalineError, Timeout, again


class ProgressThread(threading.Thread):
    """A thread that completes works: it must never wait for one."""


def refuse_in_progress_thread() -> None:
    """Raise where a wait would wait for itself for ever: in a future's callback."""
    if isinstance(threading.current_thread(), ProgressThread):
        raise PascalineError(
            "a callback of a future runs in the thread that moves all reductions, so a wait there would never end: "
            "chain the next step with then() instead, or wait in a thread of your own"
        )


class Work:
    """One all_reduce on its way. Completed once, by the progress thread; waited for by any."""

    def __init__(self, tensor: Any, sequence: int, codec: str = "", elems: int = 0) -> None:
        self._tensor = tensor
        self.sequence, self.codec, self.elems = sequence, codec, elems
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._future: Any = None

    def is_completed(self) -> bool:
        """Whether the sum is in place or the error is known."""
        return self._done.is_set()

    def exception(self) -> Exception | None:
        """The error, once completed."""
        return self._error

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Sleep until completed, without the GIL; Ctrl-C interrupts. Raises the error, or Timeout after
        `timeout` seconds. Not to be called in a callback of a future.

        Timeout does not cancel: all ranks must post the same sequence, so the tensor stays in use.
        """
        if not self._done.is_set():
            refuse_in_progress_thread()
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if not self._done.wait(seconds):
            raise Timeout(f"all_reduce {self.sequence} has not completed within {seconds} s; it goes on")
        if self._error:
            raise again(self._error) from self._error
        return True

    def get_future(self) -> Any:
        """A torch.futures.Future of the tensor. Callbacks run in the progress thread: keep them short, never wait
        there.

        Chain with `then` and read the value inside: an error then arrives as it was raised.
        """
        import torch

        with self._lock:
            fresh = self._future is None
            if fresh:
                self._future = torch.futures.Future()
            settle_now = fresh and self._done.is_set()
        if settle_now:
            self._settle(self._future)
        return self._future

    def complete(self, error: Exception | None = None) -> None:
        """The progress thread's: the sum is in place, or `error` ended it."""
        with self._lock:
            if self._done.is_set():
                return
            self._error = error
            self._done.set()
            future = self._future
        if future is not None:  # outside of the lock: its callbacks may come back here
            self._settle(future)

    def _settle(self, future: Any) -> None:
        if self._error:
            future.set_exception(again(self._error))
        else:
            future.set_result(self._tensor)
