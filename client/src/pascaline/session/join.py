"""Joining a job: Join -> Offer, then the handshake, in the calling thread.

Touches the control connection and a link that is not yet shared. Ends with a link whose rounds may begin, or
with one sentence about what disagrees.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pascaline.contract import control as contract
from pascaline.contract import wire
from pascaline.errors import (
    ApplianceUnreachable,
    ContractMismatch,
    EpochEnded,
    JoinRefused,
    LocalSetupError,
    PascalineError,
    Timeout,
)
from pascaline.link import LinkFault, QueuePairs, Result
from pascaline.session.control import ConnectionLost, Control, Message
from pascaline.session.handshake import Handshake
from pascaline.session.identity import Identity
from pascaline.session.membership import Wishes

if TYPE_CHECKING:
    from pascaline.link.verbs import Port

_LAST_WORD_S = 0.1


class Joining(Handshake):
    """One attempt to join."""

    def __init__(self, control: Control, identity: Identity, wishes: Wishes) -> None:
        super().__init__(time.monotonic() + wishes.timeout_s)
        self._control, self._identity, self._wishes = control, identity, wishes
        self._heard = ""

    def offer(self, port: Port) -> contract.Offer:
        """Say who we are; the answer comes once all ranks have joined."""
        who = self._identity
        self.send(
            contract.Join(
                control_version=contract.CONTROL_VERSION,
                wire_version=wire.VERSION,
                job=who.job,
                restart_count=who.restart_count,
                rank=who.rank,
                world_size=who.world_size,
                ops=list(self._wishes.ops),  # type: ignore[arg-type]  # checked by the model
                tables={op: list(table) for op, table in self._wishes.tables.items()},  # type: ignore[misc]
                plan=self._wishes.plan,
                mtu=port.mtu_bytes,  # type: ignore[arg-type]  # checked by the model
                address=port.address,
                address6=port.address6,
                host=socket.gethostname(),
                chunk_bytes=self._wishes.chunk_bytes,
                window=self._wishes.window,
                lanes=self._wishes.lanes,
            )
        )
        offer = self.expect(contract.Offer)
        if [pool.pool for pool in offer.pools] != list(range(len(offer.pools))):
            raise ContractMismatch(
                f"the appliance numbers its pools {[pool.pool for pool in offer.pools]}, not from 0 up"
            )
        _check_pools(offer)
        self._check_tables(offer)
        if offer.mtu > port.mtu_bytes:
            raise LocalSetupError(
                f"the appliance chose a path MTU of {offer.mtu} bytes, {port.device} can {port.mtu_bytes}: "
                f"`ip link set` its network interface's MTU to at least {_link_mtu(offer)}"
            )
        return offer

    def _check_tables(self, offer: contract.Offer) -> None:
        """What the appliance looks up in is what this worker's indices mean."""
        ours = {op: contract.table_hash(table) for op, table in self._wishes.tables.items()}
        if dict(offer.tables) != ours:
            raise ContractMismatch(
                f"the appliance looks up in tables {_short(offer.tables)} and this worker means {_short(ours)}: "
                "install the same release on both ends"
            )

    def connect(self, link: QueuePairs, offer: contract.Offer) -> None:
        """The job's first epoch begins, or one sentence says what does not pass."""
        link.receive_from(offer.mtu, offer.traffic_class)
        try:
            self.exchange(link, offer)
        except LinkFault as fault:
            raise LocalSetupError(
                f"a probe of one path MTU ({offer.mtu} bytes) did not pass between this worker and {_addresses(offer)} "
                f"({fault}): every interface and switch port on the way needs an MTU of at least "
                f"{_link_mtu(offer)} bytes"
            ) from fault

    def arrived(self, result: Result) -> None:
        """Before the first round there is nothing to come."""
        raise LinkFault(f"a result of {result.length_bytes} bytes came before the first round")

    def send(self, message: Message) -> None:
        """A reason for hanging up is raised in its stead."""
        try:
            self._control.send(message)
        except ConnectionLost as lost:
            # The reason for hanging up may have been sent before.
            with contextlib.suppress(TimeoutError):
                self.receive(_LAST_WORD_S)
            raise self._lost(lost) from lost

    def receive(self, timeout_s: float) -> Message:
        """One message; refusals and ends are raised, events are remembered for the time-out's sentence."""
        try:
            message = self._control.receive(timeout_s)
        except ConnectionLost as lost:
            raise self._lost(lost) from lost
        if isinstance(message, contract.Refused):
            raise refusal(message)
        if isinstance(message, contract.Ended):
            raise EpochEnded(message.message, message.fault, message.rank)
        if isinstance(message, contract.Event):
            self._heard = message.message
        return message

    def _lost(self, lost: ConnectionLost) -> PascalineError:
        return ApplianceUnreachable(
            f"the appliance at {self._control.address} hung up during the join: {lost}"
        )

    def late(self) -> PascalineError:
        """Who is waited for, as far as the appliance has said."""
        who = self._identity
        return Timeout(
            f"rank {who.rank} of job {who.job!r} has waited {self._wishes.timeout_s:g} s for the join of all "
            f"{who.world_size} ranks" + (f"; the appliance's last word: {self._heard}" if self._heard else "")
        )


def _check_pools(offer: contract.Offer) -> None:
    """Data pools of one size, one for each lane, and one pool for small messages."""
    classes = [pool.pool_class for pool in offer.pools]
    sizes = {(pool.window, pool.chunk_bytes) for pool in offer.pools if pool.pool_class == "data"}
    if len(sizes) != 1 or classes.count("small") != 1:
        raise ContractMismatch(
            f"the appliance offers pools {classes} and data pools of (window, chunk) {sorted(sizes)}, a session needs"
            " data pools of one size and one pool for small messages: install the same release on both ends"
        )


def _addresses(offer: contract.Offer) -> str:
    return ", ".join(sorted({pool.address for pool in offer.pools}))


def _short(tables: Mapping[Any, str]) -> str:
    return ", ".join(f"{op} {digest[:12]}" for op, digest in sorted(tables.items())) or "none"


def _link_mtu(offer: contract.Offer) -> int:
    """What a packet of the path MTU wants of Ethernet: RoCE's longest headers, which IPv6 makes longer."""
    return offer.mtu + (84 if ":" in offer.pools[0].address else 80)


def refusal(message: contract.Refused) -> PascalineError:
    """The exception for a refusal."""
    if message.reason == "version":
        return ContractMismatch(message.message)
    return JoinRefused(message.message, message.reason)
