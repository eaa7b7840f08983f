"""Epochs: how this worker's connections end and begin again while the job goes on (rule 7).

The control thread puts the appliance's words in; the progress thread, which owns link and lines, takes them out. A
fault that can be resumed ends in a new epoch here and nobody else notices; any other ends in a verdict.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence

from pascaline.contract import control as contract
from pascaline.errors import ApplianceUnreachable, ContractMismatch, PascalineError
from pascaline.link import LinkFault, QueuePairs, Result
from pascaline.reduce import Line
from pascaline.session.control import ConnectionLost, Message
from pascaline.session.handshake import Handshake, specs_of

_ROUND_MASK = (1 << 32) - 1
_RETRY_S = 0.2


class Halted(Exception):
    """The epoch has ended, and the appliance wants to resume."""

    def __init__(self, ended: contract.Ended) -> None:
        super().__init__(ended.message)
        self.ended = ended


class Epochs(Handshake):
    """One worker's epochs after the first, which `offer` began. `say` sends a message to the appliance."""

    def __init__(
        self,
        offer: contract.Offer,
        appliance: str,
        link: QueuePairs,
        lines: Sequence[Line],
        say: Callable[[Message], None],
    ) -> None:
        super().__init__(0.0)
        self.offer = offer
        """Of the epoch that is there; the progress thread's."""
        self._appliance, self._link, self._lines = appliance, link, lines
        self._say = say
        self.wake: Callable[[], None] = lambda: None
        """Ends the progress thread's sleep, once it has one."""
        self.silent = "the appliance, which says nothing: run `pascaline-appliance status` there"
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._fault = ""
        self._leaving = False
        self.verdict: PascalineError | None = None
        """What ended the session for good; the first one stands."""

    # The control thread's, and close's.

    def hear(self, message: Message) -> None:
        """A message of the appliance that is about epochs."""
        self._messages.put(message)
        self.wake()

    def end(self, error: PascalineError) -> None:
        """The session is over."""
        with self._lock:
            if self.verdict:
                return
            self.verdict = error
        self._messages.put(None)
        self.wake()

    # The progress thread's.

    def check(self) -> None:
        """Raise Halted when the appliance has ended the epoch, and the verdict when there is one."""
        while True:
            try:
                self.receive(0)
            except TimeoutError:
                return

    def resume(self, ended: contract.Ended) -> None:
        """From a resumable Ended to Ready, as often as it takes. Raises what ends the session."""
        if self._leaving:
            self.drain()
            return
        self._begin(ended.message)
        self._attempts(ended)

    def report(self, fault: LinkFault) -> None:
        """One of our queue pairs has failed: say so, hear the verdict, resume."""
        if self._leaving:
            self.drain()
            return
        self._begin(str(fault))
        self._attempts(self._broken(fault))

    def leave(self) -> None:
        """Everything that this worker wanted is here: it takes part in no further epoch, and waits for Left."""
        self._leaving = True
        self.send(contract.Leave(received=self._received()))

    def drain(self) -> None:
        """The last epoch's end: what has landed whole is a result, then nothing is."""
        for result in self._link.halt():
            self.take(self._link, self.offer.mtu, result)

    def _begin(self, fault: str) -> None:
        self._fault, self._end = fault, time.monotonic() + self.offer.deadline_s

    def _attempts(self, ended: contract.Ended) -> None:
        while True:
            try:
                self._attempt(ended)
                return
            except Halted as halted:
                ended = halted.ended
            except LinkFault as fault:
                ended = self._broken(fault)

    def _broken(self, fault: LinkFault) -> contract.Ended:
        """The appliance's answer to a failed queue pair, which most often it has seen, too."""
        self.send(contract.Broken(message=str(fault)[:1000]))
        while True:
            try:
                self.expect(contract.Ended)
            except Halted as halted:
                return halted.ended

    def _attempt(self, ended: contract.Ended) -> None:
        """Flush and drain; say what is here; new queue pairs; then redelivered results and stored contributions."""
        self.drain()
        self.send(contract.Resume(epoch=ended.epoch, received=self._received()))
        offer = self.expect(contract.Offer)
        self._check_offer(offer)
        self._reach(offer)
        self.exchange(self._link, offer)
        self.offer = offer
        for line, complete in zip(self._lines, offer.complete, strict=True):
            line.write_again(complete)

    def _received(self) -> list[int]:
        return [line.rounds_drained & _ROUND_MASK for line in self._lines]

    def _check_offer(self, offer: contract.Offer) -> None:
        shapes = [
            (o.mtu, [(p.lane, p.window, p.chunk_bytes) for p in o.pools], o.tables)
            for o in (self.offer, offer)
        ]
        if shapes[0] != shapes[1] or len(offer.complete) != len(offer.pools):
            raise ContractMismatch(
                f"the appliance resumes with an MTU, pools of (lane, window, chunk) and tables {shapes[1]} and "
                f"complete rounds {offer.complete}, the job began with {shapes[0]}: install the same release on "
                "both ends"
            )

    def _reach(self, offer: contract.Offer) -> None:
        """New queue pairs to RTR: again and again, since a path that is down may come back before the deadline."""
        while True:
            self._link.renew(specs_of(offer))
            try:
                self._link.receive_from(offer.mtu, offer.traffic_class)
                return
            except ApplianceUnreachable as error:
                self._fault = str(error)
            with contextlib.suppress(TimeoutError):
                self.receive(_RETRY_S)
            self.check_time()

    # Steps of the handshake.

    def send(self, message: Message) -> None:
        """A connection that is lost ends in a verdict of its own."""
        with contextlib.suppress(ConnectionLost):
            self._say(message)

    def receive(self, timeout_s: float) -> Message:
        """The next message, unless it is an end."""
        if self.verdict:
            raise self.verdict
        try:
            message = self._messages.get(timeout=timeout_s) if timeout_s else self._messages.get_nowait()
        except queue.Empty:
            raise TimeoutError from None
        if message is None:
            return self.receive(0)
        if isinstance(message, contract.Ended):
            raise Halted(message)
        return message

    def arrived(self, result: Result) -> None:
        """A result of the old epoch, or delivered again in the new one: it takes its usual way."""
        self._lines[result.pool].arrived(result)

    def late(self) -> PascalineError:
        """Neither a new epoch nor a verdict by the deadline."""
        return ApplianceUnreachable(
            f"the appliance at {self._appliance} has neither resumed nor ended the job within "
            f"{self.offer.deadline_s:g} s of a fault: {self._fault}"
        )
