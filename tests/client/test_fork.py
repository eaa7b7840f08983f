"""A forked child lets go of a session's descriptors, and of nobody else's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pascaline.session import fork


class Holder:
    def __init__(self, *numbers: int) -> None:
        self.numbers = set(numbers)

    def descriptors(self) -> set[int]:
        return self.numbers


def in_child(look: Callable[[], str]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, look().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        return answer.read()


def test_only_what_still_is_the_session_s_is_taken_from_a_child() -> None:
    own, lost = os.memfd_create("own"), os.memfd_create("lost")
    holder = Holder(own, lost)
    fork.track(holder)
    stranger = os.memfd_create("stranger")
    os.dup2(stranger, lost)  # as when a fault closed it, and another file got the number
    try:
        targets = in_child(
            lambda: " ".join(str(Path(f"/proc/self/fd/{number}").readlink()) for number in (own, lost))
        )
    finally:
        fork.untrack(holder)
        for number in (own, lost, stranger):
            os.close(number)
    assert targets == "/dev/null /memfd:stranger (deleted)"
    assert holder not in fork.sessions()
