"""A client of ours against the target, since perftest does not look at bytes: plain pyverbs writes a known pattern.

The client is a forked process, because pyverbs blocks in the kernel until ARP or neighbour discovery is answered, and
it is the parent that answers. The two talk by a pipe. The client's memory has two halves: what it writes from, and what
the target writes to.
"""

from __future__ import annotations

import multiprocessing
import secrets
from multiprocessing.connection import Connection
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from tests.perftest.exchange import Keys
from tests.perftest.runs import Device
from tests.perftest.target import Endpoint, Target, gid_of, mac_of
from tests.softroce import rc_pair

STEP_TIMEOUT_S = 180.0
_FORK = multiprocessing.get_context("fork")


def pattern(size_bytes: int) -> NDArray[np.uint8]:
    """The bytes that the client writes from."""
    return np.random.default_rng(size_bytes).integers(0, 256, size_bytes, np.uint8)


class Client:
    """Context manager: the forked client, connected to a QP of the target that is as large as half its memory."""

    def __init__(self, target: Target, device: Device, size_bytes: int, mtu_bytes: int) -> None:
        self._target = target
        self._pipe, theirs = _FORK.Pipe()
        arguments = (device.name, target, size_bytes, mtu_bytes, theirs)
        self._process = _FORK.Process(target=_client, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        target.disconnect()
        psn = secrets.randbelow(1 << 24)
        self.end: Endpoint = target.endpoint(size_bytes, psn, self._swap, mac_of(device.interface), mtu_bytes)
        self._answer()

    def write(self, offset_bytes: int, size_bytes: int, va_error: int = 0, rkey_error: int = 0) -> str:
        """Have the client write a piece of its pattern to the same place of the target's memory; its completion."""
        self._pipe.send((offset_bytes, size_bytes, va_error, rkey_error))
        return str(self._answer())

    def written(self) -> NDArray[np.uint8]:
        """The half of the client's memory that the target writes to."""
        self._pipe.send(None)
        written = self._answer()
        assert isinstance(written, bytes)
        return np.frombuffer(written, np.uint8)

    def _swap(self, mine: Keys) -> Keys:
        self._pipe.send(mine)
        theirs = self._answer()
        assert isinstance(theirs, Keys)
        return theirs

    def _answer(self) -> object:
        self._target.serve(lambda _: self._pipe.poll(), STEP_TIMEOUT_S)
        return self._pipe.recv()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()


def _client(device: str, target: Target, size_bytes: int, mtu_bytes: int, pipe: Connection) -> None:
    with rc_pair.Endpoint(device, 2 * size_bytes, target.family) as endpoint:
        endpoint.memory[:size_bytes] = pattern(size_bytes)
        mine = endpoint.remote
        pipe.send(Keys(mine.qpn, mine.psn, mine.rkey, mine.va + size_bytes, gid_of(mine.address)))
        keys = pipe.recv()
        endpoint.connect(rc_pair.Remote(target.address, keys.qpn, keys.psn, keys.rkey, keys.va), mtu_bytes)
        pipe.send("connected")
        while True:
            order = pipe.recv()
            if order is None:
                pipe.send(endpoint.memory[size_bytes:].tobytes())
                continue
            offset_bytes, piece_bytes, va_error, rkey_error = order
            peer = rc_pair.Remote(
                target.address, keys.qpn, keys.psn, keys.rkey + rkey_error, keys.va + va_error
            )
            endpoint.write(peer, offset_bytes, piece_bytes)
            try:
                endpoint.wait(STEP_TIMEOUT_S)
                pipe.send("success")
            except ConnectionError as failure:
                pipe.send(str(failure))
