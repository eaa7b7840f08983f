"""A lane on which frames are judged: by the rules, and by what the core does with them and with what follows.

Rank 0 of the first job sends the frames. Rank 1 shows that the round still ends in the exact sum, or that the job is
over for it too; a second job on the same lane shows that nobody else is harmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..protocol import ops as all_ops
from ..protocol import streams, wire
from ..protocol.library import lib
from ..protocol.rack import MTU, OPS, Rack, acks, results
from ..protocol.wire import PSN_MASK, Family, Packet
from .rules import Message, Qp, Verdict, judge

STEP_NS = (
    100_000  # more than the 50 us between two congestion notifications, less than a retransmission's time-out
)
RNR_NS = 700_000_000  # more than the longest receiver-not-ready timer
SLOT_PACKETS = 4
LONG_BYTES = 2 * MTU + 12  # of a message of FIRST, MIDDLE, LAST
IMM = 0xABCD0000
TABLES = all_ops.tables(2)


class Bench:
    """Frames in, each held to its verdict; `finish` looks at what became of the round."""

    def __init__(self, family: Family, vlan: int = 0, ops: Sequence[int] = OPS) -> None:
        self.rack = Rack(family=family, vlan=vlan, packets=SLOT_PACKETS, ops=ops, tables=TABLES)
        self.rack.build, self.rack.read = wire.quick_build, self._read
        self.rack.add_job(world=1, packets=1)
        self.a, self.b = self.rack.workers()
        (self.other,) = self.rack.workers(job=1)
        self.round = self.other_round = 0
        self.kept: list[Packet] = []  # results that their worker has not been given yet
        self.sent: Message | None = None  # a's whole contribution to the round
        self.stream = b""  # what a's message in progress goes on with, if it is a stream
        self.qp = Qp(
            family=family,
            qpn=self.a.appliance_qpn,
            peer=self.a.ip,
            va_base=self.a.va_base,
            rkey=self.a.rkey,
            expected_psn=self.a.psn,
            next_round=0,
            mtu=MTU,
            slot_bytes=SLOT_PACKETS * MTU,
            ops=tuple(ops),
            vlan=vlan,
            unacked_psn=self.a.expected_psn,
            fresh_psn=self.a.expected_psn,
        )

    def close(self) -> None:
        """Ends the rack."""
        self.rack.close()

    def _read(self, frame: bytes) -> Packet:
        """What the lane sends: tagged if it has a VLAN."""
        if self.qp.vlan:
            assert frame[12:16] == b"\x81\x00" + self.qp.vlan.to_bytes(2, "big")
            frame = frame[:12] + frame[16:]
        return wire.quick_read(frame)

    # ---- Frames of rank 0. ----

    @property
    def imm(self) -> int:
        """Immediate of the round."""
        return IMM + self.round

    def only(self, **changes: object) -> Packet:
        """A whole message in one packet."""
        return self._begin(wire.ONLY_IMM, 20).but(imm=self.imm, **changes)

    def first(self, length: int = LONG_BYTES, **changes: object) -> Packet:
        """The first packet of a longer message."""
        return self._begin(wire.FIRST, length).but(**changes)

    def _begin(self, opcode: int, length: int) -> Packet:
        return self.a.packet(
            opcode,
            self.qp.expected_psn,
            va=self.a.address(self.round),
            rkey=self.a.rkey,
            dma_len=length,
            payload=payload(self.round, 0, min(length, MTU)),
            ack_req=opcode == wire.ONLY_IMM,
        )

    def next(self, **changes: object) -> Packet:
        """The next packet of the message in progress: MIDDLE, or LAST where it is due."""
        assert self.qp.message is not None
        residual = self.qp.message.residual
        last = residual <= MTU
        packet = self.a.packet(
            wire.LAST_IMM if last else wire.MIDDLE,
            self.qp.expected_psn,
            imm=self.imm if last else 0,
            payload=self._goes_on(self.qp.message, min(residual, MTU)),
            ack_req=last,
        )
        return packet.but(**changes)

    def _goes_on(self, message: Message, size: int) -> bytes:
        start = len(message.data)
        if message.op in all_ops.STREAMS:
            return self.stream[start : start + size]
        return payload(self.round, start, size)

    def ack(self, **changes: object) -> Packet:
        """An acknowledgement of the first packet that is outstanding."""
        return self.a.ack(self.qp.unacked_psn).but(**changes)

    # ---- States. ----

    def enter(self, state: str) -> None:
        """Bring rank 0's QP into a state: idle, mid, late (only the LAST is missing), nak, outstanding, err."""
        if state in ("mid", "late"):
            self.see(wire.quick_build(self.first()))
        if state == "late":
            self.see(wire.quick_build(self.next()))
        if state == "nak":
            self.see(wire.quick_build(self.only(psn=(self.qp.expected_psn + 1) & PSN_MASK)))
            assert self.qp.nak_sent
        if state == "outstanding":
            self._contribute_all()
        if state == "err" and not self.qp.in_error:
            self.see(wire.quick_build(self.a.packet(wire.MIDDLE, self.qp.expected_psn, payload=bytes(MTU))))
            assert self.qp.in_error

    def _contribute_all(self) -> None:
        """Both ranks' contributions; the results stay with the test."""
        self.see(wire.quick_build(self.first()))
        while self.qp.message:
            self.see(wire.quick_build(self.next()))
        before = self.a.expected_psn
        self.kept += results(self.rack.poll(*self._mirror()))
        self.qp = replace(
            self.qp, unacked_psn=before, fresh_psn=(before + len(results(self.kept, self.a))) & PSN_MASK
        )

    # ---- One frame. ----

    def see(self, frame: bytes) -> Verdict:
        """One frame: what the rules say must be what is seen."""
        rack, verdict = self.rack, judge(frame, self.qp)
        rack.now_ns += STEP_NS
        drops = rack.drops()
        out = rack.feed(frame)
        grown = {name: n - drops.get(name, 0) for name, n in rack.drops().items() if n != drops.get(name, 0)}
        assert grown == ({verdict.drop: 1} if verdict.drop else {}), f"drops {grown}, not {verdict}"
        said = [(psn, syndrome) for psn, syndrome, _ in acks(out)]
        assert said == ([verdict.reply] if verdict.reply else []), f"replies {said}, not {verdict}"
        assert sum(packet.opcode == wire.CNP for packet in out) == verdict.cnp, (
            f"notifications, not {verdict}"
        )
        faults = [event.fault for event in rack.events() if event.kind == "fault"]
        assert faults == ([verdict.fault] if verdict.fault else []), f"faults {faults}, not {verdict}"
        if not (verdict.executed or verdict.acknowledged):
            assert results(out) == [] and rack.other == [], f"something is sent after {verdict}"
        self.kept += results(out)
        self._apply(verdict)
        return verdict

    def _apply(self, verdict: Verdict) -> None:
        """What the rules know afterwards."""
        if verdict.fault:
            self.qp = replace(self.qp, in_error=True)
        elif verdict.drop == "gap":
            self.qp = replace(self.qp, nak_sent=True)
        elif verdict.executed:
            message = verdict.executed
            if message.op == lib.PSC_OP_PROBE:
                self._probe()
            elif message.residual == 0:
                self.sent = message
            self.qp = replace(
                self.qp,
                expected_psn=(self.qp.expected_psn + 1) & PSN_MASK,
                nak_sent=False,
                message=message if message.residual else None,
            )

    def _probe(self) -> None:
        """The worker's probe was executed: the lane's own comes back, where result 0 will be."""
        self._deliver()
        assert self.a.completions.pop() == lib.PSC_IMM_PROBE and not self.a.completions
        self.qp = replace(self.qp, unacked_psn=self.a.expected_psn, fresh_psn=self.a.expected_psn)

    # ---- Afterwards. ----

    def finish(self) -> None:
        """What follows a frame: the round ends in the exact sum on both ranks, or the job and only that job is over."""
        if self.qp.in_error:
            self._over()
        else:
            self._sum()
        self._other_job()

    def _over(self) -> None:
        """Neither rank is heard any more, and nothing is sent to them."""
        assert self.see(wire.quick_build(self.only())).drop == "qp_state"
        drops = self.rack.drops().get("qp_state", 0)
        assert self.rack.poll(*self.b.write(self.round, bytes(20))) == []
        assert self.rack.drops()["qp_state"] == drops + 1

    def _sum(self) -> None:
        """Rank 0 goes on where it stands, rank 1 follows, and both get the sum."""
        if self.sent is None:
            if self.qp.message is None:
                self.see(wire.quick_build(self.first()))
            while self.qp.message and not self.qp.in_error:
                self.see(wire.quick_build(self.next()))
            if self.qp.in_error:  # a stream's fault may show only in its end
                self._over()
                return
            self.kept += results(self.rack.poll(*self._mirror()))
        elif not self.kept:
            self.kept += results(self.rack.poll(*self._mirror()))
        self._deliver()
        if len(self.a.completions) <= self.round:  # the lane was told to wait
            self.rack.now_ns += RNR_NS
            self._deliver()
        sent = self.sent
        assert sent is not None
        sums = combine(sent, self._mirrored(sent))
        for worker in (self.a, self.b):
            assert worker.completions[self.round :] == [sent.imm], "no result, or not one"
            assert worker.result(self.round, sums).tobytes() == sums.tobytes(), "not the sum"
        self._next_round()

    def _deliver(self) -> None:
        """Results to their workers, and all that follows."""
        kept, self.kept = self.kept, []
        self.rack.run([reply for packet in kept for reply in self.rack.owner(packet).receive(packet)])

    def _next_round(self) -> None:
        self.round += 1
        self.sent = None
        self.qp = replace(
            self.qp,
            next_round=self.round,
            unacked_psn=self.a.expected_psn,
            fresh_psn=self.a.expected_psn,
        )

    def _mirrored(self, sent: Message) -> bytes:
        if sent.op in all_ops.STREAMS:  # as many elements, and of those some others
            elements = int.from_bytes(sent.data[:4], "little")
            return streams.encode(np.arange(elements) % 5 == 1, np.arange(elements, dtype=np.int32))
        return payload(self.round + 7, 0, sent.length)

    def _mirror(self) -> list[Packet]:
        """Rank 1's contribution: what all ranks must agree on is as rank 0 has sent it."""
        assert self.sent is not None
        data, op = self._mirrored(self.sent), self.qp.ops.index(self.sent.op) + 1
        return self.b.write(self.round, data, op=op, imm=self.sent.imm)

    def _other_job(self) -> None:
        worker, data = self.other, np.arange(5, dtype=np.int32) + self.other_round
        self.rack.run(worker.write(self.other_round, data))
        assert worker.result(self.other_round, data).tobytes() == data.tobytes(), "another job is harmed"
        self.other_round += 1


def payload(seed: int, start: int, size: int) -> bytes:
    """Bytes [start, start + size) of a message of small integers: denormal as floats, so every sum is exact."""
    elems = (np.arange(start // 4, (start + size + 3) // 4, dtype=np.int32) * 7 + seed) % 997
    return elems.tobytes()[:size]


def combine(sent: Message, other: bytes) -> np.ndarray:
    """The sum of both contributions by the op that rank 0 chose."""
    if sent.op not in OPS:
        return all_ops.expected(sent.op, [sent.data, other], TABLES.get(sent.op, b""))
    x = np.frombuffer(sent.data, np.int32)
    y = np.frombuffer(other, np.int32)
    return np.maximum(x & 0x7FFFFFFF, y) if sent.op == lib.PSC_OP_MAX_F32 else x + y


def tagged(frame: bytes, *tags: tuple[int, int]) -> bytes:
    """The frame with 802.1Q tags, outermost first, each an ethertype and a TCI."""
    header = b"".join(kind.to_bytes(2, "big") + tci.to_bytes(2, "big") for kind, tci in tags)
    return frame[:12] + header + frame[12:]
