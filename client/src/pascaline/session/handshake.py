"""From Offer to Ready: queue pairs to RTR, Connect, Connected, RTS, one full-MTU probe per pool both ways, Ready.

The same steps begin a job's first epoch (join) and every later one (epochs). Touches a link that one thread owns.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from typing import TypeVar

from pascaline import plan
from pascaline.contract import control as contract
from pascaline.contract import wire
from pascaline.errors import PascalineError
from pascaline.link import LinkFault, PoolSpec, QueuePairs, Result
from pascaline.session.control import Message

_STEP_S = 0.1
T = TypeVar("T")


def specs_of(offer: contract.Offer) -> list[PoolSpec]:
    """What the appliance has built for this worker, as the link wants it."""
    return [
        PoolSpec(p.pool, p.window, p.chunk_bytes, p.qpn, p.start_psn, p.rkey, int(p.va_base, 16), p.address)
        for p in offer.pools
    ]


class Handshake(ABC):
    """One worker's part of it; how messages come and go, and what ends the patience, is the heir's."""

    def __init__(self, end: float) -> None:
        self._end = end
        """Monotonic seconds."""
        self._unprobed: set[int] = set()
        """Pools whose next result is the appliance's probe."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Say something to the appliance."""

    @abstractmethod
    def receive(self, timeout_s: float) -> Message:
        """One message. Raises TimeoutError, or the error that ends the handshake."""

    @abstractmethod
    def late(self) -> PascalineError:
        """The error when the end has come."""

    @abstractmethod
    def arrived(self, result: Result) -> None:
        """A result that came after its pool's probe."""

    def expect(self, kind: type[T]) -> T:
        """The next message of `kind`."""
        while True:
            with contextlib.suppress(TimeoutError):
                message = self.receive(max(0.0, min(1.0, self._end - time.monotonic())))
                if isinstance(message, kind):
                    return message
            self.check_time()

    def check_time(self) -> None:
        """Raise when the end has come."""
        if time.monotonic() > self._end:
            raise self.late()

    def exchange(self, link: QueuePairs, offer: contract.Offer) -> None:
        """From queue pairs in RTR to Ready. Raises LinkFault when a probe does not pass."""
        ends = [
            contract.PoolConnect(
                pool=end.index,
                qpn=end.qpn,
                start_psn=end.start_psn,
                result_rkey=end.result_rkey,
                result_va=hex(end.result_va),
                result_bytes=end.result_bytes,
            )
            for end in link.ends()
        ]
        self._unprobed = {pool.index for pool in link.pools}
        self.send(contract.Connect(pools=ends))
        self.expect(contract.Connected)
        link.send(offer.deadline_s)
        for pool in link.pools:
            address = plan.remote_address(pool.va_base, wire.PROBE_WINDOW, 0)
            pool.write(0, offer.mtu, address, wire.IMM_PROBE)
        self._probe(link, offer.mtu)

    def _probe(self, link: QueuePairs, mtu_bytes: int) -> None:
        """Until the appliance's probe has come on every pool and Ready on the connection, in whichever order."""
        ready = False
        while self._unprobed or not ready:
            link.wait(_STEP_S if self._unprobed else 0)
            for result in link.completions():
                self.take(link, mtu_bytes, result)
            with contextlib.suppress(TimeoutError):
                message = self.receive(0 if self._unprobed else _STEP_S)
                ready = ready or isinstance(message, contract.Ready)
            self.check_time()

    def take(self, link: QueuePairs, mtu_bytes: int, result: Result) -> None:
        """A pool's first result is the probe; results that are delivered again follow it."""
        if result.pool not in self._unprobed:
            self.arrived(result)
            return
        if result.immediate != wire.IMM_PROBE or result.length_bytes != mtu_bytes:
            raise LinkFault(f"a result of {result.length_bytes} bytes came instead of the probe")
        link.pools[result.pool].post_receive()
        self._unprobed.discard(result.pool)
