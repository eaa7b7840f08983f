"""The door to the data plane: the only module that imports the compiled one, with the one function that turns its codes
into exceptions. Everything here is called by one thread, the one that runs the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from pascaline_appliance._dataplane import ffi, lib
from pascaline_appliance.caches import l2_bytes
from pascaline_appliance.config import Config
from pascaline_appliance.contract.control import Op
from pascaline_appliance.errors import (
    ApplianceError,
    ConfigError,
    DataPlaneError,
    DataPlaneStartError,
    LaneCoreError,
    MtuTooSmallError,
    PortAbsentError,
    StatsFileError,
)
from pascaline_appliance.records import Event, JobCounters, PeerEnd, PoolPlan, QueuePairEnd

WIRE_VERSION: int = lib.PSC_WIRE_VERSION
MAX_CHUNK_BYTES: int = lib.PSC_MAX_CHUNK_BYTES
MAX_WINDOW: int = lib.PSC_MAX_WINDOW
JOB_ROWS_BEYOND_LIVING = 32
"""Jobs that have ended and still stand in the statistics segment."""

if lib.psc_ctl_version() != lib.PSC_CTL_VERSION:
    raise ImportError(
        f"libpascaline speaks version {lib.psc_ctl_version()} of psc_ctl.def.h, this package was compiled for"
        f" {lib.PSC_CTL_VERSION}: reinstall pascaline-appliance against the installed library"
    )


def _names(enum: str, prefix: str) -> dict[int, str]:
    """Value -> name in lower case without its prefix, from the C enum itself."""
    elements: dict[int, str] = ffi.typeof(enum).elements
    return {value: name.removeprefix(prefix).lower() for value, name in elements.items()}


FAULT_NAMES = _names("enum psc_fault", "PSC_FAULT_")
FAULTS = {name: value for value, name in FAULT_NAMES.items()}
OPS = {name: value for value, name in _names("enum psc_op", "PSC_OP_").items()}


def _by_op(enum: str, prefix: str) -> dict[str, int]:
    """Op -> value, from a C enum of which members may share a value and which need not have all ops."""
    members: dict[str, int] = ffi.typeof(enum).relements
    values = {name.removeprefix(prefix).lower(): value for name, value in members.items()}
    return {op: values[op] for op in sorted(values, key=OPS.__getitem__)}


TABLE_ENTRIES = _by_op("enum psc_op_table", "PSC_TABLE_")
"""Of the ops that look up, by name."""
SUM_MAX = _by_op("enum psc_op_sum_max", "PSC_SUM_MAX_")
"""What their sums hold."""
SUB_BLOCK_ELEMS = _by_op("enum psc_op_sub_block", "PSC_SUB_BLOCK_")
"""Of the ops whose contributions are streams of sub-blocks."""
SUB_BLOCK_RANK_BYTES: int = lib.PSC_CTL_SUB_BLOCK_RANK_BYTES
MAX_TABLE_ENTRY: int = lib.PSC_MAX_TABLE_ENTRY
OP_NAMES = {value: name for name, value in OPS.items()}
POOL_CLASSES = {name: value for value, name in _names("enum psc_pool_class", "PSC_POOL_").items()}
STEERINGS = {"auto": lib.PSC_CTL_STEER_AUTO, "ib_bth": lib.PSC_CTL_STEER_QPN} | {
    "address": lib.PSC_CTL_STEER_ADDRESS,
    "dispatcher": lib.PSC_CTL_STEER_DISPATCHER,
}
"""As lanes.steering names them."""
STEERING_NAMES = {value: name for name, value in STEERINGS.items()} | {
    lib.PSC_CTL_STEER_PORT: "port of its own"
}
"""How packets of a port find their lane, for `status`."""
EVENT_NAMES = _names("enum psc_ctl_event_kind", "PSC_CTL_EVENT_")
DROP_NAMES = _names("enum psc_drop", "PSC_DROP_")
del DROP_NAMES[lib.PSC_DROP_COUNT]
COMMAND_NAMES = _names("enum psc_ctl_command", "PSC_CTL_COMMAND_")
_CODE_NAMES = _names("enum psc_ctl_code", "PSC_CTL_")

_START_ERRORS: dict[str, type[ApplianceError]] = {
    "argument": ConfigError,
    "lane_core": LaneCoreError,
    "port_absent": PortAbsentError,
    "mtu_too_small": MtuTooSmallError,
    "stats_file": StatsFileError,
}
_CALL_SENTENCES = {
    "memory": "not enough memory of the data plane is free for the job's slots: raise memory.memory_mib",
    "too_many_jobs": "limits.max_jobs jobs are open already",
    "no_qpn": "a lane's queue pair numbers are in use or in their 60 s of quarantine",
    "no_job": "the job is not open any more",
    "argument": "a number is out of range",
    "busy": "the lane does not take commands fast enough",
    "state": "the data plane is not running",
}


def _check(code: int, text: str | None = None) -> None:
    """Raise what a code means; `text` is the sentence of a start, None elsewhere."""
    if code == lib.PSC_CTL_OK:
        return
    name = _CODE_NAMES[code]
    if text is not None:
        raise _START_ERRORS.get(name, DataPlaneStartError)(text)
    raise DataPlaneError(name, _CALL_SENTENCES.get(name, f"the data plane answers {name}"))


def _mapped(address: IPv4Address | IPv6Address | None) -> bytes:
    """16 bytes as the data plane holds an address: IPv4 as ::ffff:a.b.c.d, all zero for none."""
    if address is None:
        return bytes(16)
    return address.packed if isinstance(address, IPv6Address) else bytes(10) + b"\xff\xff" + address.packed


def _fill(config: Config, c: Any) -> None:
    """Copy the configuration into struct psc_ctl_config."""
    for i, port in enumerate(config.port):
        c.ports[i].devargs = port.devargs.encode()
        c.ports[i].pci = port.is_pci
        c.ports[i].rx_ring_packets = port.rx_ring_packets
        c.ports[i].tx_ring_packets = port.tx_ring_packets
        c.ports[i].dispatcher_core = (
            lib.PSC_CTL_NO_CORE if port.dispatcher_core is None else port.dispatcher_core
        )
    c.port_count = len(config.port)
    for i, (core, number) in enumerate(zip(config.lanes.cores, config.lane_ports, strict=True)):
        c.lanes[i].core, c.lanes[i].port = core, number
        c.lanes[i].address = list(_mapped(config.lane_address(i)))
        c.lanes[i].gateway = list(_mapped(config.port_gateway(number)))
        c.lanes[i].prefix_bits = config.port_address(number).network.prefixlen
    c.lane_count = len(config.lanes.cores)
    c.steering = STEERINGS[config.lanes.steering]
    c.huge_pages = config.memory.huge_pages
    c.memory_mib = config.memory.memory_mib
    c.idle_sleep_us = config.lanes.idle_sleep_us
    c.vlan = config.data.vlan
    c.dscp = config.data.dscp
    c.roce_mtu = config.data.mtu or 0
    c.max_unacked_packets = config.limits.max_unacked_packets
    c.retransmit_exponent = config.limits.retransmit_exponent
    c.retries = config.limits.retries
    c.progress_us = int(config.limits.progress_s * 1e6)
    c.waiting_event_us = int(config.limits.waiting_event_s * 1e6)
    c.max_jobs = config.limits.max_jobs
    c.job_rows = (config.limits.max_jobs + JOB_ROWS_BEYOND_LIVING) * c.lane_count
    c.stats_path = config.stats.path.encode()


class DataPlane:
    """EAL, ports and lanes of this process; starts once."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.roce_mtu = 0
        """The least of all ports', in bytes."""
        self.lanes = len(config.lanes.cores)
        self.ring_packets: list[int] = []
        """By lane: its share of what its port holds before anybody looks."""

    def start(self) -> None:
        """Start EAL, ports and lanes; an ApplianceError of the fitting class says why it does not."""
        c = ffi.new("struct psc_ctl_config *")
        _fill(self._config, c)
        text = ffi.new("char[]", lib.PSC_CTL_TEXT_BYTES)
        code = lib.psc_ctl_start(c, text)
        _check(code, ffi.string(text).decode(errors="replace"))
        ports = [self._port(i) for i in range(len(self._config.port))]
        self.roce_mtu = min(port.roce_mtu for port in ports)
        on_port = self._config.lane_ports
        self.ring_packets = [
            self._config.port[port].rx_ring_packets * ports[port].rx_queues // on_port.count(port)
            for port in on_port
        ]

    def heartbeat(self) -> None:
        """Say in the statistics that the control plane lives; at least once a second."""
        lib.psc_ctl_heartbeat()

    def stop(self) -> None:
        """Stop lanes, close ports, free jobs, mark the statistics as stopped."""
        lib.psc_ctl_stop()

    @property
    def event_fd(self) -> int:
        """Readable when an event waits."""
        return int(lib.psc_ctl_event_fd())

    def open_job(
        self,
        name: str,
        world_size: int,
        mtu: int,
        epoch: int,
        ops: Sequence[str],
        tables: Mapping[Op, Sequence[int]],
        pools: Sequence[PoolPlan],
    ) -> tuple[int, list[list[QueuePairEnd]]]:
        """Reserve slots and QPNs; returns the job's number and our ends as [pool][rank]."""
        spec = ffi.new("struct psc_ctl_job *")
        spec.name = name.encode()
        spec.world_size, spec.mtu, spec.epoch = world_size, mtu, epoch
        for i, op in enumerate(ops):
            spec.ops[i] = OPS[op]
        spec.op_count = len(ops)
        for op, table in tables.items():
            spec.tables[OPS[op]] = list(table)
        for i, pool in enumerate(pools):
            spec.pools[i].pool_class = POOL_CLASSES[pool.pool_class]
            spec.pools[i].lane = pool.lane
            spec.pools[i].window = pool.window
            spec.pools[i].chunk_bytes = pool.chunk_bytes
        spec.pool_count = len(pools)
        number = ffi.new("uint32_t *")
        ends = ffi.new("struct psc_ctl_qp[]", len(pools) * world_size)
        text = ffi.new("char[]", lib.PSC_CTL_TEXT_BYTES)
        code = lib.psc_ctl_job_open(spec, number, ends, text)
        if code == lib.PSC_CTL_ARGUMENT:
            raise DataPlaneError("argument", ffi.string(text).decode(errors="replace"))
        _check(code)
        return number[0], _by_pool(ends, len(pools), world_size)

    def connect(self, job: int, pool: int, rank: int, peer: PeerEnd) -> None:
        """Hand over the worker's end of one QP; the event `connected` or `fault` answers."""
        c = ffi.new("struct psc_ctl_peer *")
        c.address = list(_mapped(peer.address))
        c.qpn, c.start_psn = peer.qpn, peer.start_psn
        c.result_rkey, c.result_va, c.received = peer.result_rkey, peer.result_va, peer.received
        _check(lib.psc_ctl_qp_connect(job, pool, rank, c))

    def ready(self, job: int) -> None:
        """For the statistics: rounds may begin."""
        _check(lib.psc_ctl_job_ready(job))

    def halt(self, job: int, rank: int, fault: str) -> None:
        """A worker says that its QP failed; the event `fault` answers, unless one has come before."""
        _check(lib.psc_ctl_job_halt(job, rank, FAULTS[fault]))

    def resume(self, job: int, epoch: int, pools: int, world_size: int) -> list[list[QueuePairEnd]]:
        """After `fault`: a new epoch; returns our new ends as [pool][rank]."""
        ends = ffi.new("struct psc_ctl_qp[]", pools * world_size)
        _check(lib.psc_ctl_job_resume(job, epoch, ends))
        return _by_pool(ends, pools, world_size)

    def end(self, job: int, dead_ranks: Iterable[int]) -> None:
        """No more rounds; complete results still go to the other ranks, and the event `ended` answers."""
        _check(lib.psc_ctl_job_end(job, sum(1 << rank for rank in dead_ranks)))

    def leave(self, job: int, rank: int, received: Sequence[int]) -> None:
        """`received[pool]` rounds have reached the rank; the event `left` answers."""
        _check(lib.psc_ctl_rank_leave(job, rank, ffi.new("uint32_t[]", list(received))))

    def close(self, job: int) -> None:
        """End the job at once; the event `detached` answers."""
        _check(lib.psc_ctl_job_close(job))

    def events(self) -> Iterator[Event]:
        """All events that wait."""
        c = ffi.new("struct psc_ctl_event *")
        while lib.psc_ctl_next_event(c):
            yield Event(
                kind=EVENT_NAMES[c.kind],
                job=c.job,
                pool=c.pool,
                rank=c.rank,
                round=c.round,
                ranks=tuple(rank for rank in range(64) if c.ranks >> rank & 1),
                fault=FAULT_NAMES.get(c.fault, "none"),
                expected=c.expected,
                got=c.got,
                complete=tuple(c.complete),
            )

    def counters(self, job: int) -> JobCounters | None:
        """The job's counters, all lanes together; None when it is not open any more."""
        all_rows = [lib.psc_ctl_job_stats(job, lane) for lane in range(self.lanes)]
        rows = [row for row in all_rows if row != ffi.NULL]
        if not rows:
            return None
        return JobCounters(
            sum(row.contribution_bytes for row in rows),
            sum(row.result_bytes for row in rows),
            sum(row.rounds_completed for row in rows),
        )

    def _port(self, port: int) -> Any:
        c = ffi.new("struct psc_ctl_port_status *")
        _check(lib.psc_ctl_port_status(port, c))
        return c

    def port_status(self, port: int) -> dict[str, object]:
        """What `status` says about a port."""
        c = self._port(port)
        return {
            "device": ffi.string(c.devargs).decode(),
            "driver": ffi.string(c.driver).decode(),
            "mac": bytes(c.mac).hex(":"),
            "link_up": bool(c.link_up),
            "payload": "lent" if c.lends_payload else "copied",
            "link_mtu_bytes": c.link_mtu,
            "roce_mtu_bytes": c.roce_mtu,
            "address": str(self._config.port_address(port)),
            "steering": STEERING_NAMES[c.steering],
            "refused_steerings": ffi.string(c.why).decode(),
            "rx_queues": c.rx_queues,
            "tx_queues": c.tx_queues,
            "dispatcher_core": self._config.port[port].dispatcher_core,
            "dispatched_frames": int(c.dispatched_frames),
        }

    def lane_status(self, lane: int) -> dict[str, object]:
        """What `status` says about a lane: its counters, from the statistics segment."""
        stats = lib.psc_ctl_lane_stats(lane)
        names: tuple[str, ...] = ("rx_packets", "rx_bytes", "tx_packets", "tx_bytes")
        names += ("qps", "slots", "mbufs_in_use", "polls")
        names += ("busy_ns", "retransmitted_packets", "timeouts", "rx_missed", "rx_no_mbuf")
        return {
            "lane": lane,
            "core": self._config.lanes.cores[lane],
            "port": self._config.lane_ports[lane],
            "address": str(self._config.lane_address(lane)),
            "idle_sleep_us": self._config.lanes.idle_sleep_us,
            "slot_bytes_limit": self._config.limits.slot_bytes,
            "l2_bytes": l2_bytes(self._config.lanes.cores[lane]),
            **{name: int(getattr(stats, name)) for name in names},
            "drops": {name: int(stats.drops[why]) for why, name in DROP_NAMES.items() if stats.drops[why]},
        }

    def usage(self) -> dict[str, int]:
        """Numbers that are back at their start when every job has left."""
        c = ffi.new("struct psc_ctl_usage *")
        lib.psc_ctl_usage(c)
        return {"jobs": c.jobs, "qps": c.qps, "mbufs_in_use": c.mbufs_in_use}

    @property
    def arith_variant(self) -> str:
        """Instruction set of the ops in use."""
        return str(ffi.string(lib.psc_ctl_arith_variant()).decode())

    @property
    def crc_variant(self) -> str:
        """How the ICRC is computed."""
        return str(ffi.string(lib.psc_ctl_crc_variant()).decode())

    @property
    def library_version(self) -> str:
        """Version of libpascaline."""
        return str(ffi.string(lib.psc_ctl_library_version()).decode())


def _by_pool(ends: Any, pools: int, world_size: int) -> list[list[QueuePairEnd]]:
    return [[_end(ends[pool * world_size + rank]) for rank in range(world_size)] for pool in range(pools)]


def _end(c: Any) -> QueuePairEnd:
    return QueuePairEnd(qpn=c.qpn, start_psn=c.start_psn, rkey=c.rkey, va_base=c.va_base)
