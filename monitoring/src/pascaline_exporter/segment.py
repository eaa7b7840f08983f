"""The statistics segment, read from another process: one read-only look gives one Snapshot.

The only module here that knows the segment's layout; it takes it verbatim from the contract header (cffi, ABI mode).
The segment is opened anew for every look, which costs some 50 us: an appliance that was restarted, and so made a new
file, needs no further care. May touch the file system, never the network.
"""

from __future__ import annotations

import mmap
import os
import stat
import time
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import cffi

HEARTBEAT_LIMIT_S = 5.0
"""The appliance renews its heartbeat at least once a second; five times that is not a busy machine any more."""

_ROW_ATTEMPTS = 100
"""The control core holds a row's generation odd for some stores, not for a system call: one retry is already rare."""

_JOB_FREE = 0
_JOB_READY = 2

_ffi: Any = cffi.FFI()
_ffi.cdef((resources.files(__package__) / "contract" / "psc_stats.def.h").read_text(encoding="utf-8"))
_constants: Any = _ffi.dlopen(None)

STATS_VERSION: int = _constants.PSC_STATS_VERSION

_HEADER_BYTES: int = _ffi.sizeof("struct psc_stats_header")
_LANE_BYTES: int = _ffi.sizeof("struct psc_lane_stats")
_JOB_BYTES: int = _ffi.sizeof("struct psc_job_stats")


def _drop_reasons() -> dict[int, str]:
    """Number of each drop reason in the contract and its label: the enum's name without prefix, in lower case."""
    members: dict[int, str] = _ffi.typeof("enum psc_drop").elements
    skipped = {"PSC_DROP_NONE", "PSC_DROP_COUNT"}
    return {
        number: name.removeprefix("PSC_DROP_").lower()
        for number, name in sorted(members.items())
        if name not in skipped
    }


DROP_REASONS = _drop_reasons()


class SegmentError(Exception):
    """There is no live segment of a version that we read; the text is one sentence for the log."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """One word, the same as long as the cause is the same: the message may carry a growing age."""


@dataclass(frozen=True, slots=True)
class LaneCounters:
    """Counters of one lane since the appliance started. Bytes are Ethernet frame bytes without FCS."""

    lane: int
    receive_bytes: int
    receive_packets: int
    transmit_bytes: int
    transmit_packets: int
    retransmitted_packets: int
    receive_missed_packets: int
    receive_no_buffer: int
    polls: int
    drops: dict[str, int]
    """By reason; every reason of the contract is there, also at 0."""


@dataclass(frozen=True, slots=True)
class JobCounters:
    """Counters of one training job, all ranks together."""

    name: str
    start_time_us: int
    workers: int
    """World size while rounds may run, else 0."""
    contribution_bytes: int
    result_bytes: int
    rounds: int
    faults: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one look at the segment found."""

    start_time_s: float
    lanes: list[LaneCounters]
    jobs: list[JobCounters]


def read(path: Path) -> Snapshot:
    """One look at the segment at `path`. Raises SegmentError unless a live appliance writes it."""
    try:
        # Non-blocking: a path that names a pipe must not hang the scrape.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SegmentError(
            "absent",
            f"cannot open the statistics segment {path} ({error.strerror}): is the appliance running here, and does "
            "--stats name the path that its configuration names?",
        ) from None
    try:
        status = os.fstat(descriptor)
        size_bytes = status.st_size
        if not stat.S_ISREG(status.st_mode):
            raise SegmentError(
                "foreign", f"{path} is not a file: let --stats name the appliance's stats.path"
            )
        if size_bytes < _HEADER_BYTES:
            raise SegmentError(
                "foreign", f"{path} has {size_bytes} bytes, a statistics segment has at least {_HEADER_BYTES}"
            )
        with (
            mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ) as memory,
            _ffi.from_buffer(memory) as base,
        ):
            return _read_mapped(path, base, size_bytes)
    finally:
        os.close(descriptor)


def _read_mapped(path: Path, base: Any, size_bytes: int) -> Snapshot:
    header = _ffi.cast("struct psc_stats_header *", base)
    _check_alive(path, header)
    _check_layout(path, header, size_bytes)
    lanes = [_read_lane(base, header, lane) for lane in range(header.lanes)]
    rows = (_read_job(base, header, row) for row in range(header.job_rows))
    return Snapshot(
        start_time_s=header.start_time_us / 1e6,
        lanes=lanes,
        jobs=_latest_lives([job for job in rows if job is not None]),
    )


def _check_alive(path: Path, header: Any) -> None:
    """The header says: a segment, of our version, whose writer lives. Magic first: it is written last."""
    if header.magic != _constants.PSC_STATS_MAGIC:
        raise SegmentError(
            "foreign",
            f"{path} begins with 0x{header.magic:08x}, a statistics segment with 0x{_constants.PSC_STATS_MAGIC:08x}: "
            "either the appliance is just starting, or --stats names another file",
        )
    if header.version != STATS_VERSION:
        raise SegmentError(
            "version",
            f"the appliance writes version {header.version} of the statistics segment and this exporter reads version "
            f"{STATS_VERSION}: install the pascaline-exporter of the appliance's release",
        )
    if header.stopped:
        raise SegmentError("stopped", f"the appliance (pid {header.pid}) was stopped: start it again")
    age_s = time.time() - header.heartbeat_us / 1e6
    if age_s < -HEARTBEAT_LIMIT_S:
        raise SegmentError(
            "stale",
            f"the appliance (pid {header.pid}) renewed its heartbeat {-age_s:.0f} s in the future: the clock was set "
            "back, and whether it lives will be known when it next renews it",
        )
    if age_s > HEARTBEAT_LIMIT_S:
        raise SegmentError(
            "stale",
            f"the appliance (pid {header.pid}) last renewed its heartbeat {age_s:.0f} s ago, {HEARTBEAT_LIMIT_S:.0f} s "
            "are allowed: it has died, or its control plane hangs while its lanes may go on; see its log",
        )


def _check_layout(path: Path, header: Any, size_bytes: int) -> None:
    """Offsets and strides come from the file: believe them only as far as the mapping reaches."""
    lanes_end = header.lane_offset_bytes + header.lanes * header.lane_stride_bytes
    jobs_end = header.job_offset_bytes + header.job_rows * header.job_stride_bytes
    strides_fit = header.lane_stride_bytes >= _LANE_BYTES and header.job_stride_bytes >= _JOB_BYTES
    aligned = not (
        header.lane_offset_bytes % 8
        or header.lane_stride_bytes % 8
        or header.job_offset_bytes % 8
        or header.job_stride_bytes % 8
    )
    if not strides_fit or not aligned or max(lanes_end, jobs_end) > size_bytes:
        raise SegmentError(
            "damaged",
            f"{path} is damaged: its header promises {header.lanes} lanes up to byte {lanes_end} and {header.job_rows} "
            f"job rows up to byte {jobs_end}, the file has {size_bytes} bytes: restart the appliance",
        )


def _read_lane(base: Any, header: Any, lane: int) -> LaneCounters:
    offset_bytes = header.lane_offset_bytes + lane * header.lane_stride_bytes
    block = _ffi.cast("struct psc_lane_stats *", base + offset_bytes)
    return LaneCounters(
        lane=lane,
        receive_bytes=block.rx_bytes,
        receive_packets=block.rx_packets,
        transmit_bytes=block.tx_bytes,
        transmit_packets=block.tx_packets,
        retransmitted_packets=block.retransmitted_packets,
        receive_missed_packets=block.rx_missed,
        receive_no_buffer=block.rx_no_mbuf,
        polls=block.polls,
        drops={reason: block.drops[number] for number, reason in DROP_REASONS.items()},
    )


def _read_job(base: Any, header: Any, row: int) -> JobCounters | None:
    """One job row whose identity did not change while it was read; None if it is free or never held still."""
    offset_bytes = header.job_offset_bytes + row * header.job_stride_bytes
    job = _ffi.cast("struct psc_job_stats *", base + offset_bytes)
    for _ in range(_ROW_ATTEMPTS):
        generation = job.generation
        if generation % 2:
            continue
        state = job.state
        found = JobCounters(
            name=_ffi.string(job.name, _constants.PSC_STATS_JOB_NAME_BYTES).decode("utf-8", "replace"),
            start_time_us=job.start_time_us,
            workers=job.world_size if state == _JOB_READY else 0,
            contribution_bytes=job.contribution_bytes,
            result_bytes=job.result_bytes,
            rounds=job.rounds_completed,
            faults=job.faults,
        )
        if job.generation == generation:
            return found if state != _JOB_FREE else None
    return None


def _latest_lives(rows: list[JobCounters]) -> list[JobCounters]:
    """One series per job name, in the order of names: the rows of its newest life, one for each of its lanes, together.

    Should two lives bear one name, the newest alone is the series: its counters begin at 0, which every Prometheus
    function takes for what it is, a restart. A sum over lives would fall when the older row is needed for another job.
    """
    latest: dict[str, list[JobCounters]] = {}
    for row in sorted(rows, key=lambda row: (row.name, row.start_time_us)):
        life = latest.get(row.name, [])
        latest[row.name] = [*life, row] if life and life[0].start_time_us == row.start_time_us else [row]
    return [_all_lanes(life) for life in latest.values()]


def _all_lanes(life: list[JobCounters]) -> JobCounters:
    """What lanes have of one life; a fault ends the epoch on all of them, and each counts it."""
    return replace(
        life[0],
        workers=max(row.workers for row in life),
        contribution_bytes=sum(row.contribution_bytes for row in life),
        result_bytes=sum(row.result_bytes for row in life),
        rounds=sum(row.rounds for row in life),
        faults=max(row.faults for row in life),
    )
