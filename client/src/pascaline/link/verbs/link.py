"""All queue pairs of one worker over one completion queue. Steps of the story: "write" and "wait".

pyverbs 44 shows no descriptor of a completion channel and its get_cq_event blocks with the GIL held: so the
descriptor is found once, the session's thread sleeps in poll(2) on it, and events are fetched only when they
are there.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyverbs.enums as e
from pyverbs.cq import CQ, CompChannel, cqe_status_to_str
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

from pascaline.errors import ApplianceUnreachable, LocalSetupError
from pascaline.link import LinkFault, PoolEnd, PoolSpec, Result
from pascaline.link.verbs.descriptors import event_descriptors, opening
from pascaline.link.verbs.device import Port
from pascaline.link.verbs.pool import COUNT_SHIFT, RECEIVE_BIT, VerbsPool, queue_depths

_FLUSH_S = 0.5
_POLL_BATCH = 32
_CHANNEL_ATTEMPTS = 5


class VerbsLink:
    """Implements pascaline.link.Link. One thread at a time: the joining one, then the progress thread."""

    def __init__(self, port: Port, specs: Sequence[PoolSpec]) -> None:
        self._port = port
        self._fault = ""
        self._landed: list[Result] = []
        self._closing = contextlib.ExitStack()
        try:
            self._build(specs)
        except PyverbsError as error:
            self._closing.close()
            raise LocalSetupError(
                f"RDMA device {port.device} refused what a session needs: {error}"
            ) from error
        except BaseException:
            self._closing.close()
            raise

    def _build(self, specs: Sequence[PoolSpec]) -> None:
        """Everything in the order that its destruction reverses."""
        own = self._closing.callback
        self._channel, self.completion_fd = open_channel(lambda: CompChannel(self._port.context))
        own(self._channel.close)
        os.set_blocking(self.completion_fd, False)
        self._poller = select.poll()
        self._poller.register(self.completion_fd, select.POLLIN)
        pd = PD(self._port.context)
        own(pd.close)
        depth = sum(sum(queue_depths(spec.window)) for spec in specs)  # an overflow would be fatal
        self._cq = CQ(self._port.context, depth, None, self._channel, 0)
        own(self._cq.close)
        self._cq.req_notify()
        self.pools: list[VerbsPool] = []
        for spec in specs:
            pool = VerbsPool(spec, self._port, pd, self._cq)
            own(pool.close)
            self.pools.append(pool)

    def ends(self) -> list[PoolEnd]:
        """What the appliance must know."""
        return [
            PoolEnd(p.index, p.qpn, p.start_psn, p.result.rkey, p.result.address, p.result.bytes)
            for p in self.pools
        ]

    def receive_from(self, mtu_bytes: int, traffic_class: int) -> None:
        """All queue pairs to RTR, their receives posted."""
        peer = ""
        try:
            for pool in self.pools:
                peer = pool.peer
                pool.to_ready_to_receive(mtu_bytes, traffic_class)
        except PyverbsRDMAError as error:
            _, address = self._port.towards(peer)
            raise ApplianceUnreachable(
                f"the appliance's data port {peer} cannot be reached from {self._port.device} ({address}): {error}; "
                f"check cabling and routes (`ping -I {address} {peer}`)"
            ) from error

    def send(self, deadline_s: float) -> None:
        """All queue pairs to RTS; their retries end well before `deadline_s`."""
        for pool in self.pools:
            pool.to_ready_to_send(deadline_s)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until completions may have come, without the GIL."""
        return bool(self._poller.poll(timeout_s * 1000))

    def completions(self) -> list[Result]:
        """Results that have landed since the last call. Raises LinkFault when a queue pair has failed; what
        landed before that is kept for `halt`.
        """
        self._take_event()
        while self._collect() == _POLL_BATCH:
            pass
        if self._fault:
            raise LinkFault(self._fault)
        return self._take_landed()

    def _collect(self) -> int:
        """Digest one batch of completions; returns how many there were."""
        polled, completions = self._cq.poll(_POLL_BATCH)
        for completion in completions:
            self._digest(completion)
        return int(polled)

    def _take_landed(self) -> list[Result]:
        landed, self._landed = self._landed, []
        return landed

    def _take_event(self) -> None:
        """Fetch a waiting event and ask for the next one *before* the queue is polled: none is lost in between."""
        if self.wait(0):
            self._channel.get_cq_event(self._cq)
            self._cq.ack_events(1)
            self._cq.req_notify()

    def _digest(self, completion: Any) -> None:
        wr_id = completion.wr_id
        pool = self.pools[wr_id & (RECEIVE_BIT - 1)]
        is_receive = bool(wr_id & RECEIVE_BIT)
        if is_receive:
            pool.receives -= 1
        if completion.status != e.IBV_WC_SUCCESS:
            what = "receive" if is_receive else f"write {wr_id >> COUNT_SHIFT}"
            status = cqe_status_to_str(completion.status)
            self._fault = self._fault or f"{what} of pool {pool.index} on {self._port.device}: {status}"
        elif is_receive:
            self._landed.append(Result(pool.index, socket.ntohl(completion.imm_data), completion.byte_len))
        else:
            pool.sent(wr_id)

    def halt(self) -> list[Result]:
        """All queue pairs to ERR, flushed, destroyed. Returns results that had landed; no other will."""
        for pool in self.pools:
            with contextlib.suppress(PyverbsError):
                pool.to_error()
        self._flush()
        for pool in self.pools:
            pool.destroy()
        while self._collect():  # flushed sends: nothing of this epoch may meet the next one's counters
            pass
        self._fault = ""
        return self._take_landed()

    def _flush(self) -> None:
        """Until nothing is posted any more; some NICs do not report every flush, hence the limit."""
        end = time.monotonic() + _FLUSH_S
        while any(pool.receives > 0 for pool in self.pools) and time.monotonic() < end:
            if not self._collect():
                time.sleep(0.002)

    def renew(self, specs: Sequence[PoolSpec]) -> None:
        """New queue pairs on the same buffers; those that never came to life are dropped."""
        try:
            for pool, spec in zip(self.pools, specs, strict=True):
                pool.destroy()
                pool.renew(spec)
        except PyverbsError as error:
            raise LocalSetupError(
                f"RDMA device {self._port.device} refused a new queue pair: {error}"
            ) from error

    def close(self) -> None:
        """Halt, then destroy everything."""
        self.halt()
        self._closing.close()


def open_channel(create: Callable[[], Any]) -> tuple[Any, int]:
    """A completion channel and its descriptor, which is the one that is new: unless other code opens one meanwhile."""
    for _ in range(_CHANNEL_ATTEMPTS):
        with opening:
            before = event_descriptors()
            channel = create()
            new = event_descriptors() - before
        if len(new) == 1:
            return channel, new.pop()
        channel.close()
    raise LocalSetupError(
        f"the descriptor of a completion channel cannot be told from others ({len(new)} are new): /proc must be "
        "mounted, and no other library may open RDMA devices while a session joins"
    )
