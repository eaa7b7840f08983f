"""Every exception that a user of this package can meet, in one hierarchy; every room may raise them.

Each message is one sentence (or two) that names the values and the way out.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)


class PascalineError(Exception):
    """Root of all errors of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles keep what an heir's constructor takes beside the message."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class ConfigurationError(PascalineError, ValueError):
    """An argument or environment variable is missing or impossible."""


class LocalSetupError(PascalineError):
    """Something is missing on this machine: an RDMA device, a usable GID, pyverbs, the right to pin memory, an MTU."""


class ContractMismatch(PascalineError):
    """Client and appliance, or two files of this installation, speak different versions of a contract."""


class ApplianceUnreachable(PascalineError):
    """The appliance does not answer: on its control port, or its data port does not resolve."""


class JoinRefused(PascalineError):
    """The appliance refused the join; `reason` is a word of the control contract, the message names both values."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class EpochEnded(PascalineError):
    """A fault ended this life of the job's connections; `fault` names it as enum psc_fault does, in lower case.

    "local" stands for a queue pair of this worker that failed without a word from the appliance. `rank` is the rank
    that the fault is about, if there is one. Tensors in flight are undefined.
    """

    def __init__(self, message: str, fault: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.rank = rank


class UnsupportedTensor(PascalineError, TypeError):
    """A tensor that this version cannot reduce; nothing was sent."""


class SessionClosed(PascalineError):
    """The session has left, was closed, or belongs to another process."""


class Timeout(PascalineError, TimeoutError):
    """A wait took longer than it may; `ranks` are those that were being waited for, as far as known."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


def _rebuilt(kind: type[PascalineError], args: tuple[Any, ...], attributes: dict[str, Any]) -> PascalineError:
    error = kind.__new__(kind, *args)
    error.args = args  # which OSError, a base of Timeout, leaves to its constructor
    error.__dict__.update(attributes)
    return error


def again(error: E) -> E:
    """To be raised `from error`, which many calls and threads meet: each gets a traceback of its own."""
    return copy.copy(error)
