"""Joining a job: Join -> Offer -> Connect -> Connected -> probes -> Ready, in the calling thread.

Touches the control connection and a link that is not yet shared. Ends with a link whose rounds may begin, or
with one sentence about what disagrees.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pascaline import plan
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
from pascaline.link import LinkFault
from pascaline.session.control import ConnectionLost, Control, Message
from pascaline.session.identity import Identity

if TYPE_CHECKING:
    from pascaline.link.verbs import Port, VerbsLink

OPS: list[contract.Op] = ["sum_f32", "sum_i32", "max_f32"]
"""Op windows 1, 2, 3 of every session: each collective chooses its codec."""
_STEP_S = 0.1
T = TypeVar("T")


@dataclass(frozen=True)
class Wishes:
    """What the caller asked for beyond who it is."""

    plan: str
    chunk_bytes: int | None
    window: int | None
    timeout_s: float


class Joining:
    """One attempt to join."""

    def __init__(self, control: Control, identity: Identity, wishes: Wishes) -> None:
        self._control, self._identity, self._wishes = control, identity, wishes
        self._end = time.monotonic() + wishes.timeout_s
        self._heard = ""

    def offer(self, port: Port) -> contract.Offer:
        """Say who we are; the answer comes once all ranks have joined."""
        who = self._identity
        self._send(
            contract.Join(
                control_version=contract.CONTROL_VERSION,
                wire_version=wire.VERSION,
                job=who.job,
                restart_count=who.restart_count,
                rank=who.rank,
                world_size=who.world_size,
                ops=OPS,
                plan=self._wishes.plan,
                mtu=port.mtu_bytes,  # type: ignore[arg-type]  # checked by the model
                address=port.address,
                host=socket.gethostname(),
                chunk_bytes=self._wishes.chunk_bytes,
                window=self._wishes.window,
            )
        )
        offer = self._expect(contract.Offer)
        if [pool.pool for pool in offer.pools] != list(range(len(offer.pools))):
            raise ContractMismatch(
                f"the appliance numbers its pools {[pool.pool for pool in offer.pools]}, not from 0 up"
            )
        if offer.mtu > port.mtu_bytes:
            raise LocalSetupError(
                f"the appliance chose a path MTU of {offer.mtu} bytes, {port.device} can {port.mtu_bytes}: "
                f"`ip link set` its network interface's MTU to at least {offer.mtu + 80}"
            )
        return offer

    def connect(self, link: VerbsLink, offer: contract.Offer) -> None:
        """Queue pairs to RTR, exchange, RTS, one full-MTU probe per pool in both directions, READY."""
        link.receive_from(offer.address, offer.mtu, offer.traffic_class)
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
        self._send(contract.Connect(pools=ends))
        self._expect(contract.Connected)
        link.send()
        for pool in link.pools:
            address = plan.remote_address(pool.va_base, wire.PROBE_WINDOW, 0)
            pool.write(0, offer.mtu, address, wire.IMM_PROBE)
        try:
            self._probe(link, offer.mtu)
        except LinkFault as fault:
            raise LocalSetupError(
                f"a probe of one path MTU ({offer.mtu} bytes) did not pass between this worker and {offer.address} "
                f"({fault}): every interface and switch port on the way needs an MTU of at least {offer.mtu + 80} bytes"
            ) from fault

    def _probe(self, link: VerbsLink, mtu_bytes: int) -> None:
        """Until the appliance's probe has come on every pool and READY on the connection, in whichever order."""
        missing, ready = {pool.index for pool in link.pools}, False
        while missing or not ready:
            if missing:
                link.wait(_STEP_S)
                for result in link.completions():
                    if result.immediate != wire.IMM_PROBE or result.length_bytes != mtu_bytes:
                        raise LinkFault(f"a result of {result.length_bytes} bytes came instead of the probe")
                    link.pools[result.pool].post_receive()
                    missing.discard(result.pool)
            with contextlib.suppress(TimeoutError):
                message = self._receive(0 if missing else _STEP_S)
                ready = ready or isinstance(message, contract.Ready)
            self._check_time()

    def _send(self, message: Message) -> None:
        try:
            self._control.send(message)
        except ConnectionLost as lost:
            # The reason for hanging up may have been sent before.
            with contextlib.suppress(TimeoutError):
                self._receive(_STEP_S)
            raise self._lost(lost) from lost

    def _expect(self, kind: type[T]) -> T:
        """The next message of `kind`."""
        while True:
            with contextlib.suppress(TimeoutError):
                message = self._receive(max(0.0, min(1.0, self._end - time.monotonic())))
                if isinstance(message, kind):
                    return message
            self._check_time()

    def _receive(self, timeout_s: float) -> Message:
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

    def _check_time(self) -> None:
        if time.monotonic() > self._end:
            who = self._identity
            raise Timeout(
                f"rank {who.rank} of job {who.job!r} has waited {self._wishes.timeout_s:g} s for the join of all "
                f"{who.world_size} ranks"
                + (f"; the appliance's last word: {self._heard}" if self._heard else "")
            )


def refusal(message: contract.Refused) -> PascalineError:
    """The exception for a refusal."""
    if message.reason == "version":
        return ContractMismatch(message.message)
    return JoinRefused(message.message, message.reason)
