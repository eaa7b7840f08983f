"""Ctrl-C for a wait that a test is about to begin."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c() -> Iterator[None]:
    """SIGINT to this thread until it is heard, once: CPython sleeps through one that comes just before it waits for a
    lock, which a machine that stands still makes likely.
    """
    heard: list[bool] = []
    waiting = threading.get_ident()

    def raise_once(*_: object) -> None:
        if not heard:
            heard.append(True)
            raise KeyboardInterrupt

    def press() -> None:
        while not heard:
            time.sleep(0.3)
            if not heard:
                signal.pthread_kill(waiting, signal.SIGINT)

    before = signal.signal(signal.SIGINT, raise_once)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        yield
    finally:
        heard.append(True)
        presser.join()
        signal.signal(signal.SIGINT, before)
