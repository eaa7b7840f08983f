"""One pool's queue pair: states, WRITEs, receives. Bytes and numbers only; the completion queue is the link's.

Settings follow the worker's part of the RoCE rules in DESIGN.md. Per-message cost is Python's, so work requests are
made once per slot and reused while the length stays (0.14 us against 1.9 us for a new one).
"""

from __future__ import annotations

import secrets
import socket
from typing import Any

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from pascaline.link import PoolSpec
from pascaline.link.verbs.device import Port, gid_of
from pascaline.link.verbs.memory import Registered

RETRY_COUNT = 6
RNR_RETRY = 6
MIN_RNR_TIMER = 12
TIMEOUT_NIC = 14
TIMEOUT_SOFTWARE_MAX = 18
TIMER_UNIT_S = 4.096e-6
DETECTION_SHARE = 0.4
"""Of the deadline: what may pass until a fault is seen; the rest is for resuming. The appliance's progress limit has
the same share of it, by default 2 s of 5 s.
"""
HOP_LIMIT = 64
RECEIVE_BIT = 1 << 8
"""Of a work request's id: a receive; the bits below are the pool, those above count sends."""
COUNT_SHIFT = 16


class VerbsPool:
    """Contribution and result buffers, and the RC queue pair of the epoch."""

    def __init__(self, spec: PoolSpec, port: Port, pd: Any, cq: Any) -> None:
        self.index, self.window, self.chunk_bytes = spec.index, spec.window, spec.chunk_bytes
        self._port, self._pd, self._cq = port, pd, cq
        # Without remote access: a peer may neither read nor write what this worker contributes.
        self._contribution = Registered(pd, self.window, self.chunk_bytes, e.IBV_ACCESS_LOCAL_WRITE)
        result_access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.result = Registered(pd, self.window, self.chunk_bytes, result_access)
        self.contributions, self.results = self._contribution.slots, self.result.slots
        self.send_depth, self._receive_depth = queue_depths(self.window)
        self._signal_every = max(1, self.window // 2)
        empty = SGE(self.result.address, 0, self.result.lkey)  # a receive needs one, if of length zero
        self._receive = RecvWR(wr_id=RECEIVE_BIT | self.index, num_sge=1, sg=[empty])
        self._sends: list[tuple[int, Any]] = [(0, None)] * self.window
        self.renew(spec)

    def renew(self, spec: PoolSpec) -> None:
        """A queue pair for a new epoch: nothing of an older one reaches it, since number and PSN are new."""
        self._spec, self.va_base = spec, spec.va_base
        self.start_psn = secrets.randbits(24)
        self._posted = self._completed = 0
        self.receives = 0
        cap = QPCap(self.send_depth, self._receive_depth, 1, 1, 0)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=0)
        self._qp: Any = QP(self._pd, init)
        self.qpn: int = self._qp.qp_num

    @property
    def peer(self) -> str:
        """IP address of the appliance's port for this pool."""
        return self._spec.address

    def to_ready_to_receive(self, mtu_bytes: int, traffic_class: int) -> None:
        """INIT, RTR; then the window's receives and one for the probe. The peer must answer for its address."""
        attr = QPAttr(port_num=self._port.number)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        self._qp.to_init(attr)
        gid_index, _ = self._port.towards(self.peer)
        route = GlobalRoute(GID(gid_of(self.peer)), 0, gid_index, HOP_LIMIT, traffic_class)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=self._port.number)
        attr.path_mtu = (mtu_bytes // 128).bit_length() - 1
        attr.dest_qp_num, attr.rq_psn = self._spec.qpn, self._spec.start_psn
        attr.max_dest_rd_atomic, attr.min_rnr_timer = 1, MIN_RNR_TIMER
        self._qp.to_rtr(attr)
        for _ in range(self.window + 1):
            self.post_receive()

    def to_ready_to_send(self, deadline_s: float) -> None:
        """RTS: WRITEs may be posted."""
        attr = QPAttr(port_num=self._port.number)
        attr.timeout = timeout_exponent(deadline_s) if self._port.software else TIMEOUT_NIC
        attr.retry_cnt, attr.rnr_retry = RETRY_COUNT, RNR_RETRY
        attr.sq_psn, attr.max_rd_atomic = self.start_psn, 1
        self._qp.to_rts(attr)

    def to_error(self) -> None:
        """ERR: whatever is posted comes back flushed, and the peer can write no more."""
        if self._qp is not None:
            self._qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def can_write(self) -> bool:
        """Whether the send queue has room."""
        return self._posted - self._completed < self.send_depth

    def write(self, slot: int, length_bytes: int, remote_address: int, immediate: int) -> None:
        """RDMA WRITE_WITH_IMM of a contribution slot's first bytes."""
        cached_bytes, request = self._sends[slot]
        if cached_bytes != length_bytes:
            request = self._new_send(slot, length_bytes)
        self._posted += 1
        signaled = self._posted % self._signal_every == 0
        request.send_flags = e.IBV_SEND_SIGNALED if signaled else 0
        request.wr_id = self._posted << COUNT_SHIFT | self.index
        request.imm_data = socket.htonl(immediate)  # pyverbs hands it to the NIC as it lies in memory
        request.set_wr_rdma(self._spec.rkey, remote_address)
        self._qp.post_send(request)

    def _new_send(self, slot: int, length_bytes: int) -> Any:
        sge = SGE(self._contribution.address + slot * self.chunk_bytes, length_bytes, self._contribution.lkey)
        request = SendWR(opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM, num_sge=1, sg=[sge])
        self._sends[slot] = (length_bytes, request)
        return request

    def sent(self, wr_id: int) -> None:
        """A signaled WRITE has completed, and with it all before it."""
        self._completed = wr_id >> COUNT_SHIFT

    def post_receive(self) -> None:
        """One more result may come. Between epochs nothing can: the next queue pair gets all receives at once."""
        if self._qp is None:
            return
        self.receives += 1
        self._qp.post_recv(self._receive)

    def destroy(self) -> None:
        """The queue pair is no more; what it has completed is still in the completion queue."""
        if self._qp is not None:
            self._qp.close()
            self._qp, self.receives = None, 0

    def close(self) -> None:
        """Destroy the queue pair, then give the memory back."""
        self.destroy()
        self._contribution.close()
        self.result.close()


def queue_depths(window: int) -> tuple[int, int]:
    """Sends and receives of one queue pair.

    A result may overtake the ACK of its contribution, and only every window/2-th send reports: two windows
    may then be unreported while a third begins. Receives: one per slot and one for the probe.
    """
    return 3 * window + 1, window + 1


def timeout_exponent(deadline_s: float) -> int:
    """ACK time-out towards emulated peers, which answer late: as long as all retries end within DETECTION_SHARE."""
    exponent = TIMEOUT_SOFTWARE_MAX
    while (
        RETRY_COUNT + 1
    ) * TIMER_UNIT_S * 2**exponent > DETECTION_SHARE * deadline_s and exponent > TIMEOUT_NIC:
        exponent -= 1
    return exponent
