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
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyverbs.enums as e
from pyverbs.cq import CQ, CompChannel, cqe_status_to_str
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

from pascaline.errors import ApplianceUnreachable, LocalSetupError
from pascaline.link import LinkFault, Result
from pascaline.link.verbs.device import Port
from pascaline.link.verbs.pool import COUNT_SHIFT, RECEIVE_BIT, PoolSpec, VerbsPool, queue_depths

_FLUSH_S = 2.0
_POLL_BATCH = 32
_opening = threading.Lock()


@dataclass(frozen=True)
class PoolEnd:
    """The worker's end of one pool's queue pair, for the appliance to connect to."""

    index: int
    qpn: int
    start_psn: int
    result_rkey: int
    result_va: int
    result_bytes: int


class VerbsLink:
    """Implements pascaline.link.Link. One thread at a time: the joining one, then the progress thread."""

    def __init__(self, port: Port, specs: Sequence[PoolSpec]) -> None:
        self._port = port
        self._fault = ""
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
        with _opening:  # so that the one new descriptor is this channel's
            before = _event_descriptors()
            self._channel = CompChannel(self._port.context)
            own(self._channel.close)
            (self.completion_fd,) = _event_descriptors() - before
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

    def receive_from(self, peer: str, mtu_bytes: int, traffic_class: int) -> None:
        """All queue pairs to RTR, their receives posted."""
        try:
            for pool in self.pools:
                pool.to_ready_to_receive(peer, mtu_bytes, traffic_class)
        except PyverbsRDMAError as error:
            raise ApplianceUnreachable(
                f"the appliance's data port {peer} cannot be reached from {self._port.device} "
                f"({self._port.address}): {error}; check cabling and routes (`ping -I {self._port.address} {peer}`)"
            ) from error

    def send(self) -> None:
        """All queue pairs to RTS."""
        for pool in self.pools:
            pool.to_ready_to_send()

    def wait(self, timeout_s: float) -> bool:
        """Sleep until completions may have come, without the GIL."""
        return bool(self._poller.poll(timeout_s * 1000))

    def completions(self) -> list[Result]:
        """Results that have landed since the last call. Raises LinkFault when a queue pair has failed."""
        self._take_event()
        results: list[Result] = []
        polled = _POLL_BATCH
        while polled == _POLL_BATCH:
            polled, completions = self._cq.poll(_POLL_BATCH)
            for completion in completions:
                self._digest(completion, results)
        if self._fault:
            raise LinkFault(self._fault)
        return results

    def _take_event(self) -> None:
        """Fetch a waiting event and ask for the next one *before* the queue is polled: none is lost in between."""
        if self.wait(0):
            self._channel.get_cq_event(self._cq)
            self._cq.ack_events(1)
            self._cq.req_notify()

    def _digest(self, completion: Any, results: list[Result]) -> None:
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
            results.append(Result(pool.index, socket.ntohl(completion.imm_data), completion.byte_len))
        else:
            pool.sent(wr_id)

    def close(self) -> None:
        """All queue pairs to ERR, wait until every receive has come back, destroy."""
        with contextlib.suppress(PyverbsError):
            for pool in self.pools:
                pool.to_error()
            self._flush()
        self._closing.close()

    def _flush(self) -> None:
        """Until nothing is posted any more; some NICs do not report every flush, hence the limit."""
        end = time.monotonic() + _FLUSH_S
        while any(pool.receives for pool in self.pools) and time.monotonic() < end:
            polled, completions = self._cq.poll(_POLL_BATCH)
            for completion in completions:
                if completion.wr_id & RECEIVE_BIT:
                    self.pools[completion.wr_id & (RECEIVE_BIT - 1)].receives -= 1
            if not polled:
                time.sleep(0.002)


def _event_descriptors() -> set[int]:
    """Descriptors of this process that are completion channels (or other RDMA event files)."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()) == "anon_inode:[infinibandevent]":
                found.add(int(link.name))
    return found


def rdma_descriptors() -> set[int]:
    """Descriptors of this process that keep RDMA objects alive: a forked child must not hold them."""
    found = _event_descriptors()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith("/dev/infiniband/"):
                found.add(int(link.name))
    return found
