"""Membership of a job at an appliance: a control connection, a RoCE port and the link over it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pascaline.contract import control as contract
from pascaline.errors import ApplianceUnreachable, EpochEnded, PascalineError
from pascaline.reduce import Line
from pascaline.session.control import EMULATED_HANDSHAKE_S, HANDSHAKE_S, Control, Message
from pascaline.session.epochs import Epochs
from pascaline.session.handshake import specs_of
from pascaline.session.identity import Identity
from pascaline.session.join import Joining, refusal
from pascaline.session.membership import Listener, Wishes

if TYPE_CHECKING:
    from pascaline.link.verbs import VerbsLink

_LEFT_S = 10.0


class ApplianceMembership:
    """One rank's, at the appliance that `identity` names."""

    link: VerbsLink

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self.rank, self.world_size, self.job = identity.rank, identity.world_size, identity.job
        self.where = f"the appliance at {identity.appliance}"
        self.classes: list[str] = []
        self.straggler_timeout_s = self.leave_timeout_s = 0.0

    def join(self, wishes: Wishes) -> None:
        """Device, control connection, handshake."""
        from pascaline.link import verbs  # here, so that a machine without pyverbs can import this package

        who = self._identity
        with contextlib.ExitStack() as undo:
            self._port = verbs.open_port(who.device)
            undo.callback(self._port.context.close)
            handshake_s = EMULATED_HANDSHAKE_S if self._port.software else HANDSHAKE_S
            self._control = Control(who.host, who.port, handshake_s)
            undo.callback(self._control.close)
            joining = Joining(self._control, who, wishes)
            self._offer = joining.offer(self._port)
            self._control.limit_silence(self._offer.deadline_s)
            self.link = verbs.VerbsLink(self._port, specs_of(self._offer))
            undo.callback(self.link.close)
            joining.connect(self.link, self._offer)
            undo.pop_all()  # from here on `hang_up`, the progress thread and `release` undo
        self.classes[:] = [pool.pool_class for pool in self._offer.pools]
        self.straggler_timeout_s = self._offer.straggler_timeout_s
        self.leave_timeout_s = 2 * self._offer.deadline_s + _LEFT_S

    def begin(self, lines: Sequence[Line]) -> Epochs:
        """The job's epochs."""
        self._epochs = Epochs(self._offer, self._identity.appliance, self.link, lines, self._control.send)
        return self._epochs

    def listen(self, listener: Listener) -> None:
        """What the appliance says, by a thread of the control connection."""

        def on_message(message: Message) -> None:
            if isinstance(message, contract.Left):
                listener.left()
            elif isinstance(message, contract.Ended) and not message.resumable:
                listener.parted(EpochEnded(message.message, message.fault, message.rank))
            elif isinstance(message, contract.Refused):
                listener.parted(refusal(message))
            elif not isinstance(message, contract.Event):
                self._epochs.hear(message)
            elif message.kind == "waiting":
                listener.waiting(message.ranks, message.message)

        def on_end(error: Exception) -> None:
            gone = ApplianceUnreachable(
                f"the control connection to {self.where} is lost ({error}): see whether it runs and can be reached"
            )
            listener.parted(error if isinstance(error, PascalineError) else gone)

        self._control.deliver(on_message, on_end)

    def descriptors(self) -> set[int]:
        """The device's and the control connection's."""
        return {*self._port.descriptors, self._control.fileno()}

    def hang_up(self) -> None:
        """Close the control connection."""
        self._control.close()

    def release(self) -> None:
        """Close the device."""
        self._port.context.close()

    def stats(self) -> dict[str, Any]:
        """What was negotiated, in the epoch that is there."""
        offer = self._epochs.offer
        return {
            "link": "verbs",
            "epoch": offer.epoch,
            "mtu_bytes": offer.mtu,
            "device": self._port.device,
            "address": self._port.towards(offer.pools[0].address)[1],
        }
