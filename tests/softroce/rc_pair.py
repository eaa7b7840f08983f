"""An RC queue pair of plain pyverbs: the bench's proof that RDMA works between two of its ports, appliance aside.

Run as a module it makes one WRITE_WITH_IMM from rxe0 to rxe1 (the native bench tries this before it trusts a network
namespace). It shares nothing with the client's link, so that a fault there cannot hide itself here.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

# Debian's pyverbs lives outside a venv; appended, not inserted, so that the venv's numpy wins.
if "/usr/lib/python3/dist-packages" not in sys.path:
    sys.path.append("/usr/lib/python3/dist-packages")

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PATH_MTU = 4096
START_PSN = 0xFFFFFE  # wraps at once
WRITABLE = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


def address_of(device: str, family: int = 4) -> str:
    """IPv4 or IPv6 address of rxe<k>, as fabric.sh gave it."""
    host = 10 + int(device.removeprefix("rxe"))
    return f"10.77.0.{host}" if family == 4 else f"fd00:77::{host:x}"


def gid_of(address: str) -> str:
    """The GID of an IP address, in the full 8x4 form that pyverbs wants."""
    return IPv6Address(address if ":" in address else f"::ffff:{address}").exploded


def gid_index(device: str, address: str) -> int:
    """Index of the RoCE v2 entry of `address`: it differs from kernel to kernel."""
    port = Path("/sys/class/infiniband") / device / "ports" / "1"
    for entry in sorted(port.glob("gids/*"), key=lambda path: int(path.name)):
        try:
            kind = (port / "gid_attrs" / "types" / entry.name).read_text().strip()
        except OSError:
            continue  # an unused entry refuses to be read
        if kind == "RoCE v2" and entry.read_text().strip() == gid_of(address):
            return int(entry.name)
    raise LookupError(f"{device} has no RoCE v2 GID for {address}")


@dataclass(frozen=True)
class Completion:
    """A work completion of interest here."""

    opcode: int
    imm: int
    bytes: int


@dataclass(frozen=True)
class Remote:
    """What an endpoint must know of its peer."""

    address: str
    qpn: int
    psn: int
    rkey: int
    va: int


class Endpoint:
    """One QP on one device with `size_bytes` of memory that its peer may write."""

    def __init__(self, device: str, size_bytes: int, family: int = 4) -> None:
        self.address = address_of(device, family)
        self.memory: NDArray[np.uint8] = np.zeros(size_bytes, np.uint8)
        self._context = Context(name=device)
        self._pd = PD(self._context)
        self._cq = CQ(self._context, 64)
        self._mr = MR(self._pd, size_bytes, WRITABLE, address=self.memory.ctypes.data)
        init = QPInitAttr(e.IBV_QPT_RC, cap=QPCap(16, 16, 1, 1), scq=self._cq, rcq=self._cq, sq_sig_all=1)
        self._qp = QP(self._pd, init)
        self._gid_index = gid_index(device, self.address)
        self.active_mtu_bytes = 128 << self._context.query_port(1).active_mtu

    @property
    def remote(self) -> Remote:
        """What the peer must know of this one."""
        return Remote(self.address, self._qp.qp_num, START_PSN, self._mr.rkey, self._mr.buf)

    def connect(self, peer: Remote, mtu_bytes: int = PATH_MTU) -> None:
        """RESET -> RTS towards `peer`; needs the peer to answer ARP or a neighbour solicitation."""
        route = GlobalRoute(dgid=GID(gid_of(peer.address)), sgid_index=self._gid_index)
        attr = QPAttr(port_num=1, cur_qp_state=e.IBV_QPS_RESET)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attr.path_mtu = (mtu_bytes // 128).bit_length() - 1  # enum ibv_mtu
        attr.dest_qp_num = peer.qpn
        attr.sq_psn, attr.rq_psn = START_PSN, peer.psn
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 17, 6, 6, 12
        self._qp.to_rts(attr)

    def post_receive(self) -> None:
        self._qp.post_recv(RecvWR(sg=[SGE(self._mr.buf, 0, self._mr.lkey)], num_sge=1))

    def write_imm(self, peer: Remote, imm: int) -> None:
        """RDMA WRITE_WITH_IMM of the whole memory to the peer's."""
        work = SendWR(
            opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=1,
            sg=[SGE(self._mr.buf, self.memory.nbytes, self._mr.lkey)],
            imm_data=imm,
        )
        work.set_wr_rdma(peer.rkey, peer.va)
        self._qp.post_send(work)

    def write(self, peer: Remote, offset_bytes: int, size_bytes: int) -> None:
        """RDMA WRITE, without immediate, of a piece of the memory to the same place in the peer's."""
        piece = SGE(self._mr.buf + offset_bytes, size_bytes, self._mr.lkey)
        work = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[piece])
        work.set_wr_rdma(peer.rkey, peer.va + offset_bytes)
        self._qp.post_send(work)

    def wait(self, timeout_s: float = 60.0) -> Completion:
        """The next completion; anything but success is an error."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            count, completions = self._cq.poll(1)
            if count:
                done = completions[0]
                if done.status != e.IBV_WC_SUCCESS:
                    raise ConnectionError(f"completion with status {done.status}")
                return Completion(done.opcode, done.imm_data, done.byte_len)
            time.sleep(0.001)
        raise TimeoutError(f"{self.address}: no completion within {timeout_s:.0f} s")

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in (self._qp, self._mr, self._cq, self._pd, self._context):
            part.close()


def transfer(source: str, target: str, size_bytes: int, imm: int) -> Completion:
    """Write a pattern from one device to another and check every byte; returns the receiver's completion."""
    with Endpoint(source, size_bytes) as sender, Endpoint(target, size_bytes) as receiver:
        sender.connect(receiver.remote)
        receiver.connect(sender.remote)
        sender.memory[:] = np.random.default_rng(size_bytes).integers(0, 256, size_bytes, np.uint8)
        receiver.post_receive()
        sender.write_imm(receiver.remote, imm)
        arrived = receiver.wait()
        sender.wait()
        if not np.array_equal(sender.memory, receiver.memory):
            raise AssertionError(f"{size_bytes} bytes arrived changed")
        return arrived


if __name__ == "__main__":
    transfer("rxe0", "rxe1", 3 * PATH_MTU, 1)
