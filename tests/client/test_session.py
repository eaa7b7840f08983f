"""Session's own steps, where they do not need a device: how a close that is interrupted goes on."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from pascaline import Session
from pascaline.session import fork


def test_a_close_that_ctrl_c_interrupts_leaves_nothing_tracked_and_can_be_done_again() -> None:
    done: list[str] = []

    def wait_ended(_: float) -> bool:
        done.append("wait")
        if done.count("wait") == 1:
            raise KeyboardInterrupt
        return True

    session: Any = Session.__new__(Session)
    session._pid, session._closed, session.rank, session.job = os.getpid(), False, 0, "j"
    session._descriptors = frozenset[int]()
    session._progress = SimpleNamespace(error=ValueError(), end=lambda _: None, wait_ended=wait_ended)
    session._member = SimpleNamespace(
        hang_up=lambda: done.append("control"), release=lambda: done.append("device")
    )
    fork.track(session)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert session not in fork.sessions()
    session.close()
    session.close()
    assert done == ["wait", "wait", "control", "device"]
