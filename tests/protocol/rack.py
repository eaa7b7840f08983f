"""A rack in miniature: the real lane, scripted workers, and a clock that only the test moves.

`Rack.poll` is one turn of the lane: packets in, packets out. `Rack.run` also carries the answers to the workers and
theirs back until nobody has anything to say. A worker keeps its PSNs and its result buffer as a NIC would.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import wire
from .library import DROPS, EVENTS, FAULTS, ffi, lib, libc
from .wire import APPLIANCE_MAC, V4, Family, Packet
from .worker import Array, Worker

MTU = 256
OPS = [lib.PSC_OP_SUM_I32, lib.PSC_OP_SUM_F32, lib.PSC_OP_MAX_F32]
RETRANSMIT_NS = 1_000_000
PROGRESS_NS = 2_000_000_000
MAX_EMITS = 256


@dataclass(frozen=True)
class Event:
    kind: str
    job: int
    pool: int
    rank: int
    round: int
    ranks: int
    fault: str
    expected: int
    got: int
    complete: tuple[int, ...]


@dataclass
class Job:
    handle: Any
    stats: Any
    mtu: int
    window: int
    chunk_bytes: int
    tables: Mapping[int, bytes]
    workers: list[list[Worker]]  # by pool, then rank


class Rack:
    """One lane and its workers."""

    def __init__(
        self,
        *,
        family: Family = V4,
        connected: bool = True,
        max_unacked: int = 128,
        vlan: int = 0,
        seed: int = 1,
        **job: Any,
    ) -> None:
        """`connected`: QPs of a new job are connected at once; `job`: see add_job."""
        self.family = family
        self.now_ns = 5_000_000_000
        self.random = random.Random(seed)
        self.held: list[Any] | None = None  # a list: emits keep their hold until release() is called
        self.read: Callable[[bytes], Packet] = wire.read
        self.build: Callable[[Packet], bytes] = wire.build
        self.other: list[bytes] = []  # frames out that are not RoCE
        self.jobs: list[Job] = []
        self.connected = connected
        self._workers: dict[tuple[str, int], Worker] = {}
        self._numbers = itertools.count()  # of QPs: their index in the lane's table
        self._blocks: set[int] = set()
        self._callbacks = (
            ffi.callback("void *(void *, size_t)", self._alloc),
            ffi.callback("void (void *, void *)", self._release),
        )
        self._memory = ffi.new(
            "struct psc_memory *", {"alloc": self._callbacks[0], "release": self._callbacks[1]}
        )
        self._emits = ffi.new("struct psc_emit[]", MAX_EMITS)
        self.stats = ffi.new("struct psc_lane_stats *")
        self.lane = lib.psc_lane_new(self._config(max_unacked, vlan), self._memory, self.stats)
        self.add_job(**job)

    def close(self) -> None:
        """Frees the lane and every job."""
        for job in self.jobs:
            lib.psc_job_free(job.handle)
        lib.psc_lane_free(self.lane)
        assert not self._blocks, "memory is left"

    # ---- Making ----

    def _alloc(self, _context: Any, size: int) -> Any:
        memory = libc.aligned_alloc(64, (size + 63) // 64 * 64)
        ffi.memmove(memory, bytes(size), size)
        self._blocks.add(int(ffi.cast("uintptr_t", memory)))
        return memory

    def _release(self, _context: Any, memory: Any) -> None:
        self._blocks.remove(int(ffi.cast("uintptr_t", memory)))
        libc.free(memory)

    def _config(self, max_unacked: int, vlan: int) -> Any:
        return ffi.new(
            "struct psc_lane_config *",
            {
                "local": {"mac": _mac(APPLIANCE_MAC), "ip": _ip(self.family.appliance), "vlan": vlan},
                "gateway": _ip(self.family.gateway),
                "prefix_bits": self.family.prefix_bits,
                "dscp": wire.DSCP,
                "lane": 3,
                "max_unacked_packets": max_unacked,
                "retransmit_ns": RETRANSMIT_NS,
                "retries": 6,
                "progress_ns": PROGRESS_NS,
                "waiting_event_ns": PROGRESS_NS,
                "realtime_offset_ns": 1_700_000_000_000_000_000,
            },
        )

    def add_job(
        self,
        world: int = 2,
        window: int = 2,
        packets: int = 4,
        mtu: int = MTU,
        pools: int = 1,
        worker_psn: int | None = None,
        appliance_psn: int | None = None,
        prefix: str | None = None,
        ops: Sequence[int] = OPS,
        tables: Mapping[int, bytes] | None = None,
    ) -> Job:
        """Attaches a job with `packets` full packets per slot; connects its QPs unless told not to.

        Op window k is ops[k-1]; `tables` by enum psc_op.
        """
        index = len(self.jobs)
        stats = ffi.new("struct psc_job_stats *")
        spec = {
            "world_size": world,
            "mtu": mtu,
            "ops": list(ops),
            "op_count": len(ops),
            "tables": [list((tables or {}).get(op, b"")) for op in range(lib.PSC_OP_COUNT)],
            "pools": [
                {"pool_class": p, "window": window, "chunk_bytes": packets * mtu} for p in range(pools)
            ],
            "pool_count": pools,
            "stats": stats,
            "tag": 1000 + index,
        }
        handle = lib.psc_job_new(ffi.new("struct psc_job_spec *", spec), self._memory)
        assert handle != ffi.NULL
        job = Job(handle, stats, mtu, window, packets * mtu, tables or {}, [])
        self.jobs.append(job)
        assert self.apply("ATTACH", job)
        psns = (worker_psn, appliance_psn)
        job.workers = [
            [self._add_worker(job, p, r, prefix, psns) for r in range(world)] for p in range(pools)
        ]
        if self.connected:
            for workers in job.workers:
                for worker in workers:
                    self.connect(worker)
            self.greet(job)
        return job

    def _add_worker(
        self, job: Job, pool: int, rank: int, prefix: str | None, psns: tuple[int | None, int | None]
    ) -> Worker:
        number, rnd = next(self._numbers), self.random
        host = 10 + 20 * ((len(self.jobs) - 1) % 10) + rank
        start = rnd.getrandbits(24) if psns[1] is None else psns[1]
        worker = Worker(
            job=job,
            pool=pool,
            rank=rank,
            qpn=0x1100 + number,
            appliance_qpn=rnd.getrandbits(10) << 14 | (number & 1023) << 4 | 3,
            ip=self.family.host(host, prefix),
            mac=f"02:00:00:00:01:{host:02x}",
            psn=rnd.getrandbits(24) if psns[0] is None else psns[0],
            expected_psn=start,
            appliance_psn=start,
            va_base=rnd.getrandbits(62),
            rkey=rnd.getrandbits(32),
            result_va=rnd.getrandbits(47),
            result_rkey=rnd.getrandbits(32),
            udp_port=0xC000 + number,
        )
        worker.buffer = bytearray(b"\xee" * (job.window * job.chunk_bytes))
        self._workers[worker.ip, worker.qpn] = worker
        return worker

    def connect(self, worker: Worker, **changes: Any) -> bool:
        """CONNECT for one worker; its MAC is not known yet."""
        spec = {
            "pool": worker.pool,
            "rank": worker.rank,
            "qpn": worker.appliance_qpn,
            "start_psn": worker.expected_psn,
            "rkey": worker.rkey,
            "va_base": worker.va_base,
            "udp_port": worker.udp_port,
            "peer": _ip(worker.ip),
            "peer_qpn": worker.qpn,
            "peer_start_psn": worker.psn,
            "result_rkey": worker.result_rkey,
            "result_va": worker.result_va,
            "received": worker.received,
        }
        return self.apply("CONNECT", worker.job, qp=spec | changes)

    def resume(self, job: int = 0) -> None:
        """RESUME; every worker has new ends of its QPs, on both sides, that no CONNECT has named yet."""
        assert self.apply("RESUME", self.jobs[job])
        for workers in self.jobs[job].workers:
            for worker in workers:
                del self._workers[worker.ip, worker.qpn]
                worker.renew(next(self._numbers), self.random)
                self._workers[worker.ip, worker.qpn] = worker

    def greet(self, job: Job) -> None:
        """Answers every question for a worker of this job, and reads the CONNECTED events."""
        from .hosts import is_at

        self.poll()
        self.other.clear()
        workers = [worker for workers in job.workers for worker in workers]
        for worker in workers:
            self.feed(is_at(worker.ip, worker.mac))
        connected = [event for event in self.events() if event.kind == "connected"]
        assert len(connected) == len(workers)

    def detach(self, job: Job) -> None:
        """Ends a job that nobody holds."""
        assert self.apply("DETACH", job)
        assert self.poll() == []
        assert [event.kind for event in self.events()][-1] == "detached"

    def apply(self, kind: str, job: Job, **fields: Any) -> bool:
        """One command of the control core."""
        fields |= {"kind": getattr(lib, f"PSC_CMD_{kind}"), "job": job.handle}
        return bool(lib.psc_lane_apply(self.lane, ffi.new("struct psc_command *", fields), self.now_ns))

    # ---- Running ----

    def feed(self, *frames: bytes, max_emits: int = MAX_EMITS) -> list[Packet]:
        """One turn of the lane with these frames; RoCE packets out are returned, others are put into `other`."""
        # Exact size, so that a sanitizer sees the end: made from bytes, an array would have a zero after them.
        buffers = [ffi.new(f"uint8_t[{len(frame)}]", frame) for frame in frames]
        burst = ffi.new("struct psc_frame[]", [(b, len(b)) for b in buffers])
        count = lib.psc_lane_poll(self.lane, burst, len(frames), self.now_ns, self._emits, max_emits)
        out = []
        for emit in self._emits[0:count]:
            frame = bytes(ffi.buffer(emit.header, emit.header_bytes))
            if emit.payload_bytes:
                assert emit.hold != ffi.NULL and emit.hold.count > 0, "lent without a hold"
                frame += bytes(ffi.buffer(emit.payload, emit.payload_bytes))
                self._return_hold(emit.hold)
            frame += bytes(ffi.buffer(emit.trailer, emit.trailer_bytes))
            if emit.header_bytes:
                out.append(self.read(frame))
            else:
                self.other.append(frame)
        return out

    def poll(self, *packets: Packet, after_ns: int = 0, max_emits: int = MAX_EMITS) -> list[Packet]:
        """One turn of the lane, `after_ns` later."""
        self.now_ns += after_ns
        return self.feed(*(self.build(packet) for packet in packets), max_emits=max_emits)

    def _return_hold(self, hold: Any) -> None:
        if self.held is None:
            hold.count -= 1
        else:
            self.held.append(hold)

    def release(self) -> None:
        """The port has sent everything it held."""
        for hold in self.held or []:
            hold.count -= 1
        self.held = None

    def run(self, packets: Iterable[Packet] = ()) -> None:
        """Feeds packets, carries answers both ways, and ends when all is quiet. Nothing is lost; time stands still."""
        queue = list(packets)
        for _ in range(1000):
            out = self.poll(*queue)
            queue = [reply for packet in out for reply in self.owner(packet).receive(packet)]
            if not queue and not out:
                return
        raise AssertionError("the exchange does not end")

    def owner(self, packet: Packet) -> Worker:
        """The worker to which a packet goes."""
        return self._workers[packet.dst, packet.qpn]

    # ---- Looking ----

    def workers(self, job: int = 0, pool: int = 0) -> list[Worker]:
        return self.jobs[job].workers[pool]

    def events(self) -> list[Event]:
        """All events since the last call."""
        event, found = ffi.new("struct psc_event *"), []
        while lib.psc_lane_next_event(self.lane, event):
            found.append(
                Event(
                    kind=EVENTS[event.kind],
                    job=event.tag - 1000,
                    pool=event.pool,
                    rank=event.rank,
                    round=event.round,
                    ranks=event.ranks,
                    fault=FAULTS[event.fault],
                    expected=event.expected,
                    got=event.got,
                    complete=tuple(event.complete)[: len(self.jobs[event.tag - 1000].workers)],
                )
            )
        return found

    def fault(self) -> Event:
        """The one fault event that there is."""
        (fault,) = [event for event in self.events() if event.kind == "fault"]
        return fault

    def drops(self) -> dict[str, int]:
        """Reasons and how often, those that happened."""
        return {
            name: self.stats.drops[value]
            for value, name in DROPS.items()
            if name != "count" and self.stats.drops[value]
        }


def acks(packets: Sequence[Packet]) -> list[tuple[int, int, int]]:
    """(psn, syndrome, msn) of each ACK and NAK."""
    return [(p.psn, p.syndrome, p.msn) for p in packets if p.opcode == wire.ACK]


def results(packets: Sequence[Packet], worker: Worker | None = None) -> list[Packet]:
    """Result packets, those to one worker if it is given."""
    found = [p for p in packets if p.opcode not in (wire.ACK, wire.CNP)]
    return found if worker is None else [p for p in found if (p.dst, p.qpn) == (worker.ip, worker.qpn)]


def ints(packets: int = 1, seed: int = 0, tail_bytes: int = 0) -> Array:
    """Random int32 over the whole range, `packets` full packets and a tail."""
    elems = (packets * MTU + tail_bytes) // 4
    return np.random.default_rng(seed).integers(-(2**31), 2**31, elems, np.int64).astype(np.int32)


def _mac(text: str) -> Any:
    return {"b": list(bytes.fromhex(text.replace(":", "")))}


def _ip(text: str) -> Any:
    packed = wire.address_bytes(text)
    return {"b": list(packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed)}
